"""Goal: what is acknowledged by the name of a partitioned ledger goes to the partitions that it is of, those of trimmed
ledgers too. Method: a store in this process, and a count of what its records are asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.log.segments.log_segments import LogSegments
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecords
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand, CreateLedger
from pyspark_ledger.ledger.protocol.cursors import NextDelivery
from pyspark_ledger.ledger.store.partition_acknowledgement import parts_of, whole_state
from tests.rigs.entry import entry
from tests.rigs.log import BLOCK, LogRig

COMMAND = AcknowledgeCommand("wide", "c")
MOST = 1024 * 1024


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    """Three partitions of four ledgers of one entry each; retention has taken the first two of each."""
    rig = LogRig(tmp_path / "store")
    rig.store.create_partitioned(CreateLedger("wide", partitions=3, block_bytes=BLOCK, max_entries_per_ledger=1))
    for log in rig.store.logs("wide"):
        ledger = rig.store.ledger(log)
        for _ in range(4):
            ledger.append([entry(b"x")]).result()
        rig.cursor("c", EARLIEST, log)
        rig.retain(0, 0, log)
        rig.acknowledge("c", Position(rig.ids(log)[2], 0), log=log)
    rig.now += 10
    for log in rig.store.logs("wide"):
        rig.store.ledger(log).trim()
        assert len(rig.store.acknowledgements.trimmed_off(log)) == 2
    yield rig
    rig.store.close()


def lines(*ids: int) -> pa.RecordBatch:
    return acknowledge_batch(*np.array([(ledger_id, 0, -1) for ledger_id in ids], dtype=np.int64).T)


def split(rig: LogRig, *batches: pa.RecordBatch) -> dict[str, list[int]]:
    """The ledgers of each log's part of a call."""
    parts = parts_of(rig.store, COMMAND, batches, MOST)
    return {
        command.ledger: sorted(one for batch in mine for one in batch.column(0).to_pylist()) for command, mine in parts
    }


def test_a_call_walks_over_neither_segments_nor_cursors(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {log: rig.ids(log)[-1] for log in rig.store.logs("wide")}
    monkeypatch.setattr(LogSegments, "__iter__", None)
    monkeypatch.setattr(CursorRecords, "names", None)
    found = parts_of(rig.store, COMMAND, [lines(*ids.values())], MOST)
    assert [command.ledger for command, _ in found] == [*ids]
    assert whole_state(rig.store, COMMAND, []).backlog_entries == 6


def test_each_partition_gets_its_own_and_is_asked_for_them_once(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, table, asked = rig.store.logs("wide"), rig.store.acknowledgements, Counter[str]()
    gone = {log: [one.ledger_id for one in table.trimmed_off(log)] for log in logs}
    left = {log: rig.ids(log)[-1] for log in logs}
    trimmed_off = table.trimmed_off

    def counted(log: str) -> list[object]:
        asked[log] += 1
        return list(trimmed_off(log))

    monkeypatch.setattr(table, "trimmed_off", counted)
    batches = [lines(*left.values()), lines(*(one for ids in gone.values() for one in ids)), lines(left[logs[1]])]
    assert split(rig, *batches) == {
        log: sorted([*gone[log], left[log], *[left[log]] * (number == 1)]) for number, log in enumerate(logs)
    }
    # Once to tell whose ledgers are meant, and once to compare with the log that which is its.
    assert asked == dict.fromkeys(logs, 2)
    asked.clear()
    assert split(rig, lines(left[logs[2]])) == {logs[2]: [left[logs[2]]]}
    assert not asked


def test_nack_that_one_partition_cannot_do_is_not_done_by_the_others(rig: LogRig) -> None:
    logs = rig.store.logs("wide")
    ends = {log: rig.store.ledger(log).snapshot.end for log in logs}
    for log in logs[:2]:
        rig.store.deliveries.next(NextDelivery(log, "c", 0, EARLIEST, ends[log], explicit=True))
    back, left = AcknowledgeCommand("wide", "c", action="nack"), [lines(rig.ids(log)[-1]) for log in logs]
    assert len(parts_of(rig.store, back, left[:2], MOST)) == 2
    with pytest.raises(Refused, match=f"no row of '{logs[2]}' was delivered"):
        parts_of(rig.store, back, left, MOST)
    assert not rig.store.deliveries._nacked


def test_what_is_of_no_partition_is_refused(rig: LogRig) -> None:
    with pytest.raises(Refused, match="has no segment 999"):
        split(rig, lines(rig.ids(rig.store.logs("wide")[0])[-1], 999))


def test_call_for_partitions_is_bounded_before_it_is_whole(rig: LogRig) -> None:
    line, taken = lines(rig.ids(rig.store.logs("wide")[0])[-1]), []

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            taken.append(line)
            yield line

    with pytest.raises(
        Refused, match=r"'wide' has \d+ bytes or more of positions, setting 'maxMessageSize' allows 1000"
    ):
        parts_of(rig.store, COMMAND, endless(), 1000)
    assert len(taken) == 1000 // line.nbytes + 1


def test_call_for_one_log_is_not_collected(rig: LogRig) -> None:
    log = rig.store.logs("wide")[0]
    sent = iter([lines(rig.ids(log)[-1])])
    ((_, batches),) = parts_of(rig.store, AcknowledgeCommand(log, "c"), sent, 1)
    assert batches is sent
