"""Goal: rows that a run has left are known from its progress. Method: progress as Spark 4.0 and 4.1 word it."""

from __future__ import annotations

from typing import Any

from pyspark_ledger.connector.read.progress import LEDGERS_MAX, LedgerLag, SourceIdentity, stream_report
from pyspark_ledger.connector.session.rows_left import FixedEnds, ends_after_one_batch
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.reads import LogStatus

PREFIX = "public/default/persistent/"
PLANNED = {"addBatch": 1, "latestOffset": 1}
REPEATED = {"addBatch": 1}
NO_BATCH = {"latestOffset": 1}


def progress(*sources: Any, durations: dict[str, int] = PLANNED) -> dict[str, Any]:
    return {"durationMs": durations, "sources": [{"endOffset": end} for end in sources]}


def source(ends: dict[str, tuple[int, int]], reached: int, ended_by: str = "maxRowsPerTrigger") -> dict[str, Any]:
    """Return the end offset of a batch up to entry `reached`. `ends` has the last entry of ledgers, and their lag."""
    lags = []
    for name, (end, rows) in ends.items():
        places = (EARLIEST, Position(0, end), EARLIEST, Position(0, end))
        left = LogStatus(PREFIX + name, "id", *places, rows=rows)
        lags.append(LedgerLag(left, left, now_ms=0))
    report = stream_report(SourceIdentity("/s", "id"), lags, ended_by, {}, {}, [], complete=True)
    ledgers = {PREFIX + name: {"ledger": 0, "entry": reached, "id": "id"} for name in ends}
    return {"v": 1, "ledgers": ledgers, "report": report}


def test_ends_are_those_of_the_first_batch() -> None:
    ends = FixedEnds()
    assert not ends.are_reached(progress(source({"orders": (30, 20)}, 10)))
    assert ends.left == {"orders": 20}
    assert not ends.are_reached(progress(source({"orders": (90, 70)}, 20)))
    assert ends.left == {"orders": 20}, "at most what was left before"
    assert ends.are_reached(progress(source({"orders": (99, 69)}, 30)))
    assert ends.left == {}


def test_a_batch_without_a_limit_leaves_nothing() -> None:
    for ended_by in ("all there was", "availableNow", "the end of the read"):
        ends = FixedEnds()
        assert ends.are_reached(progress(source({"orders": (30, 20)}, 10, ended_by)))
        assert ends.left == {}


def test_a_repeated_batch_sets_no_ends() -> None:
    ends = FixedEnds()
    assert not ends.are_reached(progress(source({"orders": (10, 0)}, 10, "all there was"), durations=REPEATED))
    assert not ends.are_reached(progress(source({"orders": (30, 10)}, 20)))
    assert ends.are_reached(progress(source({"orders": (40, 10)}, 30)))


def test_a_run_without_a_batch_is_the_end() -> None:
    ends = FixedEnds()
    assert not ends.are_reached(progress(source({"orders": (30, 20)}, 10)))
    assert ends.are_reached(progress(source({"orders": (30, 20)}, 10), durations=NO_BATCH))
    assert ends.left == {}
    assert FixedEnds().are_reached({})


def test_sources_have_ends_of_their_own_and_other_formats_none() -> None:
    ends = FixedEnds()
    assert not ends.are_reached(progress({"topic": {"0": 3}}, source({"a": (30, 20)}, 10), source({"a": (30, 5)}, 25)))
    assert ends.left == {"a": 25}
    assert not ends.are_reached(progress({"topic": {"0": 3}}, source({"a": (30, 10)}, 20), source({"a": (35, 5)}, 30)))
    assert ends.left == {"a": 10}
    assert not ends_after_one_batch(progress({"topic": {"0": 3}}))


def test_every_one_of_many_ledgers_has_an_end() -> None:
    many = {f"orders-{number}": (30, 20 + number) for number in range(LEDGERS_MAX + 5)}
    ends = FixedEnds()
    assert not ends.are_reached(progress(source(many, 10)))
    assert ends.left == {name: rows for name, (_, rows) in many.items()}


def test_a_deleted_ledger_and_a_new_one_of_its_name_are_not_waited_for() -> None:
    ends = FixedEnds()
    assert not ends.are_reached(progress(source({"orders": (30, 20), "clicks": (30, 20)}, 10)))
    later = source({"clicks": (30, 10)}, 20)
    later["report"]["ledgers"][PREFIX + "clicks"]["id"] = "another"
    assert ends.are_reached(progress(later))


def test_a_bucket_without_a_report_ends_when_a_run_reads_nothing() -> None:
    bucket = {"v": 1, "ledgers": {PREFIX + "t": {"ledger": 0, "entry": 3, "id": "id"}}}
    both = progress(bucket, source({"orders": (30, 0)}, 30, "all there was"))
    ends = FixedEnds()
    assert ends_after_one_batch(both)
    assert not ends.are_reached(both)
    assert ends.are_reached({**both, "durationMs": NO_BATCH})
