"""Goal: a loop returns each row once, from any position on, and refuses what would skip rows. Method: a real broker,
small segments and small limits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.consumer.batch import Batch
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger, StopBroker
from pyspark_ledger.ledger.protocol.commits import CommitRun
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.entry import entry

SECONDS = 60


def append(store: LedgerStore, *numbers: int, name: str = "orders") -> None:
    """Append entries of one row each, in segments of three entries."""
    store.client.ask(CreateLedger(name, exist_ok=True, max_entries_per_ledger=3))
    for number in numbers:
        store.ledger(name).append([{"n": number}])


def numbers(batches: Iterator[Batch]) -> list[int]:
    return [n for batch in batches for n in batch.table.column("n").to_pylist()]


def test_backlog_is_returned_within_the_limits(store: LedgerStore) -> None:
    append(store, *range(8))
    orders = store.ledger("orders")
    by_rows = list(orders.follow(wait=0, max_rows=3))
    assert [numbers(iter([batch])) for batch in by_rows] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    size = orders.describe().size_bytes // 8
    assert [batch.num_rows for batch in orders.follow(wait=0, max_bytes=2 * size + size // 2)] == [2, 2, 2, 2]
    assert [batch.num_rows for batch in orders.follow(wait=0, max_bytes=1)] == [1] * 8
    orders.append([{"n": n} for n in range(8, 18)])
    assert [batch.num_rows for batch in orders.follow(wait=0, max_rows=8)] == [8, 10], "an entry is not divided"


def test_loop_goes_on_at_the_position_of_any_batch(store: LedgerStore) -> None:
    append(store, *range(7))
    orders = store.ledger("orders")
    for batch in orders.follow(wait=0, max_rows=1):
        after = numbers(orders.follow(batch.position, wait=0))
        assert after == list(range(batch.table.column("n")[0].as_py() + 1, 7))
        assert numbers(orders.follow(batch.start, wait=0, max_rows=1)) == list(range(after[0] - 1 if after else 6, 7))


def test_latest_means_the_end_at_the_call_of_follow(store: LedgerStore) -> None:
    append(store, 0)
    batches = store.ledger("orders").follow(LATEST, wait=0)
    append(store, 1)
    assert numbers(batches) == [1]


def test_waiting_loop_gets_new_rows_until_the_ledger_is_terminated(store: LedgerStore) -> None:
    append(store, 0)
    orders = store.ledger("orders")
    batches = orders.follow()
    assert numbers(iter([next(batches)])) == [0]
    with ThreadPoolExecutor(1) as executor:
        try:
            for number in (1, 2, 3, 4):
                coming = executor.submit(next, batches)
                append(store, number)
                assert numbers(iter([coming.result(SECONDS)])) == [number]
            coming = executor.submit(next, batches, None)
        finally:
            orders.terminate()
        assert coming.result(SECONDS) is None
    assert numbers(orders.follow()) == [0, 1, 2, 3, 4]


def test_small_batch_costs_one_call_after_the_wait(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, 0)
    orders, asked = store.ledger("orders"), list[str]()
    batches = orders.follow()
    next(batches)
    ask_once = store.client._ask_once

    def counted(request: Any, *rest: Any) -> Any:
        asked.append(request.call.name)
        return ask_once(request, *rest)

    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(next, batches)
        monkeypatch.setattr(store.client, "_ask_once", counted)
        for number in (1, 2, 3):
            orders.append([{"n": number}])
            assert numbers(iter([coming.result(SECONDS)])) == [number]
            coming = executor.submit(next, batches)
        batches.close()
        with pytest.raises(StopIteration):
            coming.result(SECONDS)
    assert asked.count("read.open") == 3
    assert set(asked) <= {"read.open", "end.wait"}


def test_loop_ends_after_its_wait_and_looks_once_more_before(store: LedgerStore) -> None:
    append(store, 0)
    began = time.monotonic()
    batches = store.ledger("orders").follow(wait=0.2)
    assert numbers(batches) == [0]
    assert time.monotonic() - began >= 0.2
    short = store.ledger("orders").follow(wait=0.001)
    assert numbers(iter([next(short)])) == [0]
    append(store, 1)
    assert numbers(short) == [1]


def test_markers_make_no_batch_and_are_passed(store: LedgerStore) -> None:
    topic = store.ledger("topic")
    topic.append(b"0")
    with store.client.stage_part("q", 0) as part:
        part.write([entry(b"1", run=2)], 1)
        store.client.ask(CommitRun("topic", "q", 0, 7, 2, [part.close()]))
    end = topic.end().end
    (whole,) = topic.follow(wait=0)
    assert (whole.num_rows, whole.position, end.entry_id) == (2, end, 3)
    assert list(topic.follow(Position(end.ledger_id, 2), wait=0)) == [], "only the marker is left"
    assert [batch.position for batch in topic.follow(wait=0, max_rows=1)][-1] == end


def test_rows_that_were_read_may_be_trimmed_and_unread_ones_not(store: LedgerStore) -> None:
    append(store, *range(4))
    orders = store.ledger("orders")
    reader, late = orders.follow(wait=0, max_rows=4), orders.follow(wait=0, max_rows=1)
    assert (numbers(iter([next(reader)])), numbers(iter([next(late)]))) == ([0, 1, 2, 3], [0])
    orders.set_policy(retentionSizeInMB=0, retentionTimeInMinutes=0)
    orders.seal()
    orders.trim()
    with pytest.raises(DataLoss, match=r"entries \[0:1, .*\) of .*orders.* were trimmed"):
        next(late)
    append(store, 4)
    assert numbers(reader) == [4]


def test_position_after_the_end_is_an_error_and_not_a_wait(store: LedgerStore) -> None:
    append(store, 0)
    with pytest.raises(DataLoss, match="ends at 0:1, entries from 9:9 were requested"):
        next(store.ledger("orders").follow(Position(9, 9)))


def test_broker_of_an_earlier_release_is_refused(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, 0)
    batches = store.ledger("orders").follow(wait=0)
    open_read = store.client.open_read
    monkeypatch.setattr(
        store.client, "open_read", lambda request: open_read(msgspec.structs.replace(request, limits=None))
    )
    with pytest.raises(Unsupported, match="does not limit reads"):
        next(batches)
    monkeypatch.undo()
    assert numbers(batches) == [0]


def test_missing_ledger_and_wrong_arguments_are_refused_at_the_call(store: LedgerStore) -> None:
    append(store, 0)
    orders = store.ledger("orders")
    with pytest.raises(NotFound, match="orders"):
        store.ledger("order").follow()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("start", {"start": 5}),
        ("start", {"start": {"orders": EARLIEST}}),
        ("wait", {"wait": True}),
        ("max_rows", {"max_rows": 0}),
        ("max_bytes", {"max_bytes": None}),
    ]
    for name, given in wrong:
        with pytest.raises(Refused, match=f" {name} is "):
            orders.follow(**given)


@pytest.mark.parametrize("waits", [False, True])
def test_ledger_that_was_created_again_is_refused(store: LedgerStore, waits: bool) -> None:
    append(store, 0, 1)
    batches = store.ledger("orders").follow(max_rows=1)
    next(batches)
    if not waits:
        store.delete("orders")
        append(store, *range(5))
        with pytest.raises(DataLoss, match="incarnation"):
            next(batches)
        return
    next(batches)
    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(next, batches)
        store.delete("orders")
        with pytest.raises((NotFound, DataLoss)):
            coming.result(SECONDS)
    append(store, *range(5))
    with pytest.raises(DataLoss, match="incarnation"):
        next(batches)


def test_columns_are_those_of_the_time_of_the_read(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"n": 1, "note": None}])
    batches = orders.follow(max_rows=1)
    assert next(batches).table.schema.field("note").type == pa.null()
    orders.append([{"n": 2, "note": None}])
    orders.append([{"n": 3, "note": "gift"}])
    second, third = next(batches), next(batches)
    assert second.table.schema == third.table.schema == orders.schema()
    assert [*second.rows(), *third.rows()] == [{"n": 2, "note": None}, {"n": 3, "note": "gift"}]


def test_message_in_chunks_is_one_row_wherever_a_batch_ends(store: LedgerStore) -> None:
    large = [bytes([65 + number]) * 2500 for number in range(3)]
    with store.ledger("chunks").producer("p", chunk_max_bytes=1000) as producer:
        for value in large:
            producer.send(value).result()
            producer.send(b"small").result()
    chunks = store.ledger("chunks")
    expected = [value for pair in zip(large, [b"small"] * 3, strict=True) for value in pair]
    end = chunks.end().end
    for start in range(end.entry_id):
        read = chunks.read(Position(end.ledger_id, start)).column("value").to_pylist()
        batches = chunks.follow(Position(end.ledger_id, start), wait=0, max_rows=1)
        assert [batch.table.column("value")[0].as_py() for batch in batches] == read
    assert chunks.read().column("value").to_pylist() == expected


def test_partitions_take_turns_and_added_ones_join(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 2)
    for number in range(8):
        clicks.append([{"n": number}])
    first = list(clicks.follow(wait=0, max_rows=1))
    assert sorted(numbers(iter(first))) == list(range(8))
    assert [batch.ledger for batch in first] == ["clicks-partition-1", "clicks-partition-0"] * 4
    batches = clicks.follow(LATEST)
    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(next, batches)
        clicks.increase_partitions(3)
        store.ledger("clicks-partition-2").append([{"n": 8}])
        assert repr(coming.result(SECONDS)).startswith("<Batch of clicks-partition-2: 1 rows")
        coming = executor.submit(next, batches)
        batches.close()
        with pytest.raises(StopIteration):
            coming.result(SECONDS)


def test_partitions_go_on_at_the_positions_of_their_batches(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 3)
    for number in range(9):
        clicks.append([{"n": number}])
    saved: dict[str, Position] = {}
    seen = list[int]()
    for batch in clicks.follow(wait=0, max_rows=1):
        saved[batch.ledger] = batch.position
        seen += numbers(iter([batch]))
        if len(seen) == 5:
            break
    assert sorted(seen + numbers(clicks.follow(saved, wait=0))) == list(range(9))
    wrong: list[tuple[Any, str]] = [
        (Position(0, 1), "each of the 3 logs of 'clicks' has its own positions"),
        ({"clicks-partition-3": EARLIEST}, "clicks-partition-3, expected names out of clicks-partition-0, .*-2"),
        ({"clicks-partition-1": 5}, r"start\['clicks-partition-1'\] is 5"),
    ]
    for start, said in wrong:
        with pytest.raises(Refused, match=said):
            clicks.follow(start)
    store.delete("clicks")
    with pytest.raises(NotFound, match="no partitioned ledger 'clicks'"):
        clicks.follow()


def test_read_only_store_is_followed_by_looking(store: LedgerStore) -> None:
    append(store, 0)
    batches = open_read_only(store.location).ledger("orders").follow(wait=30)
    assert numbers(iter([next(batches)])) == [0]
    append(store, 1)
    assert numbers(iter([next(batches)])) == [1]
    batches.close()


FOLLOWER = """
import json, os, signal, sys
from pyspark_ledger import connect
batches = connect(sys.argv[1]).ledger("orders").follow()
if sys.argv[2] == "close":
    signal.signal(signal.SIGINT, lambda *_: batches.close())
