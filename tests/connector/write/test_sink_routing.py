"""Goal: a batch over several ledgers is in them once, after any repetition, and rows that do not fit are refused in
time.

Method: stage and commit by hand over a broker, as Spark's processes would.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

import pyspark_ledger.connector.write.staging
from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.ledger.task import LedgerTask, ReadSource, read_rows
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.rows.shape import RowOptions, row_shape
from pyspark_ledger.connector.schema import arrow_type
from pyspark_ledger.connector.write.commit import (
    BatchEvidence,
    PartMessage,
    abort_parts,
    application_query,
    commit_parts,
    stage_rows,
)
from pyspark_ledger.connector.write.target import SinkTarget, prepare_target
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.names import partition_name
from pyspark_ledger.ledger.partition_routing import partition_for_key
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd, StopBroker
from pyspark_ledger.ledger.rows.metadata_columns import METADATA

ROUTED = StructType().add("n", LongType()).add("__ledger", StringType())
KEYED = StructType().add("n", LongType()).add("__key", StringType())


def target(store: Path, schema: StructType, path: str = "", **options: str) -> SinkTarget:
    named = {"path": path} if path else {}
    read = read_options({**named, "store": str(store), **options}, "batch write")
    return pickle.loads(pickle.dumps(prepare_target(read, schema)))  # noqa: S301  # our own bytes


def routed(*rows: tuple[int, str | None]) -> pa.RecordBatch:
    names = pa.array([name for _, name in rows], pa.string())
    return pa.record_batch({"n": pa.array([n for n, _ in rows], pa.int64()), "__ledger": names})


def stage(sink: SinkTarget, query: str, batch: int, *rows: pa.RecordBatch, task: int = 0) -> PartMessage:
    return pickle.loads(pickle.dumps(stage_rows(sink, "1", query, batch, iter(rows), task)))  # noqa: S301  # ours


def held(api: LedgerStore, name: str) -> list[int]:
    return api.ledger(name).read().column("n").to_pylist()


def parts_left(store: Path) -> list[Path]:
    return list((store / "staging").rglob("*.part"))


def test_rows_go_once_to_the_ledger_they_name_also_when_routed_again(api: LedgerStore, store: Path) -> None:
    for name in ("a", "b"):
        api.ledger(name).append(pa.table({"n": pa.array([0], pa.int64())}))
    sink = target(store, ROUTED, createLedgers="true")
    messages = [
        stage(sink, "q", 0, routed((1, "a"), (2, "b"), (3, "a")), routed((4, "public/default/a"))),
        stage(sink, "q", 0),
        stage(sink, "q", 0, routed((5, "b"), (6, "new"))),
    ]
    assert [len(message.staged) for message in messages] == [2, 0, 2]
    assert (held(api, "a"), held(api, "b"), held(api, "new")) == ([0], [0], [])
    assert not commit_parts(sink, "1", messages, 0).repeated
    assert (held(api, "a"), held(api, "b"), held(api, "new")) == ([0, 1, 3, 4], [0, 2, 5], [6])
    # Run again after a crash, by tasks to which the rows came otherwise: the first commit holds.
    again = [stage(sink, "q", 0, routed((1, "b"), (2, "b"), (3, "new"), (4, "a"), (5, "a"), (6, "a")))]
    assert commit_parts(sink, "1", again, 0).repeated
    assert commit_parts(sink, "1", messages, 0).repeated
    assert (held(api, "a"), held(api, "b"), held(api, "new")) == ([0, 1, 3, 4], [0, 2, 5], [6])
    commit_parts(sink, "1", [stage(sink, "q", 1, routed((7, "b")))], 1)
    assert held(api, "b") == [0, 2, 5, 7]
    # A batch without rows, and one that was given up.
    assert commit_parts(sink, "1", [stage(sink, "q", 2)], 2) is None
    abort_parts(sink, [stage(sink, "q", 3, routed((8, "a"))), None], 3)
    assert held(api, "a") == [0, 1, 3, 4]
    assert parts_left(store) == []


def test_rows_that_do_not_fit_their_ledger_are_refused_before_staging(api: LedgerStore, store: Path) -> None:
    api.ledger("texts").append(pa.table({"n": ["x"]}))
    api.ledger("messages").append(b"bytes")
    sink = target(store, ROUTED)
    for rows, kind, words in (
        (routed((1, "texts")), Refused, "column 'n' of ledger .*texts' is string, but bigint in the rows to write"),
        (routed((1, "messages")), Refused, "messages without columns"),
        (routed((1, "missing")), NotFound, r"rows name ledger 'missing' in '__ledger'.*'createLedgers'"),
        (routed((1, None)), Refused, "1 rows have null in '__ledger'"),
        (routed((1, "a//b")), Refused, "ledger name 'a//b'"),
    ):
        with pytest.raises(kind, match=words):
            stage(sink, "q", 0, rows)
    assert parts_left(store) == []
    assert "public/default/persistent/missing" not in api.names()
    # A ledger for the rows that name none; and without either, our words.
    rest = target(store, ROUTED, "rest")
    commit_parts(rest, "1", [stage(rest, "q", 0, routed((1, None)))], 0)
    assert held(api, "rest") == [1]
    with pytest.raises(Refused, match="no ledger is named"):
        target(store, KEYED)


def test_keys_choose_partitions_and_are_read_with_their_rows(api: LedgerStore, store: Path) -> None:
    whole = api.create_partitioned("clicks", 3)
    sink = target(store, KEYED, "clicks")
    keys = [f"user {n % 7}" for n in range(100)]
    rows = pa.record_batch({"n": pa.array(range(100), pa.int64()), "__key": keys})
    assert not commit_parts(sink, "1", [stage(sink, "q", 0, rows)], 0).repeated
    assert commit_parts(sink, "1", [stage(sink, "q", 0, rows)], 0).repeated
    assert sorted(whole.read().column("n").to_pylist()) == list(range(100))
    assert whole.read().column_names == ["n"]
    for partition in range(3):
        name = partition_name("public/default/persistent/clicks", partition)
        log = api.client.ask(AskEnd(name))
        shape = row_shape(api.ledger(name).schema(), None, RowOptions(include_metadata=True), name)
        source = ReadSource.of(api.client, shape)
        all_of_it = LedgerRange(name, log.incarnation, PositionRange(log.start, log.end))
        read = read_rows(api.client, LedgerTask(source, (all_of_it,)))
        found = pa.Table.from_batches(list(read), shape.schema)
        assert found.column("__key").to_pylist() == [keys[n] for n in found.column("n").to_pylist()]
        assert {partition_for_key(key, 3, "murmur3_32") for key in found.column("__key").to_pylist()} <= {partition}
        assert found.schema.names[-len(METADATA) :] == METADATA.names
    # Rows without a key take turns, by task and batch.
    keyless = replace(sink)
    for task in range(3):
        message = stage(keyless, "r", task, pa.record_batch({"n": pa.array([task], pa.int64())}), task=task)
        commit_parts(keyless, "1", [message], task)
    described = whole.describe().partitions
    assert sum(part.rows for part in described) == 103
    assert len({part.rows for part in described}) > 1


def test_small_writes_of_rows_without_a_key_fill_all_partitions(api: LedgerStore, store: Path) -> None:
    whole = api.create_partitioned("clicks", 3)
    sink, row = target(store, StructType().add("n", LongType()), "clicks"), pa.record_batch({"n": pa.array([1])})
    for batch in range(6):
        message = stage(sink, "q", batch, row)
        again = stage(sink, "q", batch, row)
        assert [part.ledger for part in again.staged] == [part.ledger for part in message.staged]
        commit_parts(sink, "1", [message], batch)
    assert [part.rows for part in whole.describe().partitions] == [2, 2, 2]
    # Batch writes are a query each.
    writes = {stage(sink, f"batch-{number}", 0, row).staged[0].ledger for number in range(40)}
    assert len(writes) == 3


def test_partitions_that_know_different_columns_are_one_table(api: LedgerStore, store: Path) -> None:
    whole, one = api.create_partitioned("clicks", 2), StructType().add("n", LongType())
    keys = {partition_for_key(f"k{n}", 2, "murmur3_32"): f"k{n}" for n in range(20)}
    for number, schema in enumerate((one, StructType().add("n", LongType()).add("name", StringType()))):
        sink = target(store, schema.add("__key", StringType()), "clicks", mergeSchema="true")
        said = {"n": pa.array([number]), "name": pa.array(["x"]), "__key": pa.array([keys[number]])}
        rows = pa.record_batch({name: said[name] for name in schema.names})
        commit_parts(sink, "1", [stage(sink, "q", number, rows)], number)
    assert [part.schema().names for part in whole.partitions()] == [["n"], ["n", "name"]]
    assert whole.read().to_pylist() == [{"n": 0, "name": None}, {"n": 1, "name": "x"}]


def test_a_partition_gets_the_columns_of_its_ledger_not_of_its_first_rows(api: LedgerStore, store: Path) -> None:
    whole = api.create_partitioned("clicks", 2)
    wide = StructType().add("s", StructType().add("x", LongType()).add("y", LongType())).add("__key", StringType())
    narrow = (
        StructType().add("s", StructType().add("y", IntegerType()).add("x", IntegerType())).add("__key", StringType())
    )
    keys = {partition_for_key(f"k{n}", 2, "murmur3_32"): f"k{n}" for n in range(20)}
    for batch, (schema, key) in enumerate(((wide, keys[0]), (narrow, keys[1]), (wide, keys[1]))):
        sink, kind = target(store, schema, "clicks"), arrow_type(schema["s"].dataType)
        rows = pa.record_batch({"s": pa.array([{"x": 2**batch, "y": None}, None], kind), "__key": [key, key]})
        commit_parts(sink, "1", [stage(sink, f"q{batch}", 0, rows)], 0)
    assert [part.schema() for part in whole.partitions()] == [whole.schema()] * 2
    assert [part.read()["s"].to_pylist() for part in whole.partitions()] == [
        [{"x": 1, "y": None}, None],
        [{"x": 2, "y": None}, None, {"x": 4, "y": None}, None],
    ]


def test_a_version_of_an_application_is_written_once_in_each_ledger(api: LedgerStore, store: Path) -> None:
    schema = StructType().add("n", LongType())
    sinks = {name: target(store, schema, name) for name in ("one", "two")}
    many = target(store, ROUTED, "one")

    def write(sink: SinkTarget, version: int, rows: pa.RecordBatch, app: str = "app") -> bool:
        query = application_query(sink, app)
        message = stage(sink, query, version, rows)
        return commit_parts(sink, "1", [message], version, BatchEvidence(named=True)).repeated

    def plain(n: int) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array([n], pa.int64())})

    assert [write(sinks["one"], 5, plain(1)), write(sinks["one"], 5, plain(2))] == [False, True]
    assert [write(sinks["one"], 3, plain(3)), write(sinks["one"], 6, plain(4))] == [True, False]
    # Another ledger, another application and a routed write know nothing of it.
    assert not write(sinks["two"], 5, plain(5))
    assert not write(sinks["one"], 5, plain(6), app="other")
    assert not write(many, 5, routed((7, "two"), (8, None)))
    assert write(many, 5, routed((7, None), (8, "two")))
    assert (held(api, "one"), held(api, "two")) == ([1, 4, 6, 8], [5, 7])
    assert parts_left(store) == []
    # A ledger that was deleted and created again has none of it.
    api.delete("one")
    anew = target(store, schema, "one")
    assert not write(anew, 5, plain(9))
    assert held(api, "one") == [9]


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_commit_over_several_ledgers_survives_its_broker(api: LedgerStore, store: Path) -> None:
    sink = target(store, ROUTED, createLedgers="true")
    message = stage(sink, "q", 0, *(routed((n, f"l{n % 20}")) for n in range(100)))
    commit_parts(sink, "1", [message], 0, once=True)
    api.client.ask(StopBroker())
    assert commit_parts(sink, "1", [message], 0, once=True).repeated
    again = connect(store)
    assert [held(again, f"l{n}") for n in range(20)] == [list(range(n, 100, 20)) for n in range(20)]


def test_what_is_gathered_is_bounded(api: LedgerStore, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark_ledger.connector.write.staging, "_COLLECTED_BYTES_MAX", 1000)
    sink = target(store, ROUTED, createLedgers="true")
    message = stage(
        sink, "q", 0, *(routed(*((n, f"l{n % 2}") for n in range(at, at + 50))) for at in range(0, 300, 50))
    )
    assert all(ledger.parts[0].entries > 1 for ledger in message.staged)
    commit_parts(sink, "1", [message], 0)
    assert held(api, "l0") == list(range(0, 300, 2))
    with pytest.raises(LedgerError, match="is missing"):
        commit_parts(sink, "1", [replace(message, query="other")], 0)
