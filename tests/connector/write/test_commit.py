"""Goal: a batch is in the log once or not at all. Method: stage and commit by hand over a broker, which is killed."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.write import commit
from pyspark_ledger.connector.write.checkpoint import Checkpoint
from pyspark_ledger.connector.write.commit import (
    BatchEvidence,
    PartMessage,
    abort_parts,
    commit_parts,
    run_of,
    stage_rows,
)
from pyspark_ledger.connector.write.target import SinkTarget, prepare_target
from pyspark_ledger.connector.write.writers import LedgerBatchWriter, LedgerStreamWriter
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.protocol.actions import ChangeSetting
from pyspark_ledger.ledger.protocol.request import Request
from tests.rigs import broker_process as fixtures

SCHEMA = StructType().add("n", LongType()).add("s", StringType())
QUERY = "7e0a5d4e-6a5e-4ed7-9f0e-0a4d2b1f5c11"


def target(store: Path, **options: str) -> SinkTarget:
    read = read_options({"path": "out", "store": str(store), **options}, "stream write")
    return pickle.loads(pickle.dumps(prepare_target(read, SCHEMA)))  # our own bytes  # noqa: S301


def batches(first: int, end: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"s": pa.array([str(n)]), "n": pa.array([n], pa.int64())}) for n in range(first, end)]


def stage(sink: SinkTarget, batch: int, first: int, end: int, query: str = QUERY) -> PartMessage:
    return pickle.loads(pickle.dumps(stage_rows(sink, "1", query, batch, iter(batches(first, end)))))  # our own bytes  # noqa: S301


def held(store: Path) -> list[int]:
    return connect(store).ledger("out").read().column("n").to_pylist()


def test_rows_are_seen_at_commit_in_the_order_of_tasks_and_once(store: Path) -> None:
    sink = target(store)
    messages = [stage(sink, 0, 0, 5), stage(sink, 0, 5, 5), stage(sink, 0, 5, 9)]
    assert messages[1].parts == []
    assert held(store) == []
    first = commit_parts(sink, "1", messages, 0)
    assert (first.repeated, first.rows) == (False, 9)
    assert held(store) == list(range(9))
    # The same batch again: by the same messages, and by tasks that ran again.
    assert commit_parts(sink, "1", messages, 0).repeated
    assert commit_parts(sink, "1", [stage(sink, 0, 0, 9)], 0).repeated
    assert held(store) == list(range(9))
    commit_parts(sink, "1", [stage(sink, 1, 9, 12)], 1)
    assert held(store) == list(range(12))


def test_access_to_a_bucket_is_refused_by_a_write_that_uses_none(store: Path) -> None:
    source = LedgerSource({"store": str(store), "path": "orders", "offloadRegion": "eu-central-1"}, "0")
    with pytest.raises(Refused, match=f"'offloadRegion' has no meaning for a write to the store in {store}"):
        source.batch_writer(StructType().add("id", LongType()), overwrite=False)
    assert connect(store).names() == []


def test_a_batch_without_rows_commits_nothing(store: Path) -> None:
    sink = target(store)
    assert commit_parts(sink, "1", [stage(sink, 0, 0, 0)], 0) is None
    assert commit_parts(sink, "1", [], 1) is None
    assert connect(store).ledger("out").describe().entries == 0


def test_messages_that_disagree_are_refused_naming_both(store: Path) -> None:
    sink = target(store)
    mine, other = stage(sink, 3, 0, 1), stage(sink, 3, 1, 2, query="another")
    for messages, batch, version, words in (
        ([mine, other], 3, "1", f"query 'another', the commit is of '{QUERY}'"),
        ([mine], 4, "1", "batch 3, the commit is of 4"),
        ([mine], 3, "2", "version of pyspark-ledger '1', the commit is of '2'"),
        ([mine, None], 3, "1", "1 of 2 tasks sent no message"),
    ):
        with pytest.raises(Refused, match=words):
            commit_parts(sink, version, messages, batch)
    assert held(store) == []


def test_what_was_aborted_cannot_be_committed(store: Path) -> None:
    sink = target(store)
    messages = [stage(sink, 0, 0, 5), None]
    abort_parts(sink, messages, 0)
    with pytest.raises(LedgerError, match="is missing"):
        commit_parts(sink, "1", messages[:1], 0)
    assert held(store) == []


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_broker_killed_at_every_step_changes_nothing(store: Path) -> None:
    sink = target(store)
    # Three quick deaths: after more of them the supervisor would wait longer than the test.
    commit_parts(sink, "1", [stage(sink, 0, 0, 10)], 0)
    fixtures.kill_broker(store)
    part = stage(sink, 1, 10, 20)
    fixtures.kill_broker(store)
    commit_parts(sink, "1", [part], 1)
    fixtures.kill_broker(store)
    assert commit_parts(sink, "1", [part], 1).repeated
    assert held(store) == list(range(20))


def test_entries_are_about_as_large_as_asked_and_never_too_large(store: Path) -> None:
    sink = target(store, entryBytes="64k", compression="lz4")
    wide = pa.record_batch({"n": pa.array(range(4000), pa.int64()), "s": pa.array(["x" * 100] * 4000)})
    message = stage_rows(sink, "1", QUERY, 0, iter([wide]))
    assert 6 <= message.parts[0].entries <= 10
    commit_parts(sink, "1", [message], 0)
    assert held(store) == list(range(4000))
    with pytest.raises(Refused, match=r"'entryBytes' is 67108864, but .* because its blocks have 67108864 bytes"):
        target(store, entryBytes="64m")


def test_an_entry_that_turns_out_too_large_is_halved_down_to_a_row(store: Path) -> None:
    from dataclasses import replace

    sink = target(store)
    sink = replace(sink, named=replace(sink.named, entry_bytes_most=4096))
    rows = pa.record_batch({"n": pa.array(range(16), pa.int64()), "s": pa.array(["x" * 1000] * 16)})
    message = stage_rows(sink, "1", QUERY, 0, iter([rows]))
    commit_parts(sink, "1", [message], 0)
    assert held(store) == list(range(16))
    with pytest.raises(Refused, match=r"one row .* takes \d+ bytes, an entry holds at most 4096"):
        stage_rows(sink, "1", QUERY, 1, iter([pa.record_batch({"n": pa.array([1]), "s": pa.array(["x" * 5000])})]))


def test_the_run_depends_on_query_and_batch_alone() -> None:
    assert run_of(QUERY, 3) == run_of(QUERY, 3)
    assert run_of(QUERY, 3).most == run_of(QUERY, 4).most != run_of("other", 3).most
    assert 0 <= run_of(QUERY, 3).most < 2**64


def test_of_two_attempts_of_a_task_one_is_committed_and_the_other_swept(store: Path) -> None:
    sink = target(store)
    lost, won = stage(sink, 0, 0, 5), stage(sink, 0, 0, 5)
    commit_parts(sink, "1", [won], 0)
    assert held(store) == list(range(5))
    left = [path.name for path in (store / "staging").rglob("*.part")]
    assert left == [Path(lost.parts[0].part).name]
    commit_parts(sink, "1", [stage(sink, 1, 5, 6)], 1)
    assert not list((store / "staging").rglob("*.part"))


def test_a_commit_whose_answer_was_lost_is_aborted_and_run_again(store: Path) -> None:
    sink = target(store)
    message = stage(sink, 0, 0, 5)
    commit_parts(sink, "1", [message], 0)
    # Spark was told of a failure: it aborts with all messages, and its next run makes the batch again.
    abort_parts(sink, [message], 0)
    assert commit_parts(sink, "1", [stage(sink, 0, 0, 5)], 0).repeated
    assert held(store) == list(range(5))
    assert not list((store / "staging").rglob("*.part"))


def test_two_queries_write_one_ledger_each_its_batches_once(store: Path) -> None:
    sink = target(store)
    for batch in range(3):
        ours, theirs = (stage(sink, batch, first, first + 5, query=query) for query, first in (("a", 0), ("b", 100)))
        assert not commit_parts(sink, "1", [ours], batch).repeated
        assert not commit_parts(sink, "1", [theirs], batch).repeated
        assert commit_parts(sink, "1", [stage(sink, batch, 0, 5, query="a")], batch).repeated
    assert sorted(held(store)) == sorted([*range(5), *range(100, 105)] * 3)


def unread() -> Iterator[pa.RecordBatch]:
    pytest.fail("a row was pulled")
    yield


def checkpoint_of(folder: Path, **offsets: str) -> str:
    """Write a checkpoint of the query with the offsets `b0`, `b1` … of its batches, and return its location."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    for name, line in offsets.items():
        metadata = json.dumps({"batchTimestampMs": time.time_ns()})
        (folder / "offsets" / name[1:]).write_text(f"v1\n{metadata}\n{line}")
    return str(folder)


