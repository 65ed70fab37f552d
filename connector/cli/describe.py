"""`ledger describe`: the columns of a ledger, its end, segments and cursors.

With `--cache` it prints the figures of the broker's cache for the ledger, and the positions of its readers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from pyspark_ledger.connector.cli.ledgers import (
    EpochMs,
    Name,
    Output,
    OutputOption,
    StoreOption,
    cursor_label,
    cursor_states,
    fail,
    ledger_table,
    opened,
    reporting,
    show,
)
from pyspark_ledger.connector.cli.wording import counted, next_words, time_words
from pyspark_ledger.ledger.client.schemas import registered_columns
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, LedgerDescription, SegmentDescription
from pyspark_ledger.ledger.protocol.cache import AskCache, CacheMetrics, LedgerCacheMetrics
from pyspark_ledger.ledger.protocol.cursors import CursorState


class Column(msgspec.Struct, frozen=True):
    """Column of a ledger, and its Arrow type."""

    name: str
    type: str


@reporting
def describe(
    name: Name,
    cache: Annotated[
        bool, typer.Option("--cache", help="Print the figures of the broker's cache, and the ledger's readers.")
    ] = False,
    epoch_ms: EpochMs = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Describe a ledger: its columns, its end, its segments, its cursors."""
    client = opened(store).client
    described = client.ask(DescribeLedger(canonical_name(name)))
    if cache:
        metrics = client.ask(AskCache())
        show(output, metrics, lambda console: _show_cache(console, metrics, described.name))
        return
    # A partition has no columns before its first row, so the partition with the newest schema is described.
    written = max(described.partitions or [described], key=lambda log: log.schema_version)
    registered = registered_columns(client.ask, written.name)
    columns = [Column(field.name, str(field.type)) for field in registered or ()]
    if output is Output.json:
        show(output, {**msgspec.structs.asdict(described), "columns": columns}, lambda _: None)
        return
    states, damage = cursor_states(client, described)
    schema = _schema_words(written.schema_version, columns)
    show(output, described, lambda console: _describe(console, described, schema, states, time_words(epoch_ms)))
    fail(*damage)


def _describe(
    console: Console,
    described: LedgerDescription,
    schema: str,
    cursors: list[CursorState],
    time: Callable[[int], str],
) -> None:
    console.print(f"{visible(described.name)}  ({described.incarnation})")
    where = f"[{next_words(described.start)}, {next_words(described.end)})"
    if described.partitions:
        where = counted(len(described.partitions), "partition")
    held = f"{counted(described.rows, 'row')} in {counted(described.entries, 'entry', 'entries')}"
    console.print(f"  {held}, {where}")
    if described.last_publish_ms:
        console.print(f"  last append: {time(described.last_publish_ms)}")
    console.print(f"  columns: {schema}")
    console.print(f"  durability: {described.durability}")
    console.print(f"  cursors: {', '.join(map(visible, described.cursors)) or 'none'}")
    for state in cursors:
        # The cursor has a backlog. A query of Spark used the cursor, and no query uses it now. Most likely the backlog
        # is the last batch of that query.
        if state.replay_floor is not None and state.backlog_rows and not state.lease_holder:
            console.print(
                f"  {cursor_label(state, described)}: {counted(state.backlog_rows, 'row')} not acknowledged. "
                "The last batch of a query stays in the backlog until the query starts again, without session(), "
                "configure(), serve() or catch_up()"
            )
    if described.terminated is not None:
        console.print(f"  terminated: its last entry is {described.terminated}")
    if described.partitions:
        console.print(ledger_table(described.partitions, "partition"))
        return
    console.print(_segment_table(described.segments, time))


def _schema_words(version: int, columns: list[Column]) -> str:
    if version < 0:
        return "none"
    typed = ", ".join(f"{visible(column.name)} {column.type}" for column in columns)
    return f"{typed or 'a payload schema'} (version {version})"


def _segment_table(segments: list[SegmentDescription], time: Callable[[int], str]) -> Table:
    table = Table("segment", "entries", "rows", "bytes", "state")
    for segment in segments:
        numbers = (segment.entries, segment.rows, segment.size_bytes)
        state = f"sealed {time(segment.close_ms)}" if segment.close_ms else "open"
        table.add_row(str(segment.ledger_id), *(f"{number:,}" for number in numbers), state)
    return table


def _show_cache(console: Console, metrics: CacheMetrics, name: str) -> None:
    """Print the cache's figures for a ledger (or each partition), then for all ledgers. Then print the readers."""
    parts = [part for part in metrics.ledgers if part.name == name or part.name.startswith(f"{name}-partition-")]
    table = Table("cache", *[part.name.rsplit("/", 1)[-1] for part in parts], "all ledgers")
    for title, field in (
        ("entries served from memory", "memory_hits"),
        ("entries served by the page cache", "page_cache_hits"),
        ("entries read from local files", "file_misses"),
        ("entries read from object storage", "object_misses"),
        ("bytes served from memory", "memory_hit_bytes"),
        ("bytes served by the page cache", "page_cache_hit_bytes"),
        ("bytes read from local files", "file_miss_bytes"),
        ("bytes read from object storage", "object_miss_bytes"),
        ("bytes prefetched from object storage", "ahead_bytes"),
        ("milliseconds that queries waited for other queries", "waited_ms"),
        ("entries cached", "entries"),
        ("entries inserted", "inserted"),
        ("entries evicted", "evicted"),
        ("bytes in memory", "size_bytes"),
        ("bytes of recently used local files", "local_file_bytes"),
        ("expected reads", "expected_reads"),
        ("bytes that a reader still needs", "non_evictable_bytes"),
    ):
        table.add_row(title, *[f"{getattr(part, field):,}" for part in [*parts, metrics]])
    console.print(table)
    console.print(
        f"policy {metrics.policy}, {metrics.size_bytes:,} of {metrics.limit_bytes:,} bytes of memory in use, "
        f"{metrics.lingering_bytes:,} evicted and still referenced by readers, "
        f"{metrics.inflight_read_bytes:,} being read from storage; "
        f"{metrics.local_file_bytes:,} of {metrics.local_file_limit_bytes:,} bytes of recently used local files; "
        f"{counted(metrics.evictions, 'eviction')} at the limit in {metrics.eviction_nanos / 1e6:,.1f} ms, "
        f"{counted(metrics.requeues, 'postponed eviction')}"
    )
    if any(part.readers for part in parts):
        console.print(_readers(parts))


def _readers(parts: list[LedgerCacheMetrics]) -> Table:
    table = Table("reader", "ledger", "acknowledged up to", "reads next")
    for part in parts:
        for reader in part.readers:
            table.add_row(reader.reader, part.name.rsplit("/", 1)[-1], str(reader.position), str(reader.next_position))
    return table