while True:
    try:
        for batch in batches:
            print(json.dumps(batch.table.column("n").to_pylist()), flush=True)
        print("ended", flush=True)
        break
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def lines_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def follower(store: LedgerStore, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    append(store, 0)
    command = [sys.executable, "-c", FOLLOWER, store.location, request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.thorough
@pytest.mark.broker_process
@pytest.mark.parametrize("follower", ["raise"], indirect=True)
def test_interrupts_and_a_killed_broker_lose_no_row(store: LedgerStore, follower: subprocess.Popen[str]) -> None:
    assert json.loads(lines_of(follower)) == [0]
    seen, interrupts = [0], 0
    for number in range(1, 6):
        os.kill(follower.pid, signal.SIGINT)
        if number == 3:
            os.kill(store.client.hello().pid, signal.SIGKILL)
        append(store, number)
        while seen[-1] < number:
            line = lines_of(follower)
            interrupts += line == "interrupted"
            seen += json.loads(line) if line.startswith("[") else []
    assert seen == list(range(6))
    assert interrupts >= 1
    store.ledger("orders").terminate()
    while (line := lines_of(follower)) != "ended":
        assert line == "interrupted"
    assert follower.wait(SECONDS) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("follower", ["close"], indirect=True)
def test_signal_handler_closes_a_waiting_loop(follower: subprocess.Popen[str]) -> None:
    assert json.loads(lines_of(follower)) == [0]
    os.kill(follower.pid, signal.SIGINT)
    assert lines_of(follower) == "ended"
    assert follower.wait(SECONDS) == 0


@pytest.mark.broker_process
def test_broker_that_does_not_return_is_an_error_in_each_loop(store: LedgerStore) -> None:
    append(store, 0)
    append(store, 0, name="bills")
    loops = [store.ledger(name).follow(LATEST) for name in ("orders", "bills")]
    store.client.deadline_ms, store.client.revive = 100, None
    with ThreadPoolExecutor(2) as executor:
        coming = [executor.submit(next, loop) for loop in loops]
        store.client.ask(StopBroker())
        for waiting in coming:
            with pytest.raises(Unavailable):
                waiting.result(SECONDS)
