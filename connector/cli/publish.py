"""`ledger publish`: copy sealed segments to a Delta table, once or at an interval, in a local Spark session.

A segment is one file of a ledger; a sealed segment never changes.

Rules
- The command prints a line, or a JSON document, for each published segment.
- With `--every` the command runs until it is interrupted. It retries after temporary failures. Any other error ends it.
"""

from __future__ import annotations

from threading import Event
from typing import Annotated

import typer

from pyspark_ledger.connector.cli.ledgers import (
    Name,
    Output,
    OutputOption,
    StoreOption,
    reporting,
    show,
    source_options,
)
from pyspark_ledger.connector.cli.wording import counted
from pyspark_ledger.connector.options.option import duration
from pyspark_ledger.connector.publish.publisher import PublishedSegment, Publisher
from pyspark_ledger.connector.publish.request import FILE_BYTES, Publishing
from pyspark_ledger.connector.session.delta import PACKAGES, s3a_settings
from pyspark_ledger.ledger.display.progress_bar import progress_bar
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import short_name


@reporting
def publish(
    name: Name,
    table: Annotated[str, typer.Option("--table", help="A path, or [catalog.][schema.]table.")],
    every: Annotated[str, typer.Option("--every", help="Keep running, and publish at this interval: 10s, 5m.")] = "",
    offload: Annotated[str, typer.Option("--offload", help="A bucket to read from, without a broker.")] = "",
    option: Annotated[
        list[str] | None, typer.Option("--option", help="NAME=VALUE, an option of format('ledger'); may be repeated.")
    ] = None,
    partition_by: Annotated[
        list[str] | None, typer.Option("--partition-by", help="Partition column: NAME or NAME=EXPRESSION; '': none.")
    ] = None,
    dead_letters: Annotated[str, typer.Option("--dead-letters", help="A table for rows that cannot be decoded.")] = "",
    latest: Annotated[str, typer.Option("--latest", help="A second table with the newest row of each key.")] = "",
    key: Annotated[str, typer.Option("--key", help="The column with the keys of --latest.")] = "__key",
    deleted_when: Annotated[
        str,
        typer.Option("--deleted-when", help="SQL condition: a row for which it is true deletes its key from --latest."),
    ] = "",
    seal_after: Annotated[str, typer.Option("--seal-after", help="Seal a segment of this age: 0, 30s, 5m.")] = "",
    follow_retention: Annotated[
        bool, typer.Option("--follow-retention", help="Delete rows that retention has deleted from the log.")
    ] = False,
    file_bytes: Annotated[
        int, typer.Option("--file-bytes", help="Approximate bytes of the log in one file of the table.")
    ] = FILE_BYTES,
    optimize_after: Annotated[int, typer.Option("--optimize-after", help="OPTIMIZE after this many segments.")] = 0,
    restart: Annotated[
        bool, typer.Option("--restart", help="Publish from the beginning, if table or ledger was created again.")
    ] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue although another writer changed rows of the table.")
    ] = False,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="A Spark setting NAME=VALUE; repeatable.")] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Publish the sealed segments of a ledger to a Delta table, each once."""
    from pyspark_ledger.connector.session.session import local_session

    given = _pairs("--option", option)
    given |= {"offload": offload} if offload else source_options(store)
    wanted = None if partition_by is None else [text for text in partition_by if text]
    wishes = Publishing.of(
        wanted,
        dead_letters=dead_letters,
        latest=latest,
        key=key,
        deleted_when=deleted_when,
        seal_after_ms=_duration("--seal-after", seal_after),
        follow_retention=follow_retention,
        file_bytes=file_bytes,
        optimize_after=optimize_after,
        restart=restart,
        accept_changes=accept_changes,
    )
    pause_ms = _duration("--every", every)
    if pause_ms == 0:
        raise Refused(
            f"--every is {every!r}, expected a time above 0",
            hint="Give the interval, such as 10s, or leave --every out to publish once",
        )
    settings = _pairs("--conf", conf)
    if any(target.startswith("s3a://") for target in (table, dead_letters, latest)) and PACKAGES not in settings:
        settings |= s3a_settings()
    spark = local_session("ledger publish", {"spark.ui.showConsoleProgress": "false", **settings}, delta=True)
    spark.sparkContext.setLogLevel("ERROR")

    def tell(found: PublishedSegment) -> None:
        rows = "" if found.rows < 0 else f", {counted(found.rows, 'row')}"
        text = f"{short_name(found.ledger)}: segment {found.segment}{rows} is in {publisher.table}"
        show(output, found, lambda console: console.print(text))

    try:
        publisher = Publisher(spark, name, table, given, wishes)
        # With --every there is no bar: each publication takes only seconds, and its bar would stay in the terminal.
        with progress_bar(f"publish {name}", shown=output is Output.text and pause_ms is None) as bar:
            publisher.run(tell, pause_ms, Event(), bar)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        spark.stop()


def _duration(option: str, text: str) -> int | None:
    """Return milliseconds; None for an empty text."""
    if not text:
        return None
    try:
        return duration(text)
    except ValueError as expected:
        raise Refused(f"{option} is {text!r}, expected {expected}") from None


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not separator:
            raise Refused(f"{option} is {text!r}, expected NAME=VALUE")
        pairs[name] = value
    return pairs
