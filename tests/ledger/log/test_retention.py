"""Goal: what retention lets go is what Pulsar lets go. Method: tables of values, every limit on both its sides."""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.log.retention import RetainedSegment, expendable
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.ledgers import NOT_PUBLISHED, PublishedNote, published_everywhere
from pyspark_ledger.ledger.settings.broker import Settings

NOW = 1_000_000
MINUTE = 60_000


def ledgers(*ages: int | None, size: int = 10) -> list[RetainedSegment]:
    """Ledgers 0, 2, 4, … of 3 entries that were sealed so many ms ago; None is open."""
    return [RetainedSegment(2 * number, 3, size, 0 if age is None else NOW - age) for number, age in enumerate(ages)]


def gone(
    held: list[RetainedSegment], *, ms: int = -1, size: int = -1, slowest: Position | None = None, now: int = NOW
) -> list[int]:
    policy = LedgerPolicy(512, 5, 1000, retention_ms=ms, retention_bytes=size)
    return [ledger.ledger_id for ledger in expendable(held, sum(one.size_bytes for one in held), slowest, policy, now)]


@pytest.mark.parametrize(
    ("ms", "size", "expected"),
    [
        (-1, -1, []),
        (-1, 0, [0, 2, 4]),
        (0, 0, [0, 2, 4]),
        (0, -1, [0, 2, 4]),
        (49, -1, [0, 2, 4]),
        (50, -1, [0, 2]),
        (100, -1, [0]),
        (200, -1, []),
        (-1, 10, [0, 2, 4]),
        (-1, 11, [0, 2]),
        (-1, 20, [0, 2]),
        (-1, 30, [0]),
        (-1, 31, []),
        (-1, 40, []),
        (100, 20, [0, 2]),
        (50, 31, [0, 2]),
        (200, 31, []),
    ],
)
def test_expired_or_over_quota_oldest_first(ms: int, size: int, expected: list[int]) -> None:
    assert gone(ledgers(200, 100, 50, None), ms=ms, size=size) == expected


@pytest.mark.parametrize(("published", "expected"), [(-1, []), (0, [0]), (1, [0]), (2, [0, 2]), (9, [0, 2, 4])])
def test_what_is_published_goes_and_waits_for_cursors(published: int, expected: list[int]) -> None:
    held, policy = ledgers(200, 100, 50, None), LedgerPolicy(512, 5, 1000, published=published)
    assert [
        one.ledger_id for one in expendable(held, sum(one.size_bytes for one in held), None, policy, NOW)
    ] == expected
    read = Position(2, 1)
    assert [
        one.ledger_id for one in expendable(held, sum(one.size_bytes for one in held), read, policy, NOW)
    ] == expected[:1], "a cursor needs ledger 2"


def test_the_table_that_is_behind_counts() -> None:
    notes = [PublishedNote("a", 7).properties("/a"), PublishedNote("b", 4).properties("s3a://b/t")]
    assert PublishedNote.of(notes[1], "s3a://b/t") == PublishedNote("b", 4)
    assert PublishedNote.of({}, "/a") is None
    assert published_everywhere({"owner": "x", **notes[0]}) == 7
    assert published_everywhere({**notes[0], **notes[1]}) == 4
    assert published_everywhere({**notes[0], "published:/c": "garbled"}) == NOT_PUBLISHED
    assert published_everywhere({"owner": "x"}) == NOT_PUBLISHED
    info = ManagedLedgerInfo()
    for key, value in notes[0].items():
        info.properties.add(key=key, value=value)
    assert LedgerPolicy.of(info, {}, {}, Settings()).published == NOT_PUBLISHED, "nobody said deleteAfterPublish"
    assert LedgerPolicy.of(info, {"deleteAfterPublish": 1}, {}, Settings()).published == 7
    assert LedgerPolicy.of(info, {}, {"deleteAfterPublish": 1}, Settings()).published == 7
    assert LedgerPolicy.of(info, {"deleteAfterPublish": 0}, {}, Settings(deleteAfterPublish=1)).keeps_everything


def test_the_first_that_stays_keeps_all_after_it() -> None:
    """The clock went back while the second was sealed: it is older than the first, and waits for it."""
    assert gone(ledgers(10, 200, 300, None), ms=100) == []


def test_a_clock_that_went_back_deletes_nothing() -> None:
    assert gone(ledgers(200, 100, None), ms=50, now=NOW - 10_000) == []
    assert gone(ledgers(0, None), ms=0) == [], "not one millisecond old"


@pytest.mark.parametrize(
    ("slowest", "expected"),
    [
        (None, [0, 2, 4]),
        (Position(-1, 0), []),
        (Position(0, 0), []),
        (Position(0, 2), []),
        (Position(0, 3), [0]),
        (Position(2, 0), [0]),
        (Position(2, 3), [0, 2]),
        (Position(3, 0), [0, 2]),
        (Position(4, 3), [0, 2, 4]),
        (Position(6, 1), [0, 2, 4]),
    ],
)
def test_nothing_goes_that_the_slowest_cursor_has_not_read(slowest: Position | None, expected: list[int]) -> None:
    assert gone(ledgers(200, 100, 50, None), ms=0, size=0, slowest=slowest) == expected


def test_the_open_ledger_never_goes_and_the_last_sealed_one_may() -> None:
    assert gone(ledgers(None), ms=0, size=0) == []
    assert gone(ledgers(100), ms=0, size=0) == [0]
    assert gone([], ms=0, size=0) == []
