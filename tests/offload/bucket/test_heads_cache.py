"""Goal: heads are kept up to a limit, the least recently used ones leave first. Method: a cache of ten entries."""

from __future__ import annotations

import numpy as np

from pyspark_ledger.ledger.message.run_marker import RunId
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.offload.bucket.entry_heads import EntryHeads
from pyspark_ledger.offload.bucket.heads_cache import HeadsCache


def heads(entries: int) -> EntryHeads:
    return EntryHeads(1, np.arange(entries))


def test_the_least_recently_used_segment_is_evicted() -> None:
    cache = HeadsCache(10)
    kept = {name: heads(4) for name in "abc"}
    cache.put("a", kept["a"])
    cache.put("b", kept["b"])
    assert cache.get("a") is kept["a"]
    cache.put("c", kept["c"])
    assert cache.get("b") is None
    assert cache.get("a") is kept["a"]
    assert cache.get("c") is kept["c"]


def test_a_segment_above_the_limit_is_not_kept_and_evicts_nothing() -> None:
    cache = HeadsCache(10)
    cache.put("small", heads(10))
    cache.put("large", heads(11))
    assert cache.get("large") is None
    assert cache.get("small") is not None


def test_entries_of_transactions_count_tenfold() -> None:
    cache, one = HeadsCache(10), heads(1)
    one.transactional.append((Position(1, 0), RunId(1, 2)))
    cache.put("one", one)
    assert cache.get("one") is None


def test_heads_put_twice_count_once() -> None:
    cache = HeadsCache(10)
    for _ in range(3):
        cache.put("a", heads(5))
    cache.put("b", heads(5))
    assert cache.get("a") is not None
    assert cache.get("b") is not None
