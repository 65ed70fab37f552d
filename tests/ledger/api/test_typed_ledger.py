"""Goal: a ledger with a type takes and yields objects of its class, and nothing else.

Method: a broker, and ledgers with the columns of the class and with other columns.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pyspark_ledger import open_read_only
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.actions import RegisterSchema

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Item(msgspec.Struct):
    name: str
    price: float | None = None


class Order(msgspec.Struct):
    id: int
    at: datetime
    items: list[Item]
    note: str | None = None


class OtherId(msgspec.Struct):
    id: str


class OrderId(msgspec.Struct):
    id: int


ORDERS = [Order(number, AT, [Item("tea", 4.5), Item("salt")][: number % 3]) for number in range(5)]


def test_objects_are_appended_and_read(store: LedgerStore) -> None:
    orders = store.ledger("orders", Order)
    first = orders.append(ORDERS[0])
    end = orders.append(iter(ORDERS[1:]))
    assert list(orders.rows()) == ORDERS
    assert list(orders.rows(first)) == ORDERS[1:]
    assert list(orders.rows(end=first)) == ORDERS[:1]
    assert orders.append([]) == end
    assert orders.schema() == pa.schema(
        {
            "id": pa.int64(), "at": pa.timestamp("us", "UTC"),
            "items": pa.list_(pa.struct([("name", pa.string()), ("price", pa.float64())])), "note": pa.string(),
        }.items()
    )  # fmt: skip
    assert next(store.ledger("orders").rows()) == orders.read().to_pylist()[0], "without a type, rows are dictionaries"
    assert [row.id for row in store.ledger("orders", OrderId).rows()] == list(range(5))


def test_objects_are_made_when_they_are_asked_for(store: LedgerStore) -> None:
    made: list[int] = []

    class Counted(msgspec.Struct):
        id: int

        def __post_init__(self) -> None:
            made.append(self.id)

    store.ledger("orders").append([{"id": number} for number in range(3)])
    store.ledger("orders").append([{"id": 3}])
    found = store.ledger("orders", Counted).rows()
    assert [next(found).id, made] == [0, [0]]
    assert [order.id for order in found] == [1, 2, 3]
    store.client.close()


def test_a_class_that_does_not_fit_is_refused_before_an_append(store: LedgerStore) -> None:
    early = store.ledger("orders", OtherId)
    store.ledger("orders").append([{"id": 1}])
    with pytest.raises(
        Refused, match=r"field 'id' of class OtherId is str, and the column of ledger '.*/orders' is int64"
    ):
        store.ledger("orders", OtherId)
    with pytest.raises(
        Refused, match=r"field 'at' of class Order is datetime, and ledger '.*/orders' has no such column"
    ):
        store.ledger("orders", Order)
    for call in (lambda: early.append(OtherId("a")), lambda: list(early.rows())):
        with pytest.raises(Refused, match="field 'id' of class OtherId is str"):
            call()
    assert store.ledger("orders").read().to_pylist() == [{"id": 1}]


def test_only_objects_of_the_class_are_appended(store: LedgerStore) -> None:
    orders = store.ledger("orders", OrderId)
    for wrong in (pa.table({"id": [1]}), {"id": 1}, b"1", "1", 1, OtherId("1")):
        words = rf"{type(wrong).__name__} was given for ledger '.*/orders', which has objects of OrderId"
        with pytest.raises(Refused, match=words):
            orders.append(wrong)  # type: ignore[arg-type]
    with pytest.raises(
        Refused, match=r"row 1 for ledger '.*/orders': it is OtherId\(id='1'\) \(OtherId\), expected OrderId"
    ):
        orders.append([OrderId(1), OtherId("1")])  # type: ignore[list-item]
    assert orders.schema() is None, "nothing was registered"


def test_a_column_that_the_class_lacks_is_null(store: LedgerStore) -> None:
    orders = store.ledger("orders", OrderId)
    orders.append(OrderId(1))
    store.ledger("orders").append([{"id": 2}])
    columns = pa.schema([("id", pa.int64()), ("added", pa.string())])
    store.client.ask(RegisterSchema(orders.name, columns.serialize().to_pybytes(), 0))
    orders.append(OrderId(3))
    assert [row.id for row in orders.rows()] == [1, 2, 3]
    assert orders.read()["added"].null_count == 3
    store.client.close()


def test_a_null_in_a_required_field_is_refused_by_position(store: LedgerStore) -> None:
    ledger = store.ledger("orders")
    ledger.append([{"id": 0}, {"id": 1}])
    end = ledger.append([{"id": 2}, {"id": None}])
    found = iter(store.ledger("orders", OrderId).rows())
    assert [next(found).id, next(found).id] == [0, 1]
    where = rf"row 1 of entry {end.ledger_id}:{end.entry_id - 1} of .*/orders: field 'id' of class OrderId is null"
    with pytest.raises(Refused, match=where):
        next(found)
    store.client.close()


def test_a_column_without_a_type_gets_that_of_the_field(store: LedgerStore) -> None:
    store.ledger("notes").append([{"id": 1, "at": None, "items": [], "note": None}])
    notes = store.ledger("notes", Order)
    notes.append(ORDERS[1])
    assert notes.schema() == store.ledger("notes", Order).read().schema
    assert list(notes.rows(notes.end().start.next())) == [ORDERS[1]]
    store.client.close()


@pytest.fixture
def parted(store: LedgerStore) -> Iterator[Ledger[Order]]:
    store.create_partitioned("orders", 3)
    yield store.ledger("orders", Order)
    store.client.close()


def test_a_partitioned_ledger_has_a_type(parted: Ledger[Order]) -> None:
    assert isinstance(parted, PartitionedLedger)
    for order in ORDERS:
        parted.append(order)
    parted.append(ORDERS)
    assert sorted(order.id for order in parted.rows()) == sorted([*range(5), *range(5)])
    parted.append([])
    part = parted.partitions()[0]
    assert isinstance(next(part.rows()), Order)
    assert part.schema() == parted.schema()
    with pytest.raises(Refused, match="a range of positions"):
        next(parted.rows(part.end().end))
    with pytest.raises(Refused, match=r"row 0 .* field 'id' of class Order is 'a'"):
        parted.append(Order("a", AT, []))  # type: ignore[arg-type]


def test_a_typed_ledger_is_pickled_with_its_class(store: LedgerStore) -> None:
    orders = store.ledger("orders", Order)
    orders.append(ORDERS)
    copy: Ledger[Order] = pickle.loads(pickle.dumps(orders))  # noqa: S301 — of this test
    assert list(copy.rows()) == ORDERS
    copy.client.close()


@pytest.mark.broker_process
def test_objects_are_read_without_a_broker(store: LedgerStore) -> None:
    store.ledger("orders", Order).append(ORDERS)
    assert list(open_read_only(store.location).ledger("orders", Order).rows()) == ORDERS


SCRIPT = """
from __future__ import annotations
import sys
from dataclasses import dataclass
from pyspark_ledger import connect

@dataclass
class Address:
    city: str

@dataclass
class Person:
    name: str
    home: Address | None = None

people = connect(sys.argv[1]).ledger("people", Person)
people.append(Person("ada", Address("paris")))
print(*people.rows())
assert "pydantic" not in sys.modules, "only a user's model needs it"
"""


@pytest.mark.thorough
def test_a_class_of_a_script_needs_no_pydantic(store: LedgerStore, tmp_path: Path) -> None:
    (tmp_path / "people.py").write_text(SCRIPT, encoding="utf-8")
    command: list[Any] = [sys.executable, tmp_path / "people.py", store.location]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == "Person(name='ada', home=Address(city='paris'))\n", found.stderr
