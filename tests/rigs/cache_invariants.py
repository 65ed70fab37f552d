"""Assertions of the invariants of the cache and its sets."""

from __future__ import annotations

from itertools import pairwise

from pyspark_ledger.ledger.cache.block_storage import PinnedBlocks
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import RangeCache
from pyspark_ledger.ledger.positions.entry_ranges import EntryRanges


def check_cache(cache: EntryCache) -> None:
    with cache.still():
        for pool in cache.pools:
            spans = [span for ledger in cache.ledgers() for span in ledger.cache]
            blocks = {span.block for span in spans if cache._pool(span.block) is pool}
            assert set(pool.blocks) == blocks
            assert pool.held == sum(block.size for block in blocks)
            assert pool.held <= pool.limits.size
            check_lingering(pool.pinned)
        assert set(cache.ledgers_with_ranges()) == {ledger for ledger in cache.ledgers() if len(ledger.cache)}
        for ledger in cache.ledgers():
            check_range_cache(ledger.cache)
            check_readers(ledger.readers)
            counts = ledger.counts
            assert counts.inserted - counts.evicted == ledger.cache.entries, counts


def check_range_cache(cache: RangeCache) -> None:
    spans = list(cache._spans.items())
    assert cache.size == sum(span.size for _, span in spans), cache.name
    assert cache.entries == sum(span.entries for _, span in spans), cache.name
    for key, span in spans:
        assert key == (span.ledger_id, span.first)
        assert span.cache is cache, span
        assert span.block.first <= span.first < span.end <= span.block.end, span
        assert span.block.spans > 0, span
    for (_, left), (_, right) in pairwise(spans):
        assert (left.ledger_id, left.end) <= (right.ledger_id, right.first), (left, right)


def check_lingering(pinned: PinnedBlocks) -> None:
    assert pinned.size == sum(block.size for block in pinned._blocks)
    assert not any(block.spans for block in pinned._blocks)


def check_readers(readers: LedgerReaders) -> None:
    assert len(readers._positions) == len(readers._next) == len(readers)
    for reader in readers._readers.values():
        assert reader.at >= reader.position, reader
        check_ranges(reader.served)
        check_ranges(reader.again)
        assert all(part.end > reader.position for part in reader.served), reader


def check_ranges(ranges: EntryRanges) -> None:
    for starts, ends in ranges._ledgers.values():
        assert starts, "the cache has a ledger without entries"
        edges = [edge for pair in zip(starts, ends, strict=True) for edge in pair]
        assert all(a < b for a, b in pairwise(edges)), edges
