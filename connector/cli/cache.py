"""`ledger describe --cache`: what the broker's cache holds of a ledger, for which readers, and the saved reads."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from pyspark_ledger.connector.cli.wording import counted as count_of
from pyspark_ledger.ledger.protocol.cache import CacheMetrics, LedgerCacheMetrics


def show_cache(console: Console, counted: CacheMetrics, name: str) -> None:
    """Print the numbers of one ledger, or of each partition, beside the whole; then its readers."""
    parts = [part for part in counted.ledgers if part.name == name or part.name.startswith(f"{name}-partition-")]
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
        ("bytes read ahead from object storage", "ahead_bytes"),
        ("milliseconds that queries waited for others", "waited_ms"),
        ("entries cached", "entries"),
        ("entries put into the cache", "inserted"),
        ("entries let go of", "evicted"),
        ("bytes held in memory", "size_bytes"),
        ("bytes of local files accounted for", "local_file_bytes"),
        ("expected reads", "expected_reads"),
        ("bytes that are expected", "non_evictable_bytes"),
    ):
        table.add_row(title, *[f"{getattr(part, field):,}" for part in [*parts, counted]])
    console.print(table)
    console.print(
        f"policy {counted.policy}, {counted.size_bytes:,} of {counted.limit_bytes:,} bytes of memory taken, "
        f"{counted.lingering_bytes:,} evicted and still referenced by readers, "
        f"{counted.inflight_read_bytes:,} on their way from storage; "
        f"{counted.local_file_bytes:,} of {counted.local_file_limit_bytes:,} bytes of local files accounted for; "
        f"{count_of(counted.evictions, 'eviction')} by size in {counted.eviction_nanos / 1e6:,.1f} ms, "
        f"{count_of(counted.requeues, 'life', 'lives')} extended"
    )
    if any(part.readers for part in parts):
        console.print(_readers(parts))


def _readers(parts: list[LedgerCacheMetrics]) -> Table:
    table = Table("reader", "ledger", "acknowledged up to", "reads next")
    for part in parts:
        for reader in part.readers:
            table.add_row(reader.reader, part.name.rsplit("/", 1)[-1], str(reader.position), str(reader.next_position))
    return table
