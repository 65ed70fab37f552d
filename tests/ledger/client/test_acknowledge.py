"""Goal: acknowledging through a broker is what it is on the store: all or nothing, durable, repeatable. Method: a real
broker, killed in between.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand
from pyspark_ledger.ledger.protocol.request import Request
from tests.rigs.broker_process import served


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerStore]:
    with served(tmp_path_factory.mktemp("acknowledge") / "store") as store:
        yield store


@pytest.mark.thorough
def test_rows_are_acknowledged_through_a_broker_that_dies(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"n": number} for number in range(1000)])
    orders.append([{"n": number} for number in range(10)])
    cursor = orders.cursor("c")
    (first,) = {segment.ledger_id for segment in orders.describe().segments}
    state = cursor.acknowledge_rows([(first, 0, row) for row in range(0, 1000, 2)] + [(first, 1)])
    assert (state.backlog_rows, state.partial_entries, state.acknowledged_entries) == (500, 1, 1)
    os.kill(store.client.hello().pid, signal.SIGKILL)
    assert cursor.state() == state
    with pytest.raises(Refused, match="beyond the last entry"):
        cursor.acknowledge_rows([(first, 0, 1), (first, 2)])
    assert cursor.state() == state
    table, end = cursor.read()
    assert table.column("n").to_pylist() == list(range(1, 1000, 2))
    assert end == Position(first, 2)
    assert cursor.read_between(Position(first, 1), end)[0].num_rows == 0
    again, done = cursor.replay([Position(first, 1), Position(first, 0)])
    assert (again.num_rows, done) == (500, {Position(first, 1)})
    assert cursor.replay([])[0].num_rows == 0
    state = cursor.acknowledge_rows([(first, 0, row) for row in range(1000)])
    assert (state.backlog_rows, state.next_position) == (0, Position(first, 2))
    assert cursor.replay([Position(first, 0)]) == (table.slice(0, 0), {Position(first, 0)})
    assert cursor.skip(-1).next_position == Position(first, 2)
    assert cursor.set_properties({"a": "b"}) == {"a": "b"}


def test_millions_of_rows_are_one_call(store: LedgerStore) -> None:
    orders = store.ledger("many")
    for _ in range(4):
        orders.append([{"n": 1}] * 50_000)
    cursor = orders.cursor("c")
    (first,) = {segment.ledger_id for segment in orders.describe().segments}
    entries, rows = np.repeat(np.arange(4), 50_000), np.tile(np.arange(50_000), 4)
    shuffled = np.random.default_rng(0).permutation(200_000)[:199_999]
    batches = [
        acknowledge_batch(np.full(len(part), first), entries[part], rows[part]) for part in np.array_split(shuffled, 3)
    ]
    command = AcknowledgeCommand(orders.name, "c", orders.describe().incarnation)
    state = acknowledge(store.client, command, batches)
    assert (state.backlog_rows, state.backlog_entries) == (1, 1)
    assert acknowledge(store.client, command, batches) == state
    with pytest.raises(DataLoss, match="incarnation"):
        acknowledge(store.client, AcknowledgeCommand(orders.name, "c", "another"), batches)
    with pytest.raises(NotFound, match="no cursor 'd'"):
        acknowledge(store.client, AcknowledgeCommand(orders.name, "d"), batches)
    wrong = acknowledge_batch(np.array([first]), np.array([99]), np.array([-1]))
    with pytest.raises(Refused, match="beyond the last entry"):
        acknowledge(store.client, command, [wrong, *batches * 50])  # refused before the rest is read
    assert cursor.state() == state


def test_a_call_whose_answer_is_lost_does_once_what_it_does(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = store.ledger("repeated")
    for number in range(5):
        orders.append([{"n": number}])
    cursor, client = orders.cursor("c"), orders.client
    once, lost = client._ask_once, []

    def answers(request: Request[object], *given: Any) -> object:
        answer, action = once(request, *given), request.call.name
        if action in {"cursor.skip", "cursor.delete"} and action not in lost:
            lost.append(action)
            raise Unavailable("the broker did not answer")
        return answer

    monkeypatch.setattr(client, "_ask_once", answers)
    assert cursor.skip(2).backlog_entries == 3
    cursor.delete()
    assert lost == ["cursor.skip", "cursor.delete"]
    with pytest.raises(NotFound):
        cursor.delete()


def test_a_cursor_goes_to_a_time_backwards_too(store: LedgerStore) -> None:
    orders = store.ledger("timed")
    orders.append([{"n": 1}])
    first = orders.describe().last_publish_ms
    while orders.describe().last_publish_ms == first:  # the clock of a broker may stand still for two appends
        orders.append([{"n": 2}])
    total = orders.describe().entries
    cursor = orders.cursor("c")
    cursor.acknowledge(orders.describe().end)
    assert cursor.state().backlog_entries == 0
    cursor.seek(orders.describe().last_publish_ms)
    assert cursor.state().backlog_entries == 1
    cursor.seek(0)
    assert cursor.state().backlog_entries == total
    cursor.seek(2**61)
    assert cursor.state().backlog_entries == 0
