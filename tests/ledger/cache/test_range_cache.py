"""Goal: the entries of a ledger are found by range, put once, removed once. Method: the cases of Pulsar's RangeCache by
name, then random steps beside a dictionary.

Java's reference counts, recycled wrappers and keys compared by identity have no counterpart here. A value is a range of
a block. A reference keeps it alive, and cannot be released twice.

    testPutWhileClearIsCalledConcurrently, testRemoveEntryWithInvalidRefCount, testInvalidMatchingKey: one lock over
    all of it (`ledger.cache.cache`); a range knows whether it is cached, and is removed by identity
    testGetKeyWithDifferentInstance: positions are compared by value
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.cache.range_cache import CachedRange, Invalidated, RangeCache
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from tests.rigs.cache import CountedHome, block, put_one
from tests.rigs.cache_invariants import check_range_cache


def found(cache: RangeCache, first: int, end: int) -> list[tuple[int, int]]:
    return [(piece.first, piece.end) for piece in cache.get(1, first, end).found]


def _freed(invalidated: Invalidated) -> int:
    return sum(released for _, released in invalidated.removed)


def entries(first: int, end: int) -> PositionRange:
    return PositionRange(Position(1, first), Position(1, end))


def test_simple() -> None:
    cache = RangeCache("orders")
    zero, one = put_one(cache, 0, 10, 0), put_one(cache, 1, 20, 0)
    assert (cache.size, cache.entries, len(cache)) == (30, 2, 2)
    assert cache.remove(zero) == 10
    assert cache.remove(zero) == 0
    assert found(cache, 0, 2) == [(1, 2)]
    assert cache.remove(one) == 20
    assert (cache.size, cache.entries, len(cache)) == (0, 0, 0)


def test_double_insert() -> None:
    cache = RangeCache("orders")
    first = put_one(cache, 0, 10, 0)
    assert cache.put(block(0, 1, size=99), 0) == []
    assert cache.get(1, 0, 1).found[0].span is first
    assert cache.size == 10


def test_put_same_block() -> None:
    cache, same = RangeCache("orders"), block(0, 4)
    assert len(cache.put(same, 0)) == 1
    assert cache.put(same, 0) == []
    assert same.spans == 1


def test_get_range() -> None:
    cache = RangeCache("orders")
    for entry in (0, 1, 2, 5, 6):
        put_one(cache, entry, 10, 0)
    assert found(cache, 1, 9) == [(1, 2), (2, 3), (5, 6), (6, 7)]
    assert found(cache, 3, 5) == []
    assert cache.get(1, 3, 9).missing == [(3, 5), (7, 9)]
    assert cache.get(2, 0, 3).missing == [(0, 3)]


def test_what_is_missing_of_a_block_becomes_spans_of_it_and_holds_it_whole() -> None:
    cache, storage = RangeCache("orders"), CountedHome()
    cache.put(block(3, 5), 0)
    spans = cache.put(block(0, 9, storage=storage), 0)
    assert [(span.first, span.end, span.size) for span in spans] == [(0, 3, 30), (5, 9, 40)]
    assert cache.get(1, 0, 9).missing == []
    assert [cache.remove(span) for span in spans] == [0, 90]
    assert storage.released == 1


def test_evictions_remove_half_open_ranges() -> None:
    cache = RangeCache("orders")
    for entry in range(100):
        put_one(cache, entry, 10, 0)
    assert _freed(cache.invalidate(entries(0, 10))) == 100
    assert _freed(cache.invalidate(entries(10, 10))) == 0
    assert _freed(cache.invalidate(PositionRange(EARLIEST, Position(1, 11)))) == 10
    assert cache.entries == 89
    assert sum(cache.remove(span) for span in cache) == 890


def test_a_cut_span_leaves_its_ends_and_its_block() -> None:
    cache, storage = RangeCache("orders"), CountedHome()
    (span,) = cache.put(block(0, 10, storage=storage), 7)
    span.requeues = 2
    removed, parts = cache.invalidate(entries(4, 6))
    assert (removed, storage.released) == ([(span, 0)], 0)
    assert [(part.first, part.end, part.timestamp_ms, part.requeues) for part in parts] == [(0, 4, 7, 2), (6, 10, 7, 2)]
    check_range_cache(cache)
    assert _freed(cache.invalidate(PositionRange(EARLIEST, Position(2, 0)))) == 100
    assert storage.released == 1


def test_a_span_grows_by_what_is_appended_behind_it() -> None:
    cache = RangeCache("orders")
    (span,) = cache.put(block(0, 4), 0)
    cache.grow(span, 6, 20)
    assert found(cache, 0, 9) == [(0, 6)]
    assert (cache.size, cache.entries, span.size, span.block.cut(4, 6)) == (60, 6, 60, (40, 20))
    check_range_cache(cache)


def test_a_ledger_ends_where_the_next_begins() -> None:
    cache = RangeCache("orders")
    cache.put(block(0, 5, ledger_id=1), 0)
    cache.put(block(0, 5, ledger_id=2), 0)
    assert cache.get(1, 3, 9).missing == [(5, 9)]
    assert [span.ledger_id for span in cache.until(Position(2, 4))] == [1]
    assert [span.ledger_id for span in cache.until(None)] == [1, 2]
    assert cache.last_before(2, 0) is cache.first()
    assert _freed(cache.invalidate(PositionRange(Position(1, 2), Position(2, 3)))) == 0
    assert [(span.ledger_id, span.first, span.end) for span in cache] == [(1, 0, 2), (2, 3, 5)]


STEP = st.tuples(
    st.sampled_from(["put", "get", "invalidate", "remove", "clear"]),
    st.integers(1, 2),
    st.integers(0, 20),
    st.integers(1, 8),
)


@given(st.lists(STEP, max_size=40))
def test_a_range_cache_is_a_dictionary_of_entries(steps: list[tuple[str, int, int, int]]) -> None:
    cache = RangeCache("orders")
    model: dict[tuple[int, int], CountedHome] = {}
    storages: list[CountedHome] = []
    for kind, ledger_id, first, length in steps:
        end = first + length
        wanted = [(ledger_id, entry) for entry in range(first, end)]
        if kind == "put":
            storages.append(CountedHome())
            cache.put(block(first, end, ledger_id=ledger_id, storage=storages[-1]), 0)
            model.update({key: storages[-1] for key in wanted if key not in model})
            if storages[-1] not in model.values():
                storages.pop()  # nothing of it was put
        elif kind == "invalidate":
            cache.invalidate(PositionRange(Position(ledger_id, first), Position(ledger_id, end)))
            model = {key: storage for key, storage in model.items() if key not in wanted}
        elif kind == "remove":
            spans: list[CachedRange] = list(cache)
            if spans:
                span = spans[first % len(spans)]
                cache.remove(span)
                gone = {(span.ledger_id, entry) for entry in range(span.first, span.end)}
                model = {key: storage for key, storage in model.items() if key not in gone}
        elif kind == "clear":
            for span in cache:
                cache.remove(span)
            model = {}
        hit = cache.get(ledger_id, first, end)
        held = [(ledger_id, entry) for piece in hit.found for entry in range(piece.first, piece.end)]
        lost = [(ledger_id, entry) for gap in hit.missing for entry in range(*gap)]
        assert held == [key for key in wanted if key in model]
        assert lost == [key for key in wanted if key not in model]
        for piece in hit.found:
            assert all(model[ledger_id, e] is piece.span.block.storage for e in range(piece.first, piece.end))
        assert cache.entries == len(model)
        assert all(storage.released == (storage not in model.values()) for storage in storages)
        check_range_cache(cache)
