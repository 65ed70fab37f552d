"""Goal: a column that was always null gets the type of its first value, and no value is lost. Method: appends of rows
with nulls and values, by several writers, to whole and partitioned ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client.kept_producer import KeptProducer
from pyspark_ledger.ledger.errors import Refused

FIRST = {"id": 1, "note": None, "list": [None], "pair": {"n": 1, "x": None}}
SECOND = {"id": 2, "note": "gift", "list": ["a", None], "pair": {"n": 2, "x": {"y": [b"1"]}}}
THIRD = {"id": 3, "note": None, "list": [], "pair": None}


@pytest.fixture(params=[0, 2], ids=["whole", "partitioned"])
def notes(store: LedgerStore, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    if request.param:
        store.create_partitioned("notes", request.param)
    yield store.ledger("notes")
    store.client.close()


def rows_of(ledger: Ledger) -> list[dict[str, Any]]:
    return sorted(ledger.read().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("as_table", [False, True])
def test_null_becomes_the_type_of_the_first_value(notes: Ledger, as_table: bool) -> None:
    for row in (FIRST, FIRST, SECOND, SECOND, THIRD, THIRD):
        notes.append(pa.Table.from_pylist([row]) if as_table else [row])
    assert rows_of(notes) == [row for row in (FIRST, SECOND, THIRD) for _ in range(2)]
    parts = notes.partitions() if hasattr(notes, "partitions") else []
    assert [part.schema() for part in parts] == [notes.schema()] * len(parts)


def test_values_of_a_map_get_their_type(store: LedgerStore) -> None:
    ledger = store.ledger("maps")
    kind = pa.map_(pa.string(), pa.null())
    ledger.append(pa.table({"m": pa.array([[("k", None)]], kind)}))
    ledger.append([{"m": {"k": 1.5}}, {"m": [("l", None)]}])
    assert ledger.read()["m"].to_pylist() == [[("k", None)], [("k", 1.5)], [("l", None)]]


def test_an_empty_mapping_gets_the_fields_of_the_first_one_that_has_some(notes: Ledger) -> None:
    values = [{"id": 1, "m": {}, "l": [{}]}, {"id": 2, "m": {"k": 1.5}, "l": [{"x": "a"}]}, {"id": 3, "m": {}, "l": []}]
    for row in values:
        notes.append([row])
    assert rows_of(notes) == [
        {"id": 1, "m": {"k": None}, "l": [{"x": None}]},
        {"id": 2, "m": {"k": 1.5}, "l": [{"x": "a"}]},
        {"id": 3, "m": {"k": None}, "l": []},
    ]
    with pytest.raises(Refused, match="column 'm' has the field 'other'"):
        notes.append([{"id": 4, "m": {"other": 1}, "l": None}])


def test_of_two_writers_with_two_types_the_first_wins(store: LedgerStore) -> None:
    ledger, other = store.ledger("notes"), store.ledger("notes")
    ledger.append([FIRST])
    kept = [KeptProducer(ledger.client, ledger.name) for _ in range(2)]
    for producer in kept:  # both know the column without a type
        ledger._given(producer, [FIRST], registers=True)
    ledger._given(kept[0], [SECOND], registers=True)
    with pytest.raises(Refused, match="values of column 'note' cannot have type string"):
        other._given(kept[1], [SECOND | {"note": 5}], registers=True)
    assert ledger.schema().field("note").type == pa.string()
    with pytest.raises(Refused, match=r"'note' .* is list<.*> and cannot become string"):
        other.append(pa.table({name: [value] for name, value in (SECOND | {"note": [5]}).items()}))
    other.append([SECOND | {"id": 7}])
    assert [row["id"] for row in rows_of(ledger)] == [1, 7]


def test_a_refused_value_registers_no_type(store: LedgerStore) -> None:
    ledger = store.ledger("notes")
    ledger.append([FIRST])
    before = ledger.describe()
    for wrong in (SECOND | {"id": "x"}, SECOND | {"more": 1}, {"id": 1, "note": "gift"}):
        with pytest.raises(Refused):
            ledger.append([wrong])
    with pytest.raises(Refused, match=r"'id' of the data appended to .* is string and cannot become int64"):
        ledger.append(pa.Table.from_pylist([SECOND | {"id": "x"}]))
    assert ledger.describe() == before
