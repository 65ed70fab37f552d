"""Goal: the rows of a loop's batch are the objects that `Ledger.rows` yields. Method: a real broker, ledgers of rows
and of messages, loops with and without a cursor, rows that were acknowledged or do not fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Refused

VISIT = {"type": "record", "name": "Visit", "fields": [{"name": "user", "type": "string"}]}


@dataclass
class Order:
    id: int
    note: str | None = None


@dataclass
class Visit:
    user: str


def objects(batches: Iterator[Any]) -> list[Any]:
    return [row for batch in batches for row in batch.rows()]


@pytest.fixture
def visits(store: LedgerStore) -> Ledger[Visit]:
    store.ledger("visits").register_payload_schemas(json.dumps({"type": "JSON", "schema": VISIT}))
    visits = store.ledger("visits", Visit)
    with visits.producer() as producer:
        for number in range(6):
            producer.send(Visit(f"u{number}"))
    return visits


@pytest.mark.parametrize("partitions", [0, 2])
def test_follow_yields_objects_of_the_class(store: LedgerStore, partitions: int) -> None:
    if partitions:
        store.create_partitioned("orders", partitions)
    orders = store.ledger("orders", Order)
    for number in range(4):
        orders.append([Order(number, "a"), Order(number + 10)])
    found = objects(orders.follow(wait=0, max_rows=1))
    assert sorted(found, key=lambda order: order.id) == sorted(orders.rows(), key=lambda order: order.id)
    assert {type(order) for order in found} == {Order}


def test_batches_of_a_cursor_yield_objects_and_else_dictionaries(store: LedgerStore) -> None:
    orders = store.ledger("orders", Order)
    for number in range(4):
        orders.append([Order(number, "a"), Order(number + 10)])
    cursor = orders.cursor("billing")
    cursor.acknowledge_rows([(0, 1, 0), (0, 2)])
    expected = [Order(0, "a"), Order(10), Order(11), Order(3, "a"), Order(13)]
    assert objects(cursor.batches(wait=0, max_rows=3)) == expected
    plain = objects(store.ledger("orders").cursor("billing").batches(wait=0))
    assert plain == [{"id": order.id, "note": order.note} for order in expected]


def test_messages_are_decoded_by_their_schemas(visits: Ledger[Visit]) -> None:
    assert objects(visits.follow(wait=0)) == list(visits.rows()) == [Visit(f"u{number}") for number in range(6)]
    cursor = visits.cursor("billing")
    place = visits.end().end
    cursor.acknowledge_rows([(place.ledger_id, place.entry_id - 1, 0)])
    expected = objects(iter([next(cursor.batches(wait=0))]))
    assert expected == [Visit(row["value"].decode()[9:11]) for row in cursor.read()[0].to_pylist()]


def test_row_that_does_not_fit_is_named_by_its_batch(store: LedgerStore) -> None:
    store.ledger("orders").append([{"id": 1, "note": "a"}, {"id": None, "note": "b"}])
    orders = store.ledger("orders", Order)
    batch = next(orders.cursor("billing").batches(wait=0))
    with pytest.raises(Refused, match=r"row 1 of \[0:0, 0:1\) of .*orders.*field 'id' of class Order"):
        list(batch.rows())
    assert batch.table.column("note").to_pylist() == ["a", "b"]