def test_tasks_of_a_batch_that_is_there_pull_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, asked = target(store), []
    checkpoint = checkpoint_of(tmp_path / "checkpoint", b0="4", b1="6")
    writer = LedgerStreamWriter(sink, "1", checkpoint)
    evidence = BatchEvidence(Checkpoint(checkpoint))

    def task(batch: int, rows: Iterator[pa.RecordBatch]) -> PartMessage:
        monkeypatch.setattr("pyspark_ledger.connector.write.writers.running_batch", lambda: (QUERY, batch))
        return writer.write(rows)  # type: ignore[return-value]

    ask = Client.ask

    def counting(self: Client, request: Request[object], **named: object) -> object:
        asked.append(request.call.name)
        return ask(self, request, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "_staged", {})
    monkeypatch.setattr(Client, "ask", counting)
    commit_parts(sink, "1", [task(0, iter(batches(0, 4)))], 0, evidence)
    commit_parts(sink, "1", [task(1, iter(batches(4, 6)))], 1, evidence)
    assert asked.count("run.newest") == 1, "who goes on asks no more"
    # The batch again: in a process that staged it, and in one that staged nothing.
    for known in ({}, dict(commit._staged)):
        monkeypatch.setattr(commit, "_staged", known)
        messages = [task(1, unread()), task(1, unread()), stage(sink, 1, 4, 6)]
        assert commit_parts(sink, "1", messages, 1, evidence).repeated
    assert held(store) == list(range(6))
    assert not list((store / "staging").rglob("*.part"))
    # The checkpoint went back, and batch 1 has other offsets now. The task pulls nothing, and the commit fails.
    checkpoint_of(tmp_path / "checkpoint", b1="5")
    with pytest.raises(Refused, match=r"batch 1 of query .* with offsets .* and now has offsets"):
        commit_parts(sink, "1", [task(1, unread())], 1, evidence)


