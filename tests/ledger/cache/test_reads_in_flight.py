"""Goal: of what is wanted at the same time, each entry is read by one. Method: claims that overlap in every way."""

from __future__ import annotations

from pyspark_ledger.ledger.cache.reads_in_flight import PendingReads


def parts(reads: PendingReads[int], first: int, end: int, ledger_id: int = 1) -> list[tuple[int, int, bool]]:
    return [(part.first, part.end, part.own) for part in reads.claim(ledger_id, first, end)]


def test_claims_share_what_overlaps() -> None:
    reads: PendingReads[int] = PendingReads()
    assert parts(reads, 10, 20) == [(10, 20, True)]
    assert parts(reads, 10, 20) == [(10, 20, False)]
    assert parts(reads, 12, 15) == [(12, 15, False)]
    assert parts(reads, 5, 30) == [(5, 10, True), (10, 20, False), (20, 30, True)]
    assert parts(reads, 0, 40) == [(0, 5, True), (5, 10, False), (10, 20, False), (20, 30, False), (30, 40, True)]
    assert parts(reads, 10, 20, ledger_id=2) == [(10, 20, True)]
    assert len(reads) == 6


def test_what_is_settled_is_read_anew() -> None:
    reads: PendingReads[int] = PendingReads()
    (mine,) = reads.claim(1, 0, 10)
    (theirs,) = reads.claim(1, 0, 10)
    reads.settle(mine.read)
    mine.read.future.set_result(7)
    assert theirs.read.future.result() == 7
    assert len(reads) == 0
    assert parts(reads, 0, 10) == [(0, 10, True)]
