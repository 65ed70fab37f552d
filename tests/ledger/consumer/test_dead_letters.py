"""Goal: a row that a loop receives too often becomes one dead letter with all fields, and none is lost. Method: a real
broker, loops that do not acknowledge, workers and brokers that are killed at each step of a move.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.consumer import dead_letters
from pyspark_ledger.ledger.errors import Refused, Terminated, Unavailable
from pyspark_ledger.ledger.partition_routing import partition_for_key
from pyspark_ledger.ledger.protocol.commits import CommitRun
from pyspark_ledger.ledger.protocol.cursors import AckDeadLetters
from tests.rigs.broker_process import kill_broker

SECONDS = 60


@pytest.fixture
def orders(store: LedgerStore) -> Ledger:
    orders = store.ledger("orders")
    for number in range(4):
        orders.append([{"id": number}])
    return orders


def ids(ledger: Ledger) -> list[int]:
    return ledger.read().column("id").to_pylist()


def give_up(ledger: Ledger, most: int, keep: Callable[[pa.Table], bool] = lambda _: False, rows: int = 1) -> list[int]:
    """Nack each batch that `keep` does not choose, until nothing comes. Return the redeliveries of each batch."""
    counts = []
    with ledger.cursor("billing").batches(max_rows=rows, wait=0, max_redeliveries=most) as batches:
        for batch in batches:
            counts.append(batch.redeliveries)
            (batch.acknowledge if keep(batch.table) else batch.nack)()
    return counts


def test_row_is_a_dead_letter_after_its_redeliveries(store: LedgerStore, orders: Ledger) -> None:
    counts = give_up(orders, 2, lambda table: table["id"][0].as_py() != 1)
    assert sorted(counts) == [0, 0, 0, 0, 1, 2]
    assert ids(store.ledger("orders-billing-DLQ")) == [1]
    state = orders.cursor("billing").state()
    assert (state.backlog_rows, state.partial_entries) == (0, 0)
    assert give_up(orders, 2) == []


@pytest.mark.parametrize("kind", ["rows", "messages", "bytes"])
def test_dead_letter_has_all_that_its_row_has(store: LedgerStore, kind: str) -> None:
    ledger = store.ledger("things")
    if kind == "rows":
        ledger.append(pa.table({"n": [1, 2], "text": ["a", None], "raw": [b"\x00", b""]}))
    elif kind == "bytes":
        ledger.append(b"\xff\x00")
    else:
        with ledger.producer() as producer:
            producer.send(b"one", key="k", properties={"x": "y"}, event_time_ms=7)
            producer.send(b"two")
    metadata = ["__key", "__eventTime"]
    columns = [*(name for name in ledger.read().column_names if not name.startswith("__")), *metadata]
    named = [*columns, "__messageProperties", "__topic", "__position"]
    before = pa.table(ledger.scan(columns=named))
    assert set(give_up(ledger, 0, rows=1000)) == {0}
    dead = pa.table(store.ledger("things-billing-DLQ").scan(columns=[*columns, "__messageProperties"]))
    assert dead.select(columns).to_pylist() == before.select(columns).to_pylist()
    for found, row in zip(dead.to_pylist(), before.to_pylist(), strict=True):
        place = ":".join(str(number) for number in row["__position"].values())
        origin = [("REAL_TOPIC", row["__topic"]), ("ORIGIN_MESSAGE_ID", place)]
        assert found["__messageProperties"] == [*(row["__messageProperties"] or []), *origin]


def test_columns_that_were_added_are_in_later_dead_letters(store: LedgerStore) -> None:
    notes = store.ledger("notes")
    for note in (None, "new"):
        notes.append([{"n": 1, "note": note}])
        give_up(notes, 0)
    assert store.ledger("notes-billing-DLQ").read().column("note").to_pylist() == [None, "new"]


@pytest.mark.parametrize("at", ["before the commit", "after the commit", "before the acknowledgement"])
def test_failure_at_any_step_neither_loses_nor_doubles(
    store: LedgerStore, orders: Ledger, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    ask = orders.client.ask
    failed = list[str]()

    def once(request: Any, **arguments: Any) -> Any:
        step = CommitRun if "commit" in at else AckDeadLetters
        if failed or not isinstance(request, step):
            return ask(request, **arguments)
        failed.append(at)
        if at == "after the commit":
            ask(request, **arguments)
        raise Unavailable(at)

    batches = orders.cursor("billing").batches(max_rows=4, wait=0, max_redeliveries=0)
    next(batches).nack()
    monkeypatch.setattr(orders.client, "ask", once)
    with pytest.raises(Unavailable, match=at):
        next(batches)
    batches.close()
    assert orders.cursor("billing").state().backlog_rows == 4
    assert give_up(orders, 0) == []
    assert (failed, ids(store.ledger("orders-billing-DLQ"))) == ([at], [0, 1, 2, 3])
    assert orders.cursor("billing").state().backlog_rows == 0


WORKER = """
import os, signal, sys
from pyspark_ledger import connect
orders = connect(sys.argv[1]).ledger("orders")
for batch in orders.cursor("billing").batches(max_rows=1, wait=0, ack="after", max_redeliveries=2):
    print(batch.table["id"][0], flush=True)
    if batch.table["id"][0].as_py() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
