"""Commands on a whole store: `ledger serve` and `stop` for its broker, `ledger repair` for its metadata, `store move`.

If the metadata lost the record of a segment, `repair` adds the segment to its ledger again. If only the newest changes
of the metadata are lost, `repair` can accept the metadata without these changes. The page docs/concepts.md explains the
words segment and record.

Rules of `repair`
- Without `--yes` the command changes nothing.
- With `--yes` the command overwrites or deletes no existing data (`ledger.store.repair`).

Rules of `store move`
- If the store has a private broker on this host, the command stops it. If its broker has an address for other hosts,
  the command refuses to move the store.
- A repeated run continues where the last run ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from pyspark_ledger.connector.cli.ledgers import Durability, Output, OutputOption, StoreOption, reporting, show
from pyspark_ledger.connector.cli.wording import counted
from pyspark_ledger.ledger.client.broker_environment import bounded_allocator
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.display.progress_bar import progress_bar
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import bucket_of, location_text, store_location
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.repair import RepairReport, UnknownSegment, find
from pyspark_ledger.ledger.store.repair import repair as repaired
from pyspark_ledger.ledger.transport.moved_store import require_not_moved
from pyspark_ledger.offload.move.into_bucket import move_into_bucket
from pyspark_ledger.offload.move.summary import MoveSummary

stores = typer.Typer(no_args_is_help=True, help="Move a store between a directory and a bucket.")
Directory = Annotated[str | None, typer.Option("--store", "-s", help="Directory of the store, or s3://BUCKET/PREFIX.")]


class ServeCommand(TyperCommand):
    """Command whose error for `--take-over` without a word names the three words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args, ""] if args[-1:] == ["--take-over"] else args)


@reporting
def serve(
    store: Directory = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="grpc://127.0.0.1:PORT or grpc+tls://HOST:PORT; replaces the address in the settings. The broker of a "
            "store in a bucket makes certificates, if the settings have none."
        ),
    ] = None,
    web: Annotated[
        str | None, typer.Option(help="http://127.0.0.1:PORT or https://HOST:PORT: metrics, health and status page.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="File of settings, such as conf/broker.toml.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the store if it does not exist.")] = False,
    take_over: Annotated[
        OwnerChange | None,
        typer.Option(
            "--take-over",
            help="Why the store is here: moved or restored (moved), or copied (copied). A copy gets a new id. "
            "With broker, another broker serves the store, and must end.",
        ),
    ] = None,
) -> None:
    """Serve a store until SIGTERM."""
    directory = _directory(store)
    allocator = bounded_allocator(os.environ)
    if allocator:  # Arrow reads the variables when it is loaded, so this process starts its program again
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **allocator})  # noqa: S606
    from pyspark_ledger.offload.broker import main

    arguments = ["--store", directory, "--idle", "0"]
    arguments += ["--address", address] if address else []
    arguments += ["--web", web] if web else []
    arguments += ["--config", str(config)] if config else []
    arguments += ["--create"] * create + (["--take-over", take_over.value] if take_over else [])
    raise typer.Exit(main(arguments))


@reporting
def stop(
    store: Directory = None,
    output: OutputOption = Output.text,
) -> None:
    """Stop the broker of a store. The next process that uses the store passes its environment to a new broker."""
    directory = _directory(store)
    stopped = stop_broker(Path(directory))
    where = location_text(directory)
    here = " with the cache of this host" if bucket_of(Path(directory)) else ""
    text = f"the broker of {where} has stopped" if stopped else f"no broker runs for {where}{here}"
    show(output, {"stopped": stopped}, lambda console: console.print(text))


def _directory(store: str | None) -> str:
    location = store_location(store)
    if "://" in location:
        raise typer.BadParameter(f"{location!r} is an address: give the directory of a store", param_hint="--store")
    return location


