"""Goal: a log and its cursors behave as Pulsar's ManagedLedger and ManagedCursor do, case by case. Method: each case is
a short story told to a real store whose clock is moved by hand.

What of Pulsar's cases has no counterpart here, and why:

| Java or BookKeeper | here |
|---|---|
| ledger handles, ensembles, write and ack quorums, digest and password | one file per ledger; CRC32C in every entry |
| callbacks and executors, `ConcurrentWaitCallback` for a second waiting read | futures; any number of readers wait |
| ZooKeeper's BadVersion fences the loser | the store's epoch, read before and after each sync: `Fenced` |
| a new empty ledger at each open | opened by the first append: no empty ledger is ever listed |
| the cursor ledger's own rollover, throttled mark-delete, flush at close | each change is durable when it is answered |
| `autoSkipNonRecoverableData` | damage is an error that names file and offset |
| entry cache, read-ahead, reference counts of buffers | blocks are mapped; see tests/ledger/cache |
| offloading while trimming | the offloader's own tests |
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_ledger.ledger.errors import Fenced, NotFound, Refused, Terminated
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.cursors import DeleteCursor, DescribeCursor, ResetCursor
from tests.rigs.entry import entry
from tests.rigs.log import MINUTE, NOW, LogRig

Case = Callable[[LogRig], None]
P = Position


def seven(rig: LogRig) -> None:
    """Seven entries in ledgers of three: 0:0 to 0:2, 1:0 to 1:2, and 2:0 in the open one."""
    rig.append(*[b"%d" % number for number in range(7)])


def opened_again_it_goes_on_in_a_new_ledger(rig: LogRig) -> None:
    rig.append(b"0")
    rig.reopen()
    assert rig.append(b"1") == [P(1, 0)], "never into a ledger that was recovered"
    assert rig.contents() == [b"0", b"1"]


def an_empty_ledger_is_removed_from_the_list(rig: LogRig) -> None:
    log = rig.log()
    writer = log._writer
    writer._open = writer.list.open_next(0)
    rig.reopen()
    rig.append(b"0")
    assert len(rig.ids()) == 1
    assert len(rig.files()) == 2


def the_owner_before_is_fenced(rig: LogRig) -> None:
    log = rig.log()
    log.append([entry(b"0")]).result()
    dead = rig.crash()
    with pytest.raises(Fenced):
        log.append([entry(b"lost")]).result()
    rig.append(b"1")
    assert rig.contents() == [b"0", b"1"]
    dead.close()


def entries_are_numbered_from_0_in_each_ledger(rig: LogRig) -> None:
    assert rig.append(*[b"x"] * 5) == [P(0, 0), P(0, 1), P(0, 2), P(1, 0), P(1, 1)]


def a_ledger_is_full_by_entries_or_by_bytes(rig: LogRig) -> None:
    log = rig.log(entries=10**6)
    rig.policy(managedLedgerMaxSizePerLedgerMbytes=1)
    firsts = [log.append([entry(bytes(300))] * 500).result() for _ in range(8)]
    assert len({first.ledger_id for first in firsts}) == 2, "500 entries of 317 bytes are 158,500; 1 MiB is 7 of them"
    assert firsts[7].ledger_id == firsts[6].ledger_id + 1


def age_seals_only_a_ledger_with_an_entry(rig: LogRig) -> None:
    rig.log()
    rig.policy(managedLedgerMaxLedgerRolloverTimeMinutes=1)
    rig.now += 10 * MINUTE
    rig.store.upkeep.round()
    assert rig.ids() == []
    rig.append(b"0")
    rig.now += 10 * MINUTE
    rig.store.upkeep.round()
    assert rig.append(b"1") == [P(1, 0)]


def a_full_ledger_waits_for_the_smallest_age(rig: LogRig) -> None:
    rig.log()
    rig.policy(managedLedgerMinLedgerRolloverTimeMinutes=1)
    assert rig.append(*[b"x"] * 5)[-1] == P(0, 4)


def without_cursors_trimming_is_the_policys_alone(rig: LogRig) -> None:
    seven(rig)
    rig.retain(0, 0)
    assert rig.store.ledger("log").trim().ledgers == [0, 1]


def trimming_stops_at_the_slowest_durable_cursor(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("fast", P(2, 0))
    rig.cursor("slow", P(1, 1))
    rig.retain(0, 0)
    assert rig.store.ledger("log").trim().ledgers == [0]


def a_ledger_that_is_consumed_to_its_end_may_go(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c", P(1, 3))
    rig.retain(0, 0)
    assert rig.store.ledger("log").trim().ledgers == [0, 1]


def infinite_retention_keeps_what_is_consumed(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c", LATEST)
    rig.retain(-1, -1)
    rig.now += 10**6 * MINUTE
    assert rig.store.ledger("log").trim().ledgers == []


def time_alone_lets_the_expired_go(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.now += 5 * MINUTE
    rig.append(b"4", b"5", b"6")
    rig.retain(5, -1)
    rig.now += 1
    assert rig.store.ledger("log").trim().ledgers == [0]


def a_deleted_cursor_holds_nothing_back(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c")
    rig.retain(0, 0)
    assert rig.store.ledger("log").trim().ledgers == []
    rig.store.cursors.delete(DeleteCursor("log", "c"))
    assert rig.store.ledger("log").trim().ledgers == [0, 1]


def a_terminated_log_refuses_and_stays_so(rig: LogRig) -> None:
    seven(rig)
    assert rig.store.ledger("log").terminate() == P(2, 0)
    rig.reopen()
    with pytest.raises(Terminated):
        rig.store.ledger("log").append([entry(b"x")])
    assert len(rig.contents()) == 7


def a_cursor_opens_at_the_latest_or_the_earliest(rig: LogRig) -> None:
    seven(rig)
    assert rig.cursor("late", LATEST).backlog_entries == 0
    assert rig.cursor("early", EARLIEST).backlog_entries == 7


def an_existing_cursor_ignores_where_it_was_to_begin(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c", P(1, 0))
    again = rig.cursor("c", EARLIEST)
    assert (again.created, again.next_position) == (False, P(1, 0))


def mark_delete_never_goes_back(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c")
    rig.acknowledge("c", P(1, 2))
    rig.acknowledge("c", P(0, 1))
    assert rig.left_of("c").next_position == P(1, 2)


def mark_delete_beyond_the_last_entry_is_refused(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c")
    with pytest.raises(Refused, match="the log ends at 2:1"):
        rig.acknowledge("c", P(2, 2))
    assert rig.left_of("c").next_position == P(-1, 0)


def mark_delete_at_the_end_of_a_ledger_is_the_next_ones_begin(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c")
    rig.acknowledge("c", P(0, 3))
    assert (rig.left_of("c").backlog_entries, rig.contents(start=P(0, 3))[0]) == (4, b"3")


def cursors_survive_the_broker(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c")
    rig.acknowledge("c", P(1, 1))
    rig.crash().close()
    assert rig.left_of("c").next_position == P(1, 1)


def a_reset_goes_backwards_and_forwards(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c", LATEST)
    for position, left in ((P(0, 0), 7), (P(2, 1), 0), (P(1, 2), 2)):
        assert rig.store.cursors.reset(ResetCursor("log", "c", position)).backlog_entries == left


def clearing_the_backlog_is_a_mark_delete_to_the_end(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c")
    rig.acknowledge("c", rig.store.ledger("log").snapshot.end)
    assert rig.left_of("c").backlog_entries == 0
    rig.append(b"7")
    assert rig.left_of("c").backlog_entries == 1


def a_backlog_is_counted_over_ledgers(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c", P(0, 2))
    precise = rig.left_of("c")
    estimated = rig.store.cursors.describe(DescribeCursor("log", "c", precise=False))
    assert (precise.backlog_entries, estimated.backlog_entries) == (5, 5)


def reads_stop_at_the_last_entry_and_cross_ledgers(rig: LogRig) -> None:
    seven(rig)
    assert rig.contents(start=P(0, 2), end=P(2, 1)) == [b"2", b"3", b"4", b"5", b"6"]
    assert rig.contents(start=P(2, 1)) == []
    log = rig.store.ledger("log")
    assert log.snapshot.measure(PositionRange(P(0, 2), P(1, 1)))[0] == 2


def a_seek_by_time_finds_the_first_entry_not_older(rig: LogRig) -> None:
    positions = []
    for minute in range(7):
        rig.now = NOW + minute * MINUTE
        positions += rig.append(b"%d" % minute)
    log = rig.store.ledger("log")
    assert [log.seek_time(NOW + minute * MINUTE) for minute in range(7)] == positions
    assert log.seek_time(NOW - 1) == positions[0], "none is older: from the first"
    assert log.seek_time(NOW + 7 * MINUTE) == P(2, 1), "all are older: at the end"


def a_seek_by_time_in_an_empty_log_is_its_end(rig: LogRig) -> None:
    assert rig.log().seek_time(NOW) == rig.log().snapshot.end


def a_seek_by_time_after_trimming_is_within_what_is_left(rig: LogRig) -> None:
    seven(rig)
    rig.retain(0, 0)
    rig.store.ledger("log").trim()
    assert rig.store.ledger("log").seek_time(NOW) == P(2, 0)


def a_deleted_log_is_gone_and_its_name_begins_anew(rig: LogRig) -> None:
    seven(rig)
    rig.cursor("c")
    before = rig.store.ledger("log").incarnation
    rig.store.delete_ledger("log")
    with pytest.raises(NotFound):
        rig.store.ledger("log")
    assert rig.log().incarnation != before
    assert rig.append(b"new") == [P(3, 0)], "ledger ids are never used twice"
    assert rig.cursor("c").created


CASES: list[Case] = [
    opened_again_it_goes_on_in_a_new_ledger,
    an_empty_ledger_is_removed_from_the_list,
    the_owner_before_is_fenced,
    entries_are_numbered_from_0_in_each_ledger,
    a_ledger_is_full_by_entries_or_by_bytes,
    age_seals_only_a_ledger_with_an_entry,
    a_full_ledger_waits_for_the_smallest_age,
    without_cursors_trimming_is_the_policys_alone,
    trimming_stops_at_the_slowest_durable_cursor,
    a_ledger_that_is_consumed_to_its_end_may_go,
    infinite_retention_keeps_what_is_consumed,
    time_alone_lets_the_expired_go,
    a_deleted_cursor_holds_nothing_back,
    a_terminated_log_refuses_and_stays_so,
    a_cursor_opens_at_the_latest_or_the_earliest,
    an_existing_cursor_ignores_where_it_was_to_begin,
    mark_delete_never_goes_back,
    mark_delete_beyond_the_last_entry_is_refused,
    mark_delete_at_the_end_of_a_ledger_is_the_next_ones_begin,
    cursors_survive_the_broker,
    a_reset_goes_backwards_and_forwards,
    clearing_the_backlog_is_a_mark_delete_to_the_end,
    a_backlog_is_counted_over_ledgers,
    reads_stop_at_the_last_entry_and_cross_ledgers,
    a_seek_by_time_finds_the_first_entry_not_older,
    a_seek_by_time_in_an_empty_log_is_its_end,
    a_seek_by_time_after_trimming_is_within_what_is_left,
    a_deleted_log_is_gone_and_its_name_begins_anew,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_as_in_pulsar(rig: LogRig, case: Case) -> None:
    case(rig)
