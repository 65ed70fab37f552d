"""The few lines a user writes without Spark: what was appended is read, followed and acknowledged.

Method: a real store and its broker, small rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.protocol.actions import StopBroker


def test_rows_are_appended_read_and_followed(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    first = orders.append([{"id": 1, "item": "tea"}, {"id": 2, "item": None}])
    second = orders.append(pa.table({"id": [3], "item": ["salt"]}))
    assert first < second
    assert orders.read().column("id").to_pylist() == [1, 2, 3]
    assert orders.read(first).to_pylist() == [{"id": 3, "item": "salt"}]
    assert [batch.num_rows for batch in orders.follow(wait=0)] == [3]
    with pytest.raises(Refused, match="column 'item'"):
        orders.append([{"id": 4, "total": 1.0}])
    assert orders.describe().rows == 3


def test_a_time_is_milliseconds_a_datetime_or_text(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    end = orders.append([{"id": 1}])
    start, published = orders.end().start, orders.end().last_publish_ms
    at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=published)
    for time_of_entry in (published, str(published), at, at.isoformat(), at.astimezone().replace(tzinfo=None)):
        assert orders.position_at(time_of_entry) == start
    assert orders.position_at(at + timedelta(milliseconds=1)) == end
    cursor = orders.cursor("billing")
    assert (cursor.seek("9998-12-31"), cursor.state().backlog_rows) == (end, 0)
    with pytest.raises(Refused, match="the time is 'noon', expected milliseconds since 1970, or a time such as"):
        cursor.seek("noon")
    assert cursor.state().next_position == end, "a refused call changes nothing"


def test_what_is_read_is_aligned_for_arrow(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    for number in range(5):
        orders.append([{"id": number, "name": "x" * number}])
    buffers = [b for batch in orders.batches() for column in batch.columns for b in column.buffers() if b is not None]
    assert buffers
    assert {buffer.address % 8 for buffer in buffers} == {0}


def test_messages_are_bytes_and_keep_to_themselves(store: LedgerStore) -> None:
    log = store.ledger("log")
    log.append(b"hello")
    log.append(b"")
    assert log.read().column("value").to_pylist() == [b"hello", b""]
    with pytest.raises(Refused, match=r"has messages \(2 entries\)"):
        log.append([{"id": 1}])


def test_a_cursor_remembers_and_a_missing_ledger_is_named(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    billing = orders.cursor("billing")
    rows, position = billing.read()
    assert rows.num_rows == 1
    billing.acknowledge(position)
    assert billing.read()[0].num_rows == 0
    assert orders.cursor("billing").state().backlog_rows == 0
    with pytest.raises(NotFound, match="Did you mean 'orders'"):
        store.ledger("order").read()
    with pytest.raises(NotFound, match="no ledger with a similar name"):
        store.ledger("nope").read()
    billing.delete()
    store.delete("orders")
    assert store.names() == []


def test_rows_lose_neither_keys_nor_fractions_nor_themselves(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}, {"item": "tea"}])
    assert orders.read().to_pylist() == [{"id": 1, "item": None}, {"id": None, "item": "tea"}]
    orders.append({"id": number, "item": "salt"} for number in (2, 3))
    assert orders.read().column("id").to_pylist() == [1, None, 2, 3]
    for rows, said in (
        ([{"id": 4, "item": "x"}, {"id": 5, "item": "x", "total": 1.0}], "column 'total'"),
        ([{"id": 1.5, "item": "x"}], "column 'id'.*1.5"),
        ([{"id": "x", "item": "x"}], "column 'id'.*int64"),
        ([{"id": 2**64, "item": "x"}], "column 'id'.*int64"),
    ):
        with pytest.raises(Refused, match=said):
            orders.append(rows)
    orders.append([{"id": 6.0, "item": None}])
    assert orders.read().column("id").to_pylist() == [1, None, 2, 3, 6]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("text", "rows are str"),
        ({"id": 1}, "rows are dict"),
        ([7], "row 0 is int"),
        ([{"id": 1}, {1: 2}], "row 1 has the column 1, expected text"),
    ],
)
def test_what_is_no_row_is_refused_before_a_ledger_is_made(store: LedgerStore, given: object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        store.ledger("orders").append(given)  # type: ignore[arg-type]
    assert store.names() == []


@pytest.mark.parametrize("given", ["earliest", 0, (0, 0), 1.5])
def test_what_is_no_position_is_refused_by_name(store: LedgerStore, given: Any) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    cursor = orders.cursor("c")
    asked: list[tuple[str, Callable[[], object]]] = [
        ("start", lambda: orders.read(given)),
        ("end", lambda: orders.read(end=given)),
        ("start", lambda: orders.follow(given, wait=0)),
        ("start", lambda: orders.cursor("d", given)),
        ("position", lambda: cursor.acknowledge(given)),
        ("position", lambda: cursor.reset(given)),
    ]
    for name, ask in asked:
        with pytest.raises(Refused, match=rf" {name} is .*, expected a position.*EARLIEST"):
            ask()
    assert cursor.state().backlog_entries == 1
    assert orders.describe().cursors == ["c"]


@pytest.mark.parametrize("given", [None, 5, b"orders"])
def test_what_is_no_name_is_refused(store: LedgerStore, given: Any) -> None:
    for ask in (store.ledger, store.create, store.delete, lambda name: store.create_partitioned(name, 2)):
        with pytest.raises(Refused, match=r"a ledger's name is .*, expected text"):
            ask(given)


@pytest.mark.parametrize("given", [0, -1, "3", 2.5, 10_001])
def test_a_number_of_partitions_that_no_ledger_has_makes_none(store: LedgerStore, given: Any) -> None:
    with pytest.raises(Refused, match="partitions were requested, a ledger has 1 to 10000"):
        store.create_partitioned("parted", given)
    assert store.names() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "the store is 5, expected a directory"),
        ("grpc://localhost:port", "'grpc://localhost:port' needs a valid host and a numeric port"),
        ("grpc+tls://", "needs a valid host and a numeric port"),
        ("grpc://localhost", "grpc://HOST:PORT"),
    ],
)
def test_what_is_no_store_is_refused(given: Any, said: str) -> None:
    with pytest.raises(Refused, match=said):
        connect(given)


def test_nothing_given_fixes_no_columns(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    end = orders.append([])
    with pytest.raises(Refused, match="rows without columns"):
        orders.append([{}])
    assert orders.schema() is None
    first = orders.append([{"id": 1}])
    assert first > end
    assert orders.append([]) == first
    assert orders.read().to_pylist() == [{"id": 1}]


@pytest.mark.thorough
def test_a_handle_outlives_its_broker(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    store.client.ask(StopBroker())
    assert orders.append([{"id": 2}]) == orders.end().end
    assert orders.read().column("id").to_pylist() == [1, 2]


NAME = pa.struct([("first", pa.string()), ("last", pa.string())])
STRUCTS: list[tuple[pa.DataType, Any, Any, str]] = [
    (NAME, {"last": "King", "first": "Ada"}, {"last": "King", "middle": "?"}, "'c' has the field 'middle'"),
    (pa.list_(NAME), [None, {"last": "King"}], [{"middle": "?"}], "'c.element' has the field 'middle'"),
    (pa.map_(pa.string(), NAME), {"k": {"last": "King"}}, [("k", {"middle": "?"})], "'c.value' has the field 'middle'"),
    (pa.struct([("in", NAME)]), {"in": {"last": "King"}}, {"in": {"middle": "?"}}, "'c.in' has the field 'middle'"),
]


@pytest.mark.parametrize(("kind", "row", "other", "said"), STRUCTS)
def test_structs_are_appended_by_name_and_no_field_is_left_out(
    store: LedgerStore, kind: pa.DataType, row: Any, other: Any, said: str
) -> None:
    people = store.ledger("people")
    people.append(pa.table({"c": pa.array([row], kind)}))
    people.append([{"c": row}])
    first, second = people.read()["c"].to_pylist()
    assert first == second
    with pytest.raises(Refused, match=said):
        people.append([{"c": row}, {"c": other}])
    assert people.describe().rows == 2
