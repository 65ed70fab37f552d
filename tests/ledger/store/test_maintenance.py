"""Goal: a broker rolls over by age and trims by policy in the background, and loses nothing that a reader needs.
Method: a real store with a clock and rounds driven by hand, and crashes between the record and the files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import DataLoss, Fenced, NotFound, Refused
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.cursors import DeleteCursor, ResetCursor
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.ledger.store import maintenance
from tests.rigs.entry import entry
from tests.rigs.log import MINUTE, NOW, LogRig, contents

MAX, MIN = "managedLedgerMaxLedgerRolloverTimeMinutes", "managedLedgerMinLedgerRolloverTimeMinutes"


@pytest.fixture
def make(store_path: Path) -> Iterator[Callable[..., LogRig]]:
    rigs: list[LogRig] = []

    def make(**settings: int) -> LogRig:
        rigs.append(LogRig(store_path, **settings))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.store.close()


@pytest.fixture
def rig(make: Callable[..., LogRig]) -> LogRig:
    return make()


def test_age_seals_a_ledger_with_an_entry_by_a_round(rig: LogRig) -> None:
    log = rig.log(entries=100)
    rig.append(b"a", entries=100)
    rig.policy(**{MAX: 10})
    rig.now = NOW + 10 * MINUTE - 1
    rig.store.upkeep.round()
    assert log.snapshot.segments[-1].close_ms == 0, "not yet"
    rig.now = NOW + 11 * MINUTE
    rig.store.upkeep.round()
    assert [part.close_ms for part in log.snapshot.segments] == [rig.now]
    assert rig.append(b"b") == [Position(1, 0)]
    assert rig.contents() == [b"a", b"b"]


def test_age_seals_at_an_append_too(rig: LogRig) -> None:
    rig.append(b"a", entries=100)
    rig.policy(**{MAX: 10})
    rig.now += 11 * MINUTE
    assert rig.append(b"b", b"c", entries=100) == [Position(1, 0), Position(1, 1)]


def test_a_store_that_never_falls_silent_has_its_rounds(
    make: Callable[..., LogRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledgers are sealed without a pause; one that nobody writes to comes of age meanwhile."""
    monkeypatch.setattr(maintenance, "ROUND_SECONDS", 1)
    rig = make()
    idle = rig.log(entries=100)
    rig.append(b"a", entries=100)
    rig.log("busy")
    rig.policy(**{MAX: 10})
    rig.now += 11 * MINUTE
    rig.store.upkeep.start()
    try:
        pause, end = threading.Event(), time.monotonic() + 60
        while not idle.snapshot.segments[-1].close_ms and time.monotonic() < end:
            rig.store.upkeep.sealed(rig.store.ledger("busy").name)
            pause.wait(0.02)
        assert idle.snapshot.segments[-1].close_ms == rig.now
    finally:
        rig.store.upkeep.stop()


