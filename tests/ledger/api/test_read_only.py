"""Goal: a store is read without its broker, and not a byte of it changes. Method: stores that are closed, in use, and
left by a broker that was killed; the directory compared before and after."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.actions import StopBroker
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.log import LogRig


def state(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file but SQLite's own shared memory, which a reader may use beside a writer."""
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.suffix != ".sqlite-shm":
            found[str(file)] = (file.stat().st_size, file.stat().st_mtime_ns, file.read_bytes())
    return found


def values(path: Path, start: Position = EARLIEST) -> list[bytes]:
    return [row["value"] for row in open_read_only(path).ledger("log").read(start).to_pylist()]


def test_a_store_in_use_is_read_as_far_as_it_is_acknowledged(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    before = state(rig.path)
    assert values(rig.path) == [b"0", b"1", b"2", b"3"]
    assert values(rig.path, Position(0, 2)) == [b"2", b"3"]
    assert state(rig.path) == before
    rig.append(b"4")
    assert values(rig.path) == [b"0", b"1", b"2", b"3", b"4"], "asked again, it sees more"
    rig.append(b"5", b"6")
    assert values(rig.path) == [b"%d" % number for number in range(7)], "over the next ledger, too"


def test_what_a_killed_broker_left_is_read_and_left_as_it_is(rig: LogRig, tmp_path: Path) -> None:
    """A copy of the files while they are written is what a power cut leaves."""
    rig.append(b"0", b"1", b"2", b"3")
    copy = tmp_path / "copy"
    shutil.copytree(rig.path, copy, ignore=shutil.ignore_patterns("*-shm"))
    before = {name: found[2] for name, found in state(copy).items()}
    assert values(copy) == [b"0", b"1", b"2", b"3"]
    assert {name: found[2] for name, found in state(copy).items()} == before
    assert not (copy / "ledgers" / "1.torn").exists()


def test_a_closed_store_in_a_directory_that_cannot_be_written(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.cursor("c", Position(0, 2))
    rig.store.close()
    before = state(rig.path)
    for directory in (rig.path, rig.path / "ledgers"):
        os.chmod(directory, 0o500)  # noqa: PTH101
    try:
        log = open_read_only(rig.path).ledger("log")
        described = log.describe()
        assert (described.rows, described.cursors, len(described.segments)) == (4, ["c"], 2)
        assert log.end().end == Position(1, 1)
        assert [batch.num_rows for batch in log.follow(wait=0)] == [4]
        assert log.position_at(0) == Position(0, 0)
    finally:
        for directory in (rig.path, rig.path / "ledgers"):
            os.chmod(directory, 0o700)  # noqa: PTH101
    assert state(rig.path) == before


def test_what_would_change_the_store_is_refused(rig: LogRig) -> None:
    rig.append(b"0")
    rig.cursor("c")
    store = open_read_only(rig.path)
    log = store.ledger("log")
    for change in (
        lambda: log.append(b"x"),
        lambda: log.cursor("new"),
        log.trim,
        log.terminate,
        lambda: log.set_policy(retentionSizeInMB=1),
        lambda: log.change_properties({"a": "1"}),
        lambda: store.delete("log"),
    ):
        with pytest.raises(Refused, match="opened for reading only"):
            change()
    assert values(rig.path) == [b"0"]
    assert store.names() == ["public/default/persistent/log"]


def test_trimmed_and_ended_logs_say_so(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.retain(0, 0)
    rig.store.ledger("log").trim()
    rig.store.ledger("log").terminate()
    log = open_read_only(rig.path).ledger("log")
    assert (log.end().start, log.end().terminated) == (Position(1, 0), True)
    with pytest.raises(DataLoss, match=r"\[0:1, 0:3\).*trimmed"):
        log.read(Position(0, 1))
    assert [batch.num_rows for batch in log.follow()] == [1], "and the loop ends"


def test_what_is_not_there_is_named(rig: LogRig, tmp_path: Path) -> None:
    rig.append(b"0")
    with pytest.raises(NotFound, match="Did you mean 'log'"):
        open_read_only(rig.path).ledger("lgo").end()
    with pytest.raises(NotFound, match=r"metadata\.sqlite is missing"):
        open_read_only(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(Refused, match="is a broker's address"):
        open_read_only("grpc://127.0.0.1:1")


def test_columns_are_read_beside_a_running_broker(store_path: Path) -> None:
    store = connect(store_path)
    orders = store.ledger("orders")
    orders.append([{"id": 1, "total": 9.5}, {"id": 2, "total": None}])
    try:
        found = open_read_only(store_path).ledger("orders")
        assert found.read().to_pylist() == orders.read().to_pylist()
        assert found.schema() == orders.schema()
    finally:
        store.client.ask(StopBroker())


def test_what_a_cursor_acknowledged_is_seen_and_left_as_it_is(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.cursor("c")
    rig.store.cursors.acknowledge("log", "c", [acknowledge_batch(*np.array([[0], [1], [-1]]))])
    before = state(rig.path)
    cursor = open_read_only(rig.path).ledger("log").cursor
    with pytest.raises(Refused):
        cursor("c")
    seen = open_read_only(rig.path).client.ask(DescribeCursor("log", "c"))
    assert (seen.acknowledged_ranges, seen.backlog_rows) == (1, 3)
    assert state(rig.path) == before
    rig.reopen()
    seen = open_read_only(rig.path).client.ask(DescribeCursor("log", "c"))
    assert (seen.acknowledged_ranges, seen.backlog_rows, seen.cursor_ledger) == (1, 3, -1)