def test_a_batch_of_unknown_offsets_is_compared_by_its_rows(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = target(store)
    writer = LedgerStreamWriter(sink, "1", "hdfs://nowhere/checkpoint")
    monkeypatch.setattr("pyspark_ledger.connector.write.writers.running_batch", lambda: (QUERY, 0))

    def write(*tasks: list[pa.RecordBatch]) -> None:
        writer.commit([writer.write(iter(task)) for task in tasks], 0)  # type: ignore[misc]

    write(batches(0, 4), batches(4, 6))
    write(batches(4, 6), batches(3, 4), batches(0, 3)[::-1])  # other tasks, another order, the same rows
    with pytest.raises(Refused, match=r"with 6 rows with sums .* and now has 6 rows with sums"):
        write(batches(1, 7))
    with pytest.raises(Refused, match="now has 5 rows"):
        write(batches(0, 5))
    assert held(store) == list(range(6))


def test_a_version_without_rows_is_recorded_without_an_entry(store: Path) -> None:
    def write(path: str, first: int, end: int) -> None:
        given = {"path": path, "store": str(store), "txnAppId": "nightly", "txnVersion": "1"}
        options = read_options(given, "batch write")
        writer = LedgerBatchWriter(prepare_target(options, SCHEMA), "1", options.application)
        writer.commit([writer.write(iter(batches(first, end)))] if end else [])

    api = connect(store)
    api.create_partitioned("parts", 2)
    for path in ("out", "parts"):
        write(path, 0, 0)
        write(path, 0, 5)
        assert api.ledger(path).read().num_rows == 0
        assert api.ledger(path).describe().entries == 0
        write(path, 0, 0)


def test_commit_of_a_missing_batch_fails_and_appends_nothing(store: Path) -> None:
    options = read_options(
        {"path": "out", "store": str(store), "txnAppId": "nightly", "txnVersion": "3"}, "batch write"
    )

    def writer() -> LedgerBatchWriter:
        return LedgerBatchWriter(prepare_target(options, SCHEMA), "1", options.application)

    first = writer()
    first.commit([first.write(iter(batches(0, 4)))])
    again = writer()
    messages = [again.write(unread())]
    again.commit(messages)
    assert held(store) == list(range(4))
    connect(store).delete("out")
    writer()
    with pytest.raises(
        LedgerError, match=r"batch 3 of .*out was in the log when its tasks began, and is not in the log any more"
    ):
        again.commit(messages)
    assert connect(store).ledger("out").describe().entries == 0


@pytest.mark.broker_process
def test_the_log_of_the_broker_follows_a_batch_with_and_without_a_header(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = target(store)
    connect(store).client.ask(ChangeSetting("logFormat", "json"))
    commit_parts(sink, "1", [stage(sink, 0, 0, 2), stage(sink, 0, 2, 5)], 0)
    commit_parts(sink, "1", [stage(sink, 0, 0, 5)], 0)
    monkeypatch.setattr("pyspark_ledger.ledger.client.broker_connection.batch_header", list)  # an earlier client
    commit_parts(sink, "1", [stage(sink, 1, 5, 6)], 1)
    lines = [json.loads(line) for line in (store / "broker.log").read_text().splitlines() if line.startswith("{")]
    steps = [(line["batch"], line["step"], line.get("rows")) for line in lines if "step" in line]
    first, second = f"{QUERY}:0", f"{QUERY}:1"
    assert [step for step in steps if step[1] == "sync"] == [(first, "sync", 5), (second, "sync", 1)]
    assert {step for batch, step, _ in steps if batch == first} >= {"stage.open", "run.commit", "sync"}
    assert [line["repeated"] for line in lines if line.get("step") == "run.commit"] == [False, True]
    assert {step for batch, step, _ in steps if batch == second} == {"sync"}, "calls without a header are not logged"