@reporting
def repair(
    ledgers: Annotated[
        list[int] | None, typer.Argument(help="Ids of segments; default: all that can be added.")
    ] = None,
    ledger: Annotated[str, typer.Option(help="The ledger for segments whose files do not name their ledger.")] = "",
    accept_metadata: Annotated[
        bool, typer.Option("--accept-metadata", help="Accept metadata whose newest changes are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair the store; without it, only report.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Find segments whose records the metadata of a store lost. With --yes, add these segments to their ledgers again.

    No broker may run meanwhile.
    """
    directory = Path(store_location(store))
    require_not_moved(directory)
    if not (directory / "metadata.sqlite").exists():
        raise Refused(
            f"there is no store at {location_text(directory)} on this host", hint="Run it on the host of the broker"
        )
    found = find(directory, ledger)
    if not yes:
        show(output, found, lambda console: _say(console, found))
        return
    if found.behind and not accept_metadata:
        raise Refused(found.behind, hint="Restore the files, or accept the present metadata: --accept-metadata")
    done = repaired(directory, system_clock_ms, into=ledger, accept=bool(found.behind), only=ledgers or ())
    show(output, done, lambda console: _tell(console, done))


def _say(console: Console, found: RepairReport) -> None:
    if found.behind:
        console.print(f"{found.behind}. Accept it with --accept-metadata --yes")
    for lost in found.unknown:
        rows = f"{lost.entries:,} entries, {lost.rows:,} rows"
        result = lost.refusal or f"can be added to {short_name(lost.ledger)} again: {rows}"
        console.print(f"segment {lost.ledger_id} ({', '.join(lost.files)}): {result}")
    if not found.behind and not found.unknown:
        console.print("every file has a record, and no commit is missing")


def _tell(console: Console, done: list[UnknownSegment]) -> None:
    for added in done:
        console.print(f"segment {added.ledger_id}: {added.rows:,} rows are in {short_name(added.ledger)} again")
    if not done:
        console.print("no segment was added")


@stores.command()
@reporting
def move(
    source: Annotated[str, typer.Argument(help="The store: a directory.")],
    target: Annotated[str, typer.Argument(help="An empty place: s3://BUCKET/PREFIX.")],
    durability: Annotated[
        Durability | None, typer.Option(help="fsync: convert ledgers with durability os, which a bucket cannot have.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="File of settings, such as conf/broker.toml.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Move a store with all its ledgers and cursors into a bucket. Run it again if it was interrupted."""
    settings = Settings.load(config) if config else Settings()
    if durability is Durability.os:
        raise typer.BadParameter("a store in a bucket has durability fsync", param_hint="--durability")
    here, into = _place(source), bucket_of(_place(target))
    if bucket_of(here) or not into:
        raise Refused(
            f"a store moves from a directory into a bucket, not from {source!r} to {target!r}",
            hint="Write the first place as a directory, and the second as s3://BUCKET/PREFIX",
        )
    stop_broker(here, private_only=True)
    with progress_bar("move", shown=output is Output.text) as bar:
        convert = durability is Durability.fsync
        moved = move_into_bucket(here, into, settings, convert=convert, progress=bar.update)
    show(output, moved._asdict(), lambda console: console.print(_sentence(source, moved)))


def _place(text: str) -> Path:
    """Return a directory, or the directory of a store in a bucket on this host."""
    location = store_location(text)
    if "://" in location:
        raise Refused(f"{text!r} is the address of a broker", hint="Name a directory, or s3://BUCKET/PREFIX")
    if bucket_of(Path(location)) and not text.startswith("s3://"):
        raise Refused(f"{text!r} is the cache of {bucket_of(Path(location))}", hint="Name the bucket")
    return Path(location).resolve()


def _sentence(source: str, moved: MoveSummary) -> str:
    held = f"{counted(moved.ledgers, 'ledger')}, {counted(moved.segments, 'segment')}"
    return (
        f"the store of {source} is in {moved.place} now: {held}, {counted(moved.entries, 'entry', 'entries')} "
        "verified. Delete the old place when you do not need it any more"
    )