@pytest.mark.broker_process
def test_row_that_kills_its_worker_becomes_a_dead_letter(store: LedgerStore, orders: Ledger, store_path: Path) -> None:
    outputs = []
    for round_ in range(6):
        if round_ == 2:
            kill_broker(store_path)
        command = [sys.executable, "-c", WORKER, store.location]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        outputs.append(done.stdout.split())
        if not done.returncode:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert sum(output.count("1") for output in outputs) == 3, outputs
    assert ids(store.ledger("orders-billing-DLQ")) == [1]
    assert orders.cursor("billing").state().backlog_rows == 0


@pytest.mark.thorough
@pytest.mark.broker_process
def test_broker_killed_in_the_move_loses_no_row(
    store: LedgerStore, orders: Ledger, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = list[int]()
    register = dead_letters._registered

    def registered(*arguments: Any) -> Any:
        if len(killed) < 2:
            killed.append(os.getpid())
            kill_broker(store_path)
        return register(*arguments)

    monkeypatch.setattr(dead_letters, "_registered", registered)
    for _ in range(3):
        orders.append([{"id": 9}])
        give_up(orders, 0)
    assert len(killed) == 2
    assert sorted(ids(store.ledger("orders-billing-DLQ"))) == [0, 1, 2, 3, 9, 9, 9]


@pytest.mark.parametrize("most", [-1, True, 1.5, "3"])
def test_wrong_number_is_refused_before_the_lease(orders: Ledger, most: Any) -> None:
    with pytest.raises(Refused, match=r"max_redeliveries is .*, expected None"):
        orders.cursor("billing").batches(max_redeliveries=most)
    assert orders.cursor("billing").state().lease_holder == ""


def test_impossible_name_of_the_dead_letter_ledger_is_refused(orders: Ledger) -> None:
    with pytest.raises(Refused, match="which is no valid name of a ledger"):
        orders.cursor("team/billing").batches(max_redeliveries=1)


def test_ledger_of_dead_letters_with_messages_is_refused(store: LedgerStore, orders: Ledger) -> None:
    store.ledger("orders-billing-DLQ").append(b"text")
    with pytest.raises(Refused, match=r"orders-billing-DLQ has messages \(1 entries\)"):
        give_up(orders, 0)
    assert orders.cursor("billing").state().backlog_rows == 4


def test_keys_select_the_partitions_of_the_dead_letters(store: LedgerStore) -> None:
    mails, target = store.ledger("mails"), store.create_partitioned("mails-billing-DLQ", 3)
    keys = [f"key-{number % 5}" for number in range(20)]
    with mails.producer() as producer:
        for number, key in enumerate(keys):
            producer.send(b"%d" % number, key=key).result(SECONDS)
    give_up(mails, 0, rows=7)
    found = [part.read().to_pydict() for part in target.partitions()]
    expected: list[list[bytes]] = [[], [], []]
    for number, key in enumerate(keys):
        expected[partition_for_key(key, 3, "murmur3_32")].append(b"%d" % number)
    assert [sorted(part["value"]) for part in found] == list(map(sorted, expected))
    assert mails.cursor("billing").state().backlog_rows == 0


def test_dead_letters_without_keys_go_to_the_partitions_in_turn(store: LedgerStore, orders: Ledger) -> None:
    target = store.create_partitioned("orders-billing-DLQ", 2)
    give_up(orders, 0)
    assert sorted(ids(target)) == [0, 1, 2, 3]
    assert sorted(map(len, map(ids, target.partitions()))) == [2, 2]


def test_partitioned_dead_letters_are_written_once_if_their_reply_is_lost(
    store: LedgerStore, orders: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, ask = store.create_partitioned("orders-billing-DLQ", 2), orders.client.ask

    def lost(request: Any, **how: Any) -> Any:
        if isinstance(request, AckDeadLetters):
            raise Unavailable("lost")
        return ask(request, **how)

    with orders.cursor("billing").batches(wait=0, max_redeliveries=0) as batches:
        next(batches).nack()
        with monkeypatch.context() as patch:
            patch.setattr(orders.client, "ask", lost)
            with pytest.raises(Unavailable, match="lost"):
                next(batches)
        assert list(batches) == []
    assert sorted(ids(target)) == [0, 1, 2, 3]


def test_terminated_ledger_of_dead_letters_is_named_with_its_remedy(store: LedgerStore, orders: Ledger) -> None:
    give_up(orders, 0, lambda table: table["id"][0].as_py() > 0)
    store.ledger("orders-billing-DLQ").terminate()
    orders.append([{"id": 9}])
    with pytest.raises(Terminated, match=r"dead letters of cursor 'billing' of orders .* Delete the ledger orders-"):
        give_up(orders, 0)
    store.delete("orders-billing-DLQ")
    give_up(orders, 0)
    assert ids(store.ledger("orders-billing-DLQ")) == [9]
