"""Goal: one function decides whether a batch is new, a repetition, or of another history. Method: a table of cases."""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.log.segments.repeated_batches import DeletedRun, judge, judge_queued
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RunOrigin
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.commits import BatchOrigin, CommitRun, RepeatedBatches, StagedPart

BATCH = 5  # number of the newest batch, which has ten rows
OFFSETS, SUMS, NEITHER = RunOrigin("a", numbering=1), RunOrigin(sums="s", numbering=1), RunOrigin(numbering=1)
EARLIER = RunOrigin()  # an earlier version has written the run
APPENDED = RunOrigin(offsets="a", numbering=2)


def newest(origin: RunOrigin) -> CommittedBatch:
    return CommittedBatch("q", BATCH, EARLIEST, EARLIEST, 1, 10, 0, False, origin)


def request(batch: int, origin: BatchOrigin, rows: int = 10) -> CommitRun:
    return CommitRun("log", "q", batch, 1, 1, [StagedPart("p", 1, rows, 1, 1)], False, origin)


def offsets(batch: int, own: str, before: str | None = None, **more: object) -> BatchOrigin:
    known = {batch: own} if before is None else {batch: own, BATCH: before}
    return BatchOrigin(known, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recorded", "batch", "given", "numbering"),
    [
        (OFFSETS, 6, offsets(6, "b", "a"), 1),
        (OFFSETS, 9, offsets(9, "b", "a"), 1),
        (OFFSETS, 6, offsets(6, "b", ""), 1),  # the checkpoint has no offsets of the newest batch any more
        (OFFSETS, 6, BatchOrigin(sums="t"), 1),
        (SUMS, 6, offsets(6, "b"), 1),
        (NEITHER, 6, BatchOrigin(), 1),
        (EARLIER, 6, offsets(6, "b"), 1),
        (APPENDED, 6, offsets(6, "b", "a"), 2),
        (OFFSETS, 6, offsets(6, "c", "b", repeated="append"), 1),
        (OFFSETS, 5, offsets(5, "b", repeated="append"), 2),
        (APPENDED, 2, offsets(2, "b", repeated="append"), 3),
        (OFFSETS, 2, BatchOrigin(sums="t", repeated="append"), 2),
        (EARLIER, 2, BatchOrigin(repeated="append"), 2),
        (OFFSETS, 6, BatchOrigin(named=True), 1),
    ],
)
def test_a_new_batch(recorded: RunOrigin, batch: int, given: BatchOrigin, numbering: int) -> None:
    verdict = judge(request(batch, given), newest(recorded), "'log'")
    assert verdict.origin == RunOrigin(given.offsets.get(batch, ""), given.sums, numbering)
    assert bool(verdict.warning) == (given.repeated == "append")


@pytest.mark.parametrize(
    ("recorded", "batch", "given", "rows"),
    [
        (OFFSETS, 5, offsets(5, "a"), 99),
        (OFFSETS, 5, offsets(5, "a", staged=False), 0),
        (OFFSETS, 5, offsets(5, "a", repeated="append"), 99),
        (SUMS, 5, BatchOrigin(sums="s"), 10),
        (SUMS, 5, offsets(5, "b", sums="s"), 10),
        (OFFSETS, 5, BatchOrigin(sums="s"), 10),  # only the numbers of rows are known of both
        (EARLIER, 5, BatchOrigin(sums="s"), 99),
        (EARLIER, 5, offsets(5, "b"), 99),
        (NEITHER, 5, offsets(5, "b", sums="s"), 10),
        (OFFSETS, 5, offsets(5, "b", repeated="skip"), 99),
        (OFFSETS, 2, offsets(2, "b", repeated="skip"), 99),
        (OFFSETS, 5, BatchOrigin(named=True), 99),
        (OFFSETS, 2, BatchOrigin(named=True, staged=False), 0),
    ],
)
def test_a_repetition(recorded: RunOrigin, batch: int, given: BatchOrigin, rows: int) -> None:
    verdict = judge(request(batch, given, rows), newest(recorded), "'log'")
    assert (verdict.origin, verdict.asked) == (None, -1)
    assert bool(verdict.warning) == (given.repeated == "skip")


@pytest.mark.parametrize(
    ("recorded", "batch", "given", "rows", "said"),
    [
        (OFFSETS, 5, offsets(5, "b"), 10, "is in 'log' with offsets a, and now has offsets b"),
        (SUMS, 5, BatchOrigin(sums="t"), 10, "10 rows with sums s, and now has 10 rows with sums t"),
        (OFFSETS, 5, BatchOrigin(sums="t"), 9, "with 10 rows, and now has 9 rows"),
        (OFFSETS, 5, BatchOrigin(staged=False), 10, "rows that no task has read"),
        (OFFSETS, 4, offsets(4, "a"), 10, "batch 4 of query 'q' is below batch 5"),
        (NEITHER, 5, offsets(5, "b", sums="s"), 9, "with 10 rows, and now has 9 rows"),
        (EARLIER, 4, BatchOrigin(), 10, "batch 4 of query 'q' is below batch 5"),
        (OFFSETS, 6, offsets(6, "c", "b"), 10, "has offsets a: two copies of one checkpoint are at work"),
        (OFFSETS, 6, offsets(6, "c", "b", repeated="skip"), 10, "two copies"),
    ],
)
def test_a_batch_of_another_history(recorded: RunOrigin, batch: int, given: BatchOrigin, rows: int, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        judge(request(batch, given, rows), newest(recorded), "'log'")
    assert "'append'" in refused.value.hint
    assert ("'skip'" in refused.value.hint) == (batch <= BATCH)


def test_offsets_of_the_newest_batch_are_asked_for() -> None:
    assert judge(request(9, offsets(9, "b")), newest(OFFSETS), "'log'").asked == BATCH


def test_a_first_batch_is_new_unless_its_tasks_have_skipped_it() -> None:
    assert judge(request(7, offsets(7, "a")), None, "'log'").origin == RunOrigin("a", numbering=1)
    with pytest.raises(Refused, match="is not in the log any more"):
        judge(request(7, offsets(7, "a", staged=False)), None, "'log'")


@pytest.mark.parametrize("repeated", ["refuse", "skip"])
def test_a_ledger_that_was_created_again_gets_no_batch(repeated: RepeatedBatches) -> None:
    deleted, given = DeletedRun(6, "first", "second"), offsets(7, "b", repeated=repeated)
    with pytest.raises(Refused, match=r"up to 6 to incarnation first .* again as incarnation second"):
        judge(request(7, given), None, "'log'", deleted)
    assert judge(request(7, offsets(7, "b", repeated="append")), None, "'log'", deleted).warning
    assert not judge(request(7, BatchOrigin(named=True)), None, "'log'", deleted).warning


def test_a_batch_that_was_judged_is_compared_by_numbering_and_number() -> None:
    later, same, earlier = (RunOrigin(numbering=number) for number in (3, 2, 1))
    found = [
        judge_queued(request(batch, BatchOrigin()), decided, newest(APPENDED), "'log'").origin
        for decided, batch in ((later, 1), (same, 6), (same, 5), (earlier, 9))
    ]
    assert found == [later, same, None, None]
