"""Goal: columns are only added, and running queries keep their columns. Method: Spark's calls without a JVM.

The tests call readers and writers as Spark does, with the schemas that Spark passes, over a real broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, NullType, StringType, StructType

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.schema import arrow_schema, resolve_columns
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.arrow_payload import schema_version_of
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.actions import GetSchema
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from tests.rigs.broker_thread import served
from tests.rigs.entry import parsed
from tests.rigs.scan import rows_of

ONE = StructType().add("id", LongType())
TWO = StructType().add("id", LongType()).add("name", StringType())


class Place(NamedTuple):
    """Ledger of one test in the store of this file."""

    store: Path
    name: str


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("grown") / "store"
    with served(path):
        yield path


@pytest.fixture
def place(grown: Path, request: pytest.FixtureRequest) -> Place:
    return Place(grown, request.node.name)


def source(place: Place, **options: str) -> LedgerSource:
    return LedgerSource({"path": place.name, "store": str(place.store)} | options, "0")


def write(place: Place, schema: StructType, rows: list[dict[str, Any]], **options: str) -> None:
    writer = source(place, **options).batch_writer(schema, overwrite=False)
    arrow = arrow_schema(schema)
    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist(rows, arrow)]))])


def read(place: Place, schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    return rows_of(source(place, **options), schema)


def states(place: Place) -> list[int]:
    """Return the schema versions in the metadata of entries."""
    log = connect(place.store).ledger(place.name)
    request = ReadRequest(log.name, PositionRange(log.end().start, log.end().end))
    return [
        schema_version_of(entry.metadata, "") for block in log.client.read_blocks(request) for _, entry in parsed(block)
    ]


def test_columns_are_added_with_merge_schema_only_and_the_log_is_kept(place: Place) -> None:
    write(place, ONE, [{"id": 1}])
    with pytest.raises(Refused, match=r"column 'name' \(string\) not in the ledger\. .*mergeSchema"):
        write(place, TWO, [{"id": 2, "name": "b"}])
    write(place, TWO, [{"id": 2, "name": "b"}], mergeSchema="true")
    assert connect(place.store).ledger(place.name).describe().schema_version == 1
    with pytest.raises(Refused, match=r"column 'name' \(string\) missing\."):
        write(place, ONE, [{"id": 3}])
    write(place, ONE, [{"id": 3}], mergeSchema="true")
    with pytest.raises(
        Refused, match=r"columns 'id' \(int64\), 'name' \(string\) missing, and column 'x' \(int64\) not in the ledger"
    ):
        connect(place.store).ledger(place.name).append([{"x": 1}])
    with pytest.raises(Refused, match=r"columns 'c0' \(int64\), .*'c7' \(int64\) and 92 more not in the ledger\."):
        connect(place.store).ledger(place.name).append([{f"c{n}": 1 for n in range(100)}])
    assert connect(place.store).ledger(place.name).describe().schema_version == 1
    assert read(place) == [{"id": 1, "name": None}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]
    assert read(place, columns="name") == [{"name": None}, {"name": "b"}, {"name": None}]
    # Partitions get the columns of their partitioned ledger.
    whole = connect(place.store).create_partitioned("views", 2)
    write(place, ONE, [{"id": 1}, {"id": 2}], path="views")
    write(place, TWO, [{"id": number, "name": "b"} for number in range(3, 6)], path="views", mergeSchema="true")
    assert whole.read().column_names == ["id", "name"]
    assert sorted(whole.read().column("id").to_pylist()) == [1, 2, 3, 4, 5]


def test_a_type_only_widens_and_a_refusal_leaves_everything_as_it_was(place: Place) -> None:
    write(place, ONE, [{"id": 1}])
    before = connect(place.store).ledger(place.name).describe()
    for schema, words in (
        (
            StructType().add("more", StringType()).add("id", DoubleType()),
            "'id' of ledger .* is bigint, but double in the rows to write",
        ),
        (StructType().add("ID", LongType()), "column 'ID' cannot be added to ledger .*, which has 'id'"),
    ):
        with pytest.raises(Refused, match=words):
            source(place, mergeSchema="true").batch_writer(schema, overwrite=False)
    assert connect(place.store).ledger(place.name).describe() == before
    assert not list((place.store / "staging").rglob("*.part"))


def test_a_running_query_keeps_its_columns_and_the_next_one_has_the_new(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    write(place, ONE, [{"id": 1}])
    planned = source(place, startingPosition="earliest")
    schema = planned.schema()
    reader = planned.stream_reader(schema)
    start = reader.initialOffset()
    write(place, TWO, [{"id": 2, "name": "b"}], mergeSchema="true")
    end = reader.latestOffset(start, None)
    report = reader.reportLatestOffset()
    assert (report["columnsAdded"], report["columnsNotRead"]) == (1, ["name"])
    assert list(report) == sorted(report)
    found = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [{"id": 1}, {"id": 2}]
    reader.stop()
    assert "starts without" not in caplog.text
    # Spark asks again for a reader with the planned schema, also after the columns were added.
    again = planned.stream_reader(schema)
    found = [row for part in again.partitions(start, end) for batch in again.read(part) for row in batch.to_pylist()]
    assert found == [{"id": 1}, {"id": 2}]
    again.stop()
    said = [
        record.getMessage() for record in caplog.records if "starts without the columns name" in record.getMessage()
    ]
    assert len(said) == 1, "once for each run"
    assert "call load() again" in said[0]
    restarted = source(place, startingPosition="earliest")
    assert restarted.schema().names == ["id", "name"]
    last = restarted.stream_reader(restarted.schema())
    last.latestOffset(start, None)
    assert "columnsAdded" not in last.reportLatestOffset()
    found = [row for part in last.partitions(start, end) for batch in last.read(part) for row in batch.to_pylist()]
    assert found == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]
    last.stop()


def test_newer_columns_are_rescued_where_that_is_asked_for(place: Place) -> None:
    write(place, ONE, [{"id": 1}])
    planned = source(place, rescuedDataColumn="_rescued_data").schema()
    write(place, TWO, [{"id": 2, "name": "b"}], mergeSchema="true")
    first, second = read(place, planned, rescuedDataColumn="_rescued_data")
    assert first == {"id": 1, "_rescued_data": None}
    assert second["id"] == 2
    assert json.loads(second["_rescued_data"])["name"] == "b"


VOID = StructType().add("id", LongType()).add("name", NullType())
LISTS = [StructType().add("id", LongType()).add("names", ArrayType(kind)) for kind in (NullType(), StringType())]


@pytest.mark.parametrize("options", [{}, {"rescuedDataColumn": "_rescued_data"}, {"columns": "name"}], ids=str)
def test_a_query_of_a_column_without_a_type_ends_at_its_first_value(place: Place, options: dict[str, str]) -> None:
    write(place, VOID, [{"id": 1, "name": None}])
    planned = source(place, startingPosition="earliest", **options)
    schema = planned.schema()
    reader = planned.stream_reader(schema)
    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start, None))
    write(place, TWO, [{"id": 2, "name": None}])
    first = reader.latestOffset(start, None)
    found = [
        row for part in reader.partitions(start, first) for batch in reader.read(part) for row in batch.to_pylist()
    ]
    assert [row["name"] for row in found] == [None, None], "there is no value yet"
    write(place, TWO, [{"id": 3, "name": "b"}])
    second = reader.latestOffset(first, None)
    with pytest.raises(Refused, match=r"'name' .* is string, but it was null when this read was planned\. Start again"):
        [batch for part in reader.partitions(first, second) for batch in reader.read(part)]
    reader.stop()
    with pytest.raises(Refused, match=r"is string, the read was planned with void\. Call load\(\) again"):
        planned.stream_reader(schema)
    assert [row["name"] for row in read(place, **options)] == [None, None, "b"]


def test_elements_of_later_writes_are_never_null_in_an_older_plan(place: Place) -> None:
    write(place, LISTS[0], [{"id": 1, "names": [None]}])
    planned = source(place)
    stale = planned.batch_reader(planned.schema())
    write(place, LISTS[1], [{"id": 2, "names": ["b", None]}])
    with pytest.raises(Refused, match=r"'names' .* is list<.*string>, but.*Start again"):
        [batch for part in stale.partitions() for batch in stale.read(part)]
    assert [row["names"] for row in read(place)] == [[None], ["b", None]]


def test_fields_are_added_to_structs_and_an_older_plan_loses_none(place: Place) -> None:
    one = StructType().add("s", ArrayType(StructType().add("x", LongType())))
    two = StructType().add("s", ArrayType(StructType().add("y", StringType()).add("x", LongType())))
    write(place, one, [{"s": [{"x": 1}]}])
    with pytest.raises(Refused, match=r"'s\.element\.y' \(string\) not in the ledger.*set mergeSchema"):
        write(place, two, [{"s": [{"x": 2, "y": "b"}]}])
    planned = source(place)
    stale = planned.batch_reader(planned.schema())
    write(place, two, [{"s": [{"x": 2, "y": "b"}, None]}], mergeSchema="true")
    write(place, one, [{"s": [{"x": 3}]}], mergeSchema="true")
    values = [[{"x": 1, "y": None}], [{"x": 2, "y": "b"}, None], [{"x": 3, "y": None}]]
    assert [row["s"] for row in read(place)] == values
    assert connect(place.store).ledger(place.name).read()["s"].to_pylist() == values
    with pytest.raises(Refused, match=r"Start again: call load\(\) again"):
        [batch for part in stale.partitions() for batch in stale.read(part)]


def test_of_two_writes_with_two_types_the_first_wins(place: Place) -> None:
    write(place, VOID, [{"id": 1, "name": None}])
    asked = connect(place.store).client.ask
    void = asked(GetSchema(place.name))
    numbers = StructType().add("id", LongType()).add("name", LongType())
    write(place, TWO, [{"id": 2, "name": "b"}])  # between the second writer's look and its registration
    with pytest.raises(Refused, match=r"'name' .* is string, but bigint in the rows to write"):
        resolve_columns(asked, numbers, void, place.name, merge=False)
    assert [row["name"] for row in read(place)] == [None, "b"]


def test_ledgers_with_and_without_a_type_are_read_together(place: Place) -> None:
    names = [f"{place.name}-{part}" for part in "ab"]
    write(place, VOID, [{"id": 1, "name": None}], path=names[0])
    write(place, TWO, [{"id": 2, "name": "b"}], path=names[1])
    both = rows_of(LedgerSource({"ledgers": ",".join(names), "store": str(place.store)}, "0"))
    assert sorted(both, key=lambda row: row["id"]) == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]


def test_payload_schemas_that_are_registered_make_columns(place: Place) -> None:
    ledger = connect(place.store).ledger(place.name)
    avro = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    more = {**avro, "fields": [*avro["fields"], {"name": "name", "type": ["null", "string"], "default": None}]}
    first = json.dumps([{"version": 0, "type": "JSON", "data": avro}])
    both = json.dumps([{"version": 0, "type": "JSON", "data": avro}, {"version": 1, "type": "JSON", "data": more}])
    assert ledger.register_payload_schemas(first) == 0
    with ledger.producer() as producer:
        producer.send(b'{"id": 0, "name": "not of this version"}')
    assert ledger.register_payload_schemas(both) == 1
    assert ledger.register_payload_schemas(first) == 0
    assert ledger.describe().schema_version == 1
    assert ledger.schema() is None
    with pytest.raises(Refused, match=r"schema version 0 of ledger .* differs from the version"):
        ledger.register_payload_schemas("INT64")
    with pytest.raises(Refused, match=r"schema versions 3 were given .* expected all from 0 on"):
        ledger.register_payload_schemas(json.dumps([{"version": 3, "type": "JSON", "data": avro}]))
    with ledger.producer() as producer:
        producer.send(b'{"id": 1}', key="a")
        producer.send(b'{"id": 2, "name": "b"}', key="b")
    assert [row["id"] for row in read(place)] == [0, 1, 2]
    assert read(place, columns="id,__key")[1:] == [{"id": 1, "__key": "a"}, {"id": 2, "__key": "b"}]
    assert sorted(set(states(place))) == [0, 1]
    with pytest.raises(Corrupt, match=r"schema version 1 is not among those given \(0\)"):
        read(place, payloadSchema="STRING")
    with pytest.raises(Refused, match="has messages with a payload schema"):
        write(place, ONE, [{"id": 1}])
    with pytest.raises(Refused, match="has messages with a payload schema"):
        ledger.append([{"id": 1}])


def test_a_read_of_several_ledgers_matches_the_fields_of_structs(place: Place) -> None:
    pair, api = {"x": 1, "y": 2}, connect(place.store)
    for part, names in (("a", "xy"), ("b", "yx")):
        kind = pa.struct([(name, pa.int64() if part == "b" else pa.int32()) for name in names])
        api.ledger(f"{place.name}-{part}").append(pa.table({"s": pa.array([pair, None], kind), "l": [[pair], None]}))
    api.ledger(f"{place.name}-b").append(pa.table({"s": pa.nulls(1), "l": pa.array([[]], pa.list_(pa.null()))}))
    both = LedgerSource({"ledgers": f"{place.name}-a,{place.name}-b", "store": str(place.store)}, "0")
    found = rows_of(both)
    assert sorted(found, key=str) == sorted(
        [{"s": pair, "l": [pair]}, {"s": None, "l": None}] * 2 + [{"s": None, "l": []}], key=str
    )
