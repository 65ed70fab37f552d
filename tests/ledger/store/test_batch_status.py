"""Goal: many logs in one answer are what each says alone; what is missing or was trimmed is said. Method: a real store,
its clock moved by hand.
"""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskSchemas, CreateLedger, RegisterSchema
from pyspark_ledger.ledger.protocol.reads import (
    AskLimitedRanges,
    AskLogStatuses,
    LimitedRange,
    LocateRanges,
    Places,
    ReadProgress,
    ReadRequest,
    SplitRanges,
    SplitRequest,
)
from pyspark_ledger.ledger.store.batch_status import BatchStatus
from tests.rigs.entry import entry
from tests.rigs.log import LogRig

PREFIX = "public/default/persistent/"


@pytest.fixture
def status(rig: LogRig) -> BatchStatus:
    return BatchStatus(rig.store, lambda: rig.now)


def test_a_name_stands_for_its_partitions_and_a_missing_one_is_said(rig: LogRig, status: BatchStatus) -> None:
    rig.append(b"1", b"2", name="a")
    rig.store.create_partitioned(CreateLedger("p", partitions=3))
    rig.store.ledger("p-partition-1").append([entry(b"x")]).result()
    found = status.statuses(AskLogStatuses(["a", "p", "gone"]))
    parts = [f"{PREFIX}p-partition-{number}" for number in range(3)]
    assert [log.name for log in found.logs] == [f"{PREFIX}a", *parts]
    assert [log.rows for log in found.logs] == [2, 0, 1, 0]
    assert (found.missing, found.now_ms) == ([f"{PREFIX}gone"], rig.now)
    rig.store.delete_ledger("p")
    assert status.statuses(AskLogStatuses(["p-partition-1"])).missing == [parts[1]]


def test_readings_quotas_and_splits_are_those_of_each_log(rig: LogRig, status: BatchStatus) -> None:
    for name in "ab":
        rig.append(b"1", b"2", b"3", b"4", name=name)
    a, b = (rig.store.ledger(name) for name in "ab")
    readings = {a.name: ReadProgress(Position(0, 1), a.incarnation), b.name: ReadProgress(LATEST)}
    of_a, of_b = status.statuses(AskLogStatuses(["a", "b"], readings)).logs
    assert (of_a.rows, of_a.head_rows, of_b.rows, of_b.begin) == (3, 1, 0, b.snapshot.end)
    whole = PositionRange(EARLIEST, LATEST)
    quotas = [LimitedRange("a", whole, 3, 10**9), LimitedRange("b", whole, 0, 10**9)]
    assert [part.rows for part in status.limit(AskLimitedRanges(quotas)).parts] == [3, 0]
    cut = status.split(SplitRanges([SplitRequest("a", whole, 1), SplitRequest("b", whole, 2**40)])).ranges
    assert [sum(part.entries for part in parts.parts) for parts in cut] == [4, 4]
    assert [part.range for part in cut[0].parts] == [part.range for part in a.split(whole, 1, 1024)]
    with pytest.raises(NotFound, match="there is no ledger 'c'"):
        status.limit(AskLimitedRanges([LimitedRange("c", whole, 1, 1)]))


def test_places_are_all_mapped_or_none(rig: LogRig, status: BatchStatus) -> None:
    asked = LocateRanges([ReadRequest(name, PositionRange(EARLIEST, LATEST)) for name in "ab"], token="t")
    seen: list[ReadRequest] = []

    def locate(request: ReadRequest) -> Places:
        seen.append(request)
        return Places(request.name == "a")

    assert status.locate(asked, locate).ranges == []
    assert {request.token for request in seen} == {"t"}
    assert status.locate(asked, lambda _: Places(True)).ranges == [Places(True), Places(True)]


def test_schemas_are_told_once_each(rig: LogRig, status: BatchStatus) -> None:
    for name in "abc":
        rig.log(name)
    body = b'{"type":"STRING"}'
    for name in "ab":
        rig.store.register_schema(RegisterSchema(name, body))
    found = status.schemas(AskSchemas(["a", "b", "c", "gone"])).schemas
    assert [(one.version, one.arrow_schema, len(one.names)) for one in found] == [(0, body, 2), (-1, b"", 1)]


def test_what_was_trimmed_is_remembered_for_as_long_as_the_log(rig: LogRig, status: BatchStatus) -> None:
    rig.append(*[b"%d" % number for number in range(7)])  # ledgers 0, 1, 2 of 3, 3 and 1 entries
    log = rig.store.ledger("log")
    sizes = [part.size_bytes for part in log.snapshot.segments]
    rig.retain(0, 0)
    rig.now += 10 * 60_000
    assert log.trim().ledgers == [0, 1]
    rig.reopen()
    reading = {log.name: ReadProgress(Position(0, 1), log.incarnation)}

    def lost() -> object:
        return status.statuses(AskLogStatuses(["log"], reading)).logs[0].trimmed

    status = BatchStatus(rig.store, lambda: rig.now)
    found = lost()
    assert found.range == PositionRange(Position(0, 1), Position(1, 3))
    assert (found.entries, found.rows, found.known) == (5, 5, True)
    assert found.size_bytes == sizes[0] * 2 // 3 + sizes[1]
    rig.store.delete_ledger("log")
    rig.log()
    assert lost() is None
