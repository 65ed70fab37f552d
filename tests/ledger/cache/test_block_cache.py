"""Goal: the cache lets go of what was deleted. Method: real files, counted hits and misses."""

from __future__ import annotations

from pathlib import Path

from ledger.cache.block_cache import BlockCache
from ledger.segment_reader import SegmentBlock


def test_what_was_deleted_is_let_go_of(tmp_path: Path) -> None:
    cache = BlockCache(1000)
    blocks = []
    for ledger_id in (1, 2):
        path = tmp_path / f"{ledger_id}.ledger"
        path.write_bytes(bytes(200))
        blocks.append(SegmentBlock(ledger_id, 0, 1, path, 0, 200))
        cache.read(blocks[-1])
    cache.forget({1, 7})
    assert cache.metrics().size_bytes == 200
    cache.read(blocks[1])
    assert cache.metrics().hits == 1
    cache.read(blocks[0])
    assert cache.metrics().misses == 3
