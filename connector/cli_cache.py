"""`ledger describe --cache`: what the broker's cache holds of a ledger, for whom, and what it spared."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ledger.cache_calls import CacheMetrics, LedgerCacheMetrics


def show_cache(console: Console, counted: CacheMetrics, name: str) -> None:
    """The part of one ledger, its partitions each, beside the whole; then who reads."""
    parts = [part for part in counted.ledgers if part.name == name or part.name.startswith(f"{name}-partition-")]
    table = Table("cache", *[part.name.rsplit("/", 1)[-1] for part in parts], "all ledgers")
    for title, field in (
        ("entries served from the cache", "hits"),
        ("entries read from storage", "misses"),
        ("bytes served from the cache", "hit_bytes"),
        ("bytes read from storage", "miss_bytes"),
        ("bytes of these that were read ahead", "ahead_bytes"),
        ("milliseconds that queries waited for others", "waited_ms"),
        ("entries cached", "entries"),
        ("entries put into the cache", "inserted"),
        ("entries let go of", "evicted"),
        ("bytes held", "size_bytes"),
        ("expected reads", "expected_reads"),
        ("bytes that are expected", "non_evictable_bytes"),
    ):
        table.add_row(title, *[f"{getattr(part, field):,}" for part in [*parts, counted]])
    console.print(table)
    console.print(
        f"policy {counted.policy}, {counted.size_bytes:,} of {counted.limit_bytes:,} bytes taken, "
        f"{counted.lingering_bytes:,} let go of and in readers' hands, "
        f"{counted.inflight_read_bytes:,} on their way from storage; "
        f"{counted.evictions:,} evictions by size in {counted.eviction_nanos / 1e6:,.1f} ms, "
        f"{counted.requeues:,} lives extended"
    )
    if any(part.readers for part in parts):
        console.print(_readers(parts))


def _readers(parts: list[LedgerCacheMetrics]) -> Table:
    table = Table("reader", "ledger", "acknowledged up to", "reads next")
    for part in parts:
        for reader in part.readers:
            table.add_row(reader.reader, part.name.rsplit("/", 1)[-1], str(reader.position), str(reader.next_position))
    return table