def test_an_empty_ledger_never_rolls_over(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first append of a ledger fails after it was opened: it is open and empty, and stays so."""
    log = rig.log()
    rig.policy(**{MAX: 1})
    rig.now += 100 * MINUTE
    rig.store.upkeep.round()
    assert not log.roll_over_if_due()
    assert rig.ids() == []
    rig.append(b"a")
    rig.now += 100 * MINUTE
    rig.store.upkeep.round()
    rig.now += 100 * MINUTE
    rig.store.upkeep.round()
    assert rig.ids() == [0], "sealed once, and no ledger follows before there is an entry for it"


def test_a_full_ledger_waits_for_its_smallest_age(rig: LogRig) -> None:
    rig.log(entries=2)
    rig.policy(**{MIN: 5})
    rig.append(b"1", b"2", b"3", entries=2)
    rig.now += 5 * MINUTE
    assert rig.append(b"4", entries=2) == [Position(0, 3)], "older than, not as old as"
    rig.now += 1
    assert rig.append(b"5", b"6", b"7", entries=2) == [Position(1, 0), Position(1, 1), Position(1, 2)]
    assert rig.contents() == [b"%d" % number for number in range(1, 8)]


def test_a_clock_that_goes_back_seals_and_deletes_nothing(rig: LogRig) -> None:
    rig.append(b"1", b"2", b"3", b"4")
    rig.policy(**{MAX: 1}, retentionTimeInMinutes=1, retentionSizeInMB=-1)
    rig.now -= 1000 * MINUTE
    rig.store.upkeep.round()
    assert rig.ids() == [0, 1]
    assert rig.append(b"5") == [Position(1, 1)]
    assert rig.store.ledger("log").snapshot.last_timestamp_ms() == NOW, "time stands still, it does not go back"


def test_nothing_is_trimmed_without_a_policy(rig: LogRig) -> None:
    rig.append(*[b"%d" % number for number in range(10)])
    rig.now += 10**9 * MINUTE
    rig.store.upkeep.round()
    assert rig.store.ledger("log").trim().ledgers == []
    assert len(rig.contents()) == 10


def test_what_expired_goes_with_its_files_and_the_rest_stays(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.now += 10 * MINUTE
    rig.append(b"4", b"5", b"6")
    rig.retain(10, -1)
    rig.store.upkeep.round()
    assert rig.ids() == [0, 1, 2], "sealed 10 minutes ago is not more than 10 minutes"
    rig.now += 1
    rig.store.upkeep.round()
    assert rig.ids() == [1, 2]
    assert rig.files() == {"1.ledger", "1.index", "2.ledger", "2.index"}
    assert rig.contents() == [b"3", b"4", b"5", b"6"]
    rig.reopen()
    assert rig.contents() == [b"3", b"4", b"5", b"6"]
    assert rig.store.ledger("log").describe().rows == 7, "rows ever appended"


def test_a_quota_keeps_no_less_than_itself(rig: LogRig) -> None:
    log = rig.log(entries=1)
    for _ in range(3):
        log.append([entry(bytes(300), rows=1)]).result()
    rig.retain(-1, 1)
    assert log.trim().ledgers == []
    rig.retain(0, 0)
    done = log.trim()
    assert (done.ledgers, done.entries, done.start) == ([0, 1], 2, Position(2, 0)), "all but the open one"


def test_the_slowest_cursor_and_its_replay_floor_hold_everything_back(rig: LogRig) -> None:
    rig.append(*[b"%d" % number for number in range(8)])
    rig.retain(0, 0)
    rig.cursor("slow"), rig.cursor("fast")
    log = rig.store.ledger("log")
    rig.acknowledge("fast", Position(2, 1))
    assert log.trim().ledgers == []
    rig.acknowledge("slow", Position(0, 2))
    assert log.trim().ledgers == []
    rig.acknowledge("slow", Position(1, 3), floor=Position(0, 2))
    assert log.trim().ledgers == [], "Spark may ask for that batch again"
    rig.acknowledge("slow", Position(1, 3), floor=Position(0, 3))
    assert log.trim().ledgers == [0]
    rig.store.cursors.delete(DeleteCursor("log", "slow"))
    assert log.trim().ledgers == [1], "no cursor needs it any more"


def test_a_reader_at_the_end_of_what_was_trimmed_has_lost_nothing(rig: LogRig) -> None:
    rig.append(*[b"%d" % number for number in range(5)])
    rig.cursor("reader")
    rig.acknowledge("reader", Position(0, 3))
    rig.retain(0, 0)
    log = rig.store.ledger("log")
    assert log.trim().ledgers == [0]
    assert rig.contents(start=Position(0, 3)) == [b"3", b"4"]
    assert rig.left_of("reader").backlog_entries == 2
    assert log.end(Position(0, 3)).entries_since == 2
    assert [part.entries for part in log.split(PositionRange(Position(0, 3), log.snapshot.end), 10, 5)] == [1, 1]


def test_a_reader_before_it_is_told_what_is_gone_and_why(rig: LogRig) -> None:
    rig.append(*[b"%d" % number for number in range(8)])
    rig.retain(0, 0)
    log = rig.store.ledger("log")
    log.trim()
    said = r"entries \[0:1, 1:3\) of 'public/default/persistent/log' were trimmed by its retention, .*begins at 2:0"
    for ask in (
        lambda: log.blocks(PositionRange(Position(0, 1), LATEST), 100),
        lambda: log.split(PositionRange(Position(0, 1), LATEST), 100, 5),
        lambda: log.end(Position(0, 1)),
        lambda: rig.cursor("late", Position(0, 1)),
    ):
        with pytest.raises(DataLoss, match=said):
            ask()
    with pytest.raises(DataLoss, match=r"\[0:1, 0:2\)"):
        log.blocks(PositionRange(Position(0, 1), Position(0, 2)), 100)
    rig.cursor("reader")
    with pytest.raises(Refused, match=said):
        rig.store.cursors.reset(ResetCursor("log", "reader", Position(0, 1)))
    assert rig.left_of("reader").backlog_entries == 2
    assert rig.contents(start=EARLIEST) == [b"6", b"7"], "the earliest there is"


def test_all_that_is_sealed_may_go_and_the_log_goes_on(rig: LogRig) -> None:
    rig.append(b"0", b"1")
    rig.policy(**{MAX: 1}, retentionTimeInMinutes=0, retentionSizeInMB=0)
    rig.cursor("reader")
    rig.acknowledge("reader", Position(0, 2))
    rig.now += 2 * MINUTE
    rig.store.upkeep.round()
    assert rig.files() == set()
    log = rig.store.ledger("log")
    assert (log.snapshot.start, log.snapshot.end, log.snapshot.rows) == (Position(0, 2), Position(0, 2), 2)
    assert rig.contents(start=Position(0, 2)) == []
    assert rig.left_of("reader").backlog_entries == 0
    assert rig.cursor("new", LATEST).next_position == Position(0, 2)
    rig.reopen()
    log = rig.store.ledger("log")
    assert (log.snapshot.start, log.snapshot.end, log.snapshot.rows) == (Position(0, 2), Position(0, 2), 2)
    assert rig.append(b"2") == [Position(1, 0)]
    assert rig.contents(start=Position(0, 2)) == [b"2"]
    assert rig.left_of("new").backlog_rows == 1
    assert rig.store.ledger("log").snapshot.rows == 3


def test_a_crash_between_the_record_and_the_files_is_swept(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.retain(0, 0)
    log, unlink = rig.store.ledger("log"), Path.unlink

    def dies(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT002 — as pathlib has it
        if path.suffix in (".ledger", ".index", ".torn"):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", dies)
    with pytest.raises(KeyboardInterrupt):
        log.trim()
    monkeypatch.undo()
    assert "0.ledger" in rig.files()
    dead = rig.crash()
    assert rig.files() == {"1.ledger", "1.index"}
    assert rig.contents() == [b"3"]
    dead.close()


def test_a_crash_before_the_record_changes_nothing(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.retain(0, 0)
    dead = rig.crash()
    with pytest.raises(Fenced):
        dead.ledger("log").trim()
    assert rig.contents() == [b"0", b"1", b"2", b"3"]
    dead.close()


def test_a_cursor_put_back_during_the_trim_wins(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.retain(0, 0)
    log, cursors = rig.store.ledger("log"), rig.store.metadata.cursors
    seen = cursors.slowest

    def between(name: str) -> Position | None:
        found = seen(name)
        cursors.put(CursorRecord(name, "late", Position(0, 1)), None)  # without the lock of trims
        return found

    monkeypatch.setattr(cursors, "slowest", between)
    with pytest.raises(Refused, match=r"trimmed to 0:3: a cursor was reset to 0:1"):
        log.trim()
    monkeypatch.undo()
    assert rig.contents() == [b"0", b"1", b"2", b"3"]
    assert log.trim().ledgers == []


def test_unopened_ledgers_are_trimmed_and_nothing_else_is_opened(rig: LogRig) -> None:
    for name in ("keeps", "loses", "other"):
        rig.append(b"0", b"1", b"2", b"3", name=name)
    rig.retain(1, -1, "loses")
    rig.retain(1, -1, "other")
    rig.cursor("needs", log="other")
    rig.reopen()
    rig.now += 2 * MINUTE
    rig.store.upkeep.round()
    assert [log.name for log in rig.store.opened()] == ["public/default/persistent/loses"]
    assert [len(rig.ids(name)) for name in ("keeps", "loses", "other")] == [2, 0, 2]


@pytest.mark.parametrize("scope", ["ledger", "namespace", "broker"])
def test_retention_is_stated_by_ledger_namespace_or_broker(make: Callable[..., LogRig], scope: str) -> None:
    rig = make(**({"defaultRetentionTimeInMinutes": 5} if scope == "broker" else {}))
    for name in ("log", "a/b/log"):
        rig.append(b"0", b"1", b"2", b"3", name=name)
    if scope != "broker":
        rig.retain(5, -1, "log" if scope == "ledger" else "public/default", namespace=scope == "namespace")
    rig.now += 6 * MINUTE
    rig.store.upkeep.round()
    assert rig.contents() == [b"3"]
    assert len(rig.contents("a/b/log")) == (1 if scope == "broker" else 4)


def test_a_policy_counts_from_its_change_on_and_can_be_forgotten(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.now += 100 * MINUTE
    rig.retain(1, -1, "public/default", namespace=True)
    rig.retain(1000, -1)
    rig.store.upkeep.round()
    assert len(rig.contents()) == 4
    rig.reopen()
    rig.store.upkeep.round()
    assert len(rig.contents()) == 4, "and it survives"
    forget = ["retentionTimeInMinutes", "retentionSizeInMB"]
    found = rig.store.policies.change(ChangePolicy("log", forget=forget))
    assert (found.stated, found.effective["retentionTimeInMinutes"]) == ({}, 1)
    rig.store.upkeep.round()
    assert rig.contents() == [b"3"]


def test_a_policy_of_sizes_counts_for_the_open_ledger(rig: LogRig) -> None:
    rig.append(b"0", b"1", entries=100)
    rig.policy(managedLedgerMaxEntriesPerLedger=3)
    assert rig.append(b"2", b"3", entries=100) == [Position(0, 2), Position(1, 0)]


def test_a_refused_policy_changes_nothing(rig: LogRig) -> None:
    rig.log()
    rig.retain(5, 7)
    wrong = [
        ({"retentionTimeInMinutes": 9, "nonsense": 1}, [], "'nonsense' is not a policy"),
        ({"retentionTimeInMinutes": -2}, [], "is -2, expected"),
        ({"retentionTimeInMinutes": 0}, [], "0 minutes and 7 MiB"),
        ({MIN: 500}, [], "of 240 minutes, below its minimum of 500"),
        ({}, ["nonsense"], "'nonsense' is not a policy"),
        ({"retentionSizeInMB": 1}, ["retentionSizeInMB"], "both sets and removes"),
    ]
    for values, forget, said in wrong:
        with pytest.raises(Refused, match=said):
            rig.store.policies.change(ChangePolicy("log", values=values, forget=forget))
    assert rig.store.policies.change(ChangePolicy("log")).stated == {
        "retentionTimeInMinutes": 5,
        "retentionSizeInMB": 7,
    }
    for scope, namespace, error in (("nolog", False, NotFound), ("no/where", True, NotFound), ("a", True, Refused)):
        with pytest.raises(error):
            rig.store.policies.change(ChangePolicy(scope, namespace, {"retentionSizeInMB": 1}))


def test_a_deleted_ledger_takes_its_policy_with_it(rig: LogRig) -> None:
    rig.append(b"0")
    rig.retain(0, 0)
    rig.store.delete_ledger("log")
    rig.log()
    assert rig.store.policies.change(ChangePolicy("log")).stated == {}


def test_one_ledger_that_fails_stops_no_other(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        rig.append(b"0", b"1", b"2", b"3", name=name)
        rig.retain(0, 0, name)
    seen = rig.store.metadata.cursors.slowest

    def fails(name: str) -> Position | None:
        if name.endswith("bad"):
            raise OSError(5, "Input/output error")
        return seen(name)

    monkeypatch.setattr(rig.store.metadata.cursors, "slowest", fails)
    with caplog.at_level(logging.WARNING):
        rig.store.upkeep.round()
    assert "persistent/bad failed; the next round repeats" in caplog.text
    assert [len(rig.contents(name)) for name in ("bad", "good")] == [4, 1]
    monkeypatch.undo()
    rig.store.upkeep.round()
    assert len(rig.contents("bad")) == 1


def test_a_sealed_ledger_is_looked_at_at_once_by_the_thread(
    make: Callable[..., LogRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round is an hour away: only the seal can have woken it."""
    monkeypatch.setattr(maintenance, "ROUND_SECONDS", 3600)
    rig = make()
    rig.log()
    rig.retain(0, 0)
    rig.store.upkeep.start()
    rig.append(*[b"%d" % number for number in range(4)])
    trimmed = threading.Event()
    for _ in range(6000):
        if not {"0.ledger", "0.index"} & rig.files():
            break
        trimmed.wait(0.01)
    assert rig.ids() == [1]
    rig.store.close()
    with pytest.raises(RuntimeError):
        rig.store.upkeep.start(), rig.store._executor.submit(print)


def test_readers_that_hold_an_older_view_are_answered_from_the_new_one(rig: LogRig) -> None:
    """The files go while a reader looks at them: it asks again, and is told that they were trimmed."""
    rig.append(*[b"%d" % number for number in range(4)])
    rig.reopen()
    log = rig.store.ledger("log")
    rig.retain(0, 0)
    old = log.snapshot
    rig.now += 11 * MINUTE  # chunked messages that nobody has finished are not looked for any more
    log.trim()
    with pytest.raises(DataLoss, match="is missing"):
        old.blocks(PositionRange(Position(0, 0), LATEST), 100)
    with pytest.raises(DataLoss, match="trimmed"):
        log.blocks(PositionRange(Position(0, 0), LATEST), 100)
    log._snapshot = old
    seen = []

    def question(snapshot: object) -> int:
        seen.append(snapshot)
        if len(seen) == 1:
            log._writer.publish(log._writer.opened)
            raise FileNotFoundError(2, "gone")
        return 7

    assert log._query(question) == 7
    assert len(seen) == 2
    assert contents(log) == []
