"""Goal: a log ends for good, has properties, and tells what a reader has left. Method: a real store whose clock is
moved by hand, opened again and taken over in between."""

from __future__ import annotations

import sqlite3

import pytest

from pyspark_ledger.ledger.errors import Fenced, NotFound, Refused, Terminated
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from tests.rigs.entry import entry
from tests.rigs.log import MINUTE, NOW, LogRig
from tests.rigs.store import commit


def test_nothing_is_appended_after_the_end_and_all_can_be_read(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    log = rig.store.ledger("log")
    assert log.terminate() == Position(1, 0)
    assert log.terminate() == Position(1, 0), "repeated"
    for again in (False, True):
        if again:
            rig.reopen()
        log = rig.store.ledger("log")
        with pytest.raises(Terminated, match="was terminated at 1:0"):
            log.append([entry(b"x")])
        with pytest.raises(Terminated):
            commit(rig.store, 0, [b"x"], run=1)
        assert rig.contents() == [b"0", b"1", b"2", b"3"]
        assert (log.end().terminated, log.describe().terminated) == (True, Position(1, 0))
        assert rig.ids() == [0, 1], "and no new ledger is opened"


def test_an_append_that_was_queued_before_the_end_is_in_the_log(rig: LogRig) -> None:
    log = rig.log(entries=1000)
    sent = [log.append([entry(b"%d" % number)]) for number in range(50)]
    last = log.terminate()
    assert [future.result() for future in sent][-1] == last
    assert len(rig.contents()) == 50


def test_an_empty_log_ends_before_its_first_entry(rig: LogRig) -> None:
    assert rig.log().terminate() == Position(-1, -1)
    rig.reopen()
    assert rig.store.ledger("log").end().terminated
    with pytest.raises(Terminated):
        rig.store.ledger("log").append([entry(b"x")])
    assert rig.files() == set()


def test_a_batch_that_is_in_the_log_is_answered_after_the_end(rig: LogRig) -> None:
    rig.log(entries=100)
    first = commit(rig.store, 0, [b"a", b"b"], run=1)
    rig.store.ledger("log").terminate()
    again = commit(rig.store, 0, [b"a", b"b"], run=1)
    assert (again.repeated, again.first, again.end) == (True, first.first, first.end)
    with pytest.raises(Terminated):
        commit(rig.store, 1, [b"c"], run=2)


def test_only_the_owner_of_the_store_ends_a_log(rig: LogRig) -> None:
    rig.append(b"0")
    dead = rig.crash()
    with pytest.raises(Fenced):
        dead.ledger("log").terminate()
    assert not rig.store.ledger("log").end().terminated
    rig.append(b"1")
    dead.close()


def test_a_terminated_log_is_trimmed_to_nothing(rig: LogRig) -> None:
    rig.append(b"0", b"1")
    rig.retain(0, 0)
    log = rig.store.ledger("log")
    log.terminate()
    assert log.trim().ledgers == [0]
    assert (log.end().end, log.end().terminated, rig.files()) == (Position(0, 2), True, set())


def test_properties_are_set_changed_removed_and_survive(rig: LogRig) -> None:
    log = rig.log()
    before = log.describe().properties
    assert log.change_properties({"owner": "billing", "a": "1"}, []) == {**before, "owner": "billing", "a": "1"}
    assert log.change_properties({"a": "2"}, ["owner", "never there"]) == {**before, "a": "2"}
    rig.append(b"0", b"1", b"2", b"3")
    rig.reopen()
    assert rig.store.ledger("log").describe().properties == {**before, "a": "2"}
    assert rig.append(b"4", b"5") == [Position(2, 0), Position(2, 1)], "and it goes on as it was created"


def test_properties_of_the_broker_cannot_be_changed(rig: LogRig) -> None:
    log = rig.log()
    before = log.describe().properties
    for values, remove in (({"ledger.blockBytes": "1"}, []), ({}, ["ledger.blockBytes"]), ({"": "1"}, [])):
        with pytest.raises(Refused, match="is reserved for the broker"):
            log.change_properties({"good": "1", **values}, remove)
    assert log.describe().properties == before


def test_a_trim_keeps_properties_and_properties_keep_the_trim(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.retain(0, 0)
    log = rig.store.ledger("log")
    log.change_properties({"a": "1"}, [])
    log.trim()
    log.change_properties({"b": "2"}, ["a"])
    rig.reopen()
    log = rig.store.ledger("log")
    assert log.describe().properties["b"] == "2"
    assert log.snapshot.trimmed.position == Position(0, 3)


def test_a_backlog_counts_entries_rows_and_bytes(rig: LogRig) -> None:
    log = rig.log(entries=4)
    for rows in (1, 2, 3, 4, 5, 6):
        log.append([entry(bytes(10 * rows), rows=rows)]).result()
    rig.cursor("c")
    state = rig.left_of("c")
    assert (state.backlog_entries, state.backlog_rows) == (6, 21)
    rig.acknowledge("c", Position(0, 2))
    state = rig.left_of("c")
    assert (state.backlog_entries, state.backlog_rows) == (4, 18)
    assert state.backlog_bytes == log.snapshot.measure(PositionRange(Position(0, 2), LATEST))[2]
    rig.acknowledge("c", Position(1, 2))
    state = rig.left_of("c")
    assert (state.backlog_entries, state.backlog_rows, state.backlog_bytes) == (0, 0, 0)


def test_an_estimate_reads_no_file_and_is_exact_for_whole_segments(rig: LogRig) -> None:
    log = rig.log(entries=4)
    for rows in (1, 2, 3, 4, 5, 6):
        log.append([entry(b"x", rows=rows)]).result()
    rig.cursor("whole", Position(0, 4))
    rig.cursor("half", Position(0, 2))
    rig.reopen()
    rig.log()
    for suffix in ("ledger", "index"):
        (rig.path / "ledgers" / f"0.{suffix}").unlink()
    found = {}
    for name in ("whole", "half"):
        state = rig.store.cursors.describe(DescribeCursor("log", name, precise=False))
        found[name] = (state.backlog_entries, state.backlog_rows)
    assert found == {"whole": (2, 11), "half": (4, 16)}, "half of 10 rows, and 11"


def test_markers_are_no_backlog(rig: LogRig) -> None:
    rig.log(entries=100)
    commit(rig.store, 0, [b"a", b"b"], run=1)
    rig.append(b"c", entries=100)
    commit(rig.store, 1, [b"d"], run=2)
    rig.cursor("c")
    assert rig.left_of("c").backlog_entries == 4
    rig.acknowledge("c", Position(0, 2))
    assert rig.left_of("c").backlog_entries == 2, "the first marker is passed over"
    estimated = rig.store.cursors.describe(DescribeCursor("log", "c", precise=False))
    assert estimated.backlog_entries == 4, "counted by positions"


def test_the_first_entry_of_a_time_is_found_across_ledgers(rig: LogRig) -> None:
    positions = []
    for number in range(8):
        rig.now = NOW + number // 2 * MINUTE
        positions += rig.append(b"%d" % number)
    log = rig.store.ledger("log")
    found = [log.seek_time(NOW + minute * MINUTE) for minute in range(5)]
    assert found == [positions[0], positions[2], positions[4], positions[6], log.snapshot.end]
    assert log.seek_time(NOW + 1) == positions[2]
    assert log.seek_time(0) == log.seek_time(-1) == positions[0]
    assert log.seek_time(2**62) == log.snapshot.end
    rig.reopen()
    assert rig.store.ledger("log").seek_time(NOW + MINUTE) == positions[2]


def test_a_time_is_found_in_an_empty_and_in_a_trimmed_log(rig: LogRig) -> None:
    assert rig.log().seek_time(NOW) == Position(-1, 0)
    positions = rig.append(b"0", b"1", b"2")
    rig.now += MINUTE
    positions += rig.append(b"3", b"4")
    rig.retain(0, 0)
    rig.store.ledger("log").trim()
    assert rig.store.ledger("log").seek_time(NOW) == positions[3], "the first that is left"


def test_deleting_a_ledger_leaves_nothing_that_belongs_to_it(rig: LogRig) -> None:
    for name in ("log", "other"):
        rig.append(b"0", b"1", b"2", b"3", name=name)
        rig.cursor("c", log=name)
        rig.retain(1, -1, name)
        rig.store.metadata.register_schema(f"public/default/persistent/{name}", b"columns", -1)
    commit(rig.store, 0, [b"a"], run=1)
    rig.reopen()
    commit(rig.store, 1, [b"b"], run=2)
    other = {f"{ledger_id}{suffix}" for ledger_id in rig.ids("other") for suffix in (".ledger", ".index")}
    rig.store.delete_ledger("log")
    assert rig.files() == other
    with pytest.raises(NotFound):
        rig.store.ledger("log")
    with sqlite3.connect(rig.path / "metadata.sqlite") as db:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        dumped = {table: str(db.execute(f"SELECT * FROM {table}").fetchall()) for table in tables}  # noqa: S608
    assert "policy_row" in dumped
    # The newest batch of each query stays, so that a query notices a ledger that was created again.
    assert [table for table, text in dumped.items() if "persistent/log" in text] == ["manifest_row"]
    assert len([table for table, text in dumped.items() if "persistent/other" in text]) >= 4
    rig.log()
    assert rig.store.ledger("log").committed_batch("q") is None
    assert rig.cursor("c").created


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is not a valid name"),
        (".", "is not a valid name"),
        ("..", "is not a valid name"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\u2028b", "control character"),
        ("a\\b", "backslash"),
        ("x" * 256, "256 bytes, at most 255"),
        ("\ud800", "not valid Unicode"),
        ("BILLING", "differs from 'billing' only in case"),
    ],
)
def test_cursors_have_names_that_pulsar_could_have(rig: LogRig, name: str, said: str) -> None:
    rig.log()
    rig.cursor("billing")
    with pytest.raises(Refused, match=said):
        rig.cursor(name)
    assert rig.store.cursors.names("public/default/persistent/log") == ["billing"]
    rig.cursor("x" * 255)
    rig.cursor("a/b é", EARLIEST)


def test_a_partition_goes_by_the_policy_of_its_whole_and_by_its_own_first(rig: LogRig) -> None:
    rig.store.create_partitioned(CreateLedger("parts", block_bytes=512, max_entries_per_ledger=2, partitions=2))
    for partition in range(2):
        log = rig.store.ledger(f"parts-partition-{partition}")
        for number in range(3):
            log.append([entry(b"%d" % number)]).result()
    rig.retain(0, 0, "parts")
    rig.retain(-1, -1, "parts-partition-1")
    rig.store.upkeep.round()
    assert [len(rig.contents(f"parts-partition-{partition}")) for partition in range(2)] == [1, 3]
