"""Goal: an append keeps the values of nested fields under their names, or is refused. Method: rows of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Refused

NAME = pa.struct([("first", pa.string()), ("last", pa.string())])
SWAPPED = pa.struct([("last", pa.string()), ("first", pa.string())])
ADA, GRACE = {"first": "Ada", "last": "King"}, {"last": "Hopper", "first": "Grace"}


def columns(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {"who": kind, "list": pa.list_(kind), "map": pa.map_(pa.string(), kind), "key": pa.map_(kind, pa.string())}


def row(who: dict[str, Any] | None) -> dict[str, Any]:
    return {"who": who, "list": [who, None], "map": [("k", who)], "key": [(who, "v")] if who else None}


@pytest.fixture(params=[0, 2], ids=["whole", "partitioned"])
def people(store: LedgerStore, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """A ledger of nested columns with one row."""
    if request.param:
        store.create_partitioned("people", request.param)
    ledger = store.ledger("people")
    ledger.append(pa.Table.from_pylist([row(ADA)], pa.schema(columns(NAME).items())))
    yield ledger
    store.client.close()


def rows_of(ledger: Ledger) -> list[dict[str, Any]]:
    return sorted(ledger.read().to_pylist(), key=lambda found: str(sorted((found["who"] or {"~": 0}).items())))


def test_fields_are_matched_by_name(people: Ledger) -> None:
    table = pa.Table.from_pylist([row(None), row(GRACE), row(None)], pa.schema(columns(SWAPPED).items()))
    people.append(table.slice(1, 1))
    people.append(table.to_batches()[0].slice(0, 1))
    people.append([row(GRACE)])
    assert rows_of(people) == [row(ADA), row(GRACE), row(GRACE), row(None)]
    parts = people.partitions() if isinstance(people, PartitionedLedger) else []
    assert [part.schema() for part in parts] == [people.schema() for _ in parts], "a partition has the whole's columns"


def test_a_missing_or_new_field_of_a_table_is_refused(people: Ledger) -> None:
    more = pa.struct([*NAME, ("title", pa.string())])
    fewer = pa.struct([("last", pa.string())])
    for kind, words in ((more, "title' .* not in the ledger"), (fewer, "first' .* missing")):
        for name, path in (("who", "who"), ("list", "list.element"), ("map", "map.value"), ("key", "key.key")):
            wrong = pa.schema({**columns(NAME), name: columns(kind)[name]}.items())
            with pytest.raises(Refused, match=rf"column '{path}\.{words}.*Give the structs in '{name}'"):
                people.append(pa.Table.from_pylist([], wrong))
    assert rows_of(people) == [row(ADA)]


def test_a_mapping_with_a_new_field_is_refused(people: Ledger) -> None:
    more = {**GRACE, "title": "Admiral"}
    for name, path in (("who", "who"), ("list", "list.element"), ("map", "map.value"), ("key", "key.key")):
        words = (
            rf"a value of column '{path}' has the field 'title', and the column has first, last\. Leave the field out"
        )
        with pytest.raises(Refused, match=words):
            people.append([row(GRACE), {**row(GRACE), name: row(more)[name]}])
    with pytest.raises(Refused, match=r"column 'map\.value' has the field 'title'"):
        people.append([{**row(GRACE), "map": {"k": more}}])
    people.append([{**row(GRACE), "who": {"last": "Hopper"}}])
    assert rows_of(people) == [row(ADA), {**row(GRACE), "who": {"first": None, "last": "Hopper"}}]


def test_a_column_without_a_type_gets_values_of_null(store: LedgerStore) -> None:
    typed = store.ledger("typed")
    typed.append(pa.table({"id": [1], "who": pa.array([ADA], NAME), "tags": [["a"]]}))
    typed.append(pa.table({"id": [2], "who": pa.nulls(1), "tags": pa.array([[None]], pa.list_(pa.null()))}))
    assert typed.read().to_pylist()[1] == {"id": 2, "who": None, "tags": [None]}
    store.client.close()


def test_a_hint_for_other_columns_works(store: LedgerStore) -> None:
    log = store.ledger("log")
    log.append([{"id": 1, "item": "tea"}])
    with pytest.raises(Refused, match=r"column 'item' .* missing.*Write null in the missing columns; or in Spark"):
        log.append(pa.table({"id": [2]}))
    log.append(pa.table({"id": [2], "item": pa.nulls(1)}))
    with pytest.raises(Refused, match=r"column 'price' .* not in the ledger.*Leave the other columns out; or in Spark"):
        log.append([{"id": 3, "item": "salt", "price": 1.0}])
    log.append([{"id": 3, "item": "salt"}])
    with pytest.raises(Refused, match="rename 'ID' to 'id'"):
        log.append(pa.table({"ID": [4], "item": ["oil"]}))
    log.append(pa.table({"ID": [4], "item": ["oil"]}).rename_columns(["id", "item"]))
    assert log.read().to_pylist() == [
        {"id": 1, "item": "tea"},
        {"id": 2, "item": None},
        {"id": 3, "item": "salt"},
        {"id": 4, "item": "oil"},
    ]
    store.client.close()
