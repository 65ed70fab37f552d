"""Goal: times and types are printed as a person reads them. Method: typer's runner on a small store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.times import iso_text
from tests.rigs.bucket import kafka_batch
from tests.rigs.command import dumped, dumped_json, run, run_json


@pytest.fixture
def store(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    monkeypatch.setenv("COLUMNS", "200")
    return store


def test_commands_take_and_print_times_that_a_person_reads(store: Path) -> None:
    orders = connect(store).ledger("orders")
    orders.append([{"id": 1, "item": "tea"}])
    orders.seal()
    described = run_json("describe", "orders")
    start, end, published = described["start"], described["end"], described["last_publish_ms"]
    after, at = iso_text(published + 1), iso_text(published)
    assert [run_json("seek", "orders", time)["position"] for time in (at, after, str(published))] == [start, end, start]
    rows = ("--wait", "0", "--output", "jsonl")
    assert [run("follow", "orders", "--since", time, *rows).count("tea") for time in (at, after)] == [1, 0]
    assert run_json("cursor", "create", "orders", "billing", "--start", after)["backlog_rows"] == 0
    assert run_json("cursor", "reset", "orders", "billing", "--at-time", at)["backlog_rows"] == 1
    assert run_json("cursor", "reset", "orders", "billing", after)["backlog_rows"] == 0
    sealed = described["segments"][0]["close_ms"]
    for flags, shown in (((), iso_text), (("--epoch-ms",), str)):
        said = run("describe", "orders", *flags)
        assert f"last append: {shown(published)}" in said
        assert f"sealed {shown(sealed)}" in said
    segment = str(store / "ledgers" / f"{start[0]}.ledger")
    assert f"brokerTime={at}" in dumped("segment", segment)
    assert f"brokerTime={published}" in dumped("segment", segment, "--epoch-ms")
    assert dumped_json("segment", segment)[0]["brokerTime"] == published


def test_record_batches_of_kafka_are_described_and_end_a_tail(store: Path) -> None:
    topic = connect(store).ledger("topic")
    with topic.producer() as producer:
        producer.send(b"first").result()
    with topic.client.producer(topic.name) as producer:
        producer.append(kafka_batch(1, num_messages_in_batch=3)).result()
    described = run_json("describe", "topic")
    assert (described["entries"], described["rows"]) == (2, 4)
    said = run("follow", "topic", "--since", "earliest", "--wait", "0", status=1)
    assert "stored by KoP with entry.format=kafka" in said
    assert "Read the topic with a Kafka client" in said


def test_a_ledger_is_described_with_the_types_of_its_columns(store: Path) -> None:
    run("create", "empty")
    assert "columns: none\n  durability: fsync\n" in run("describe", "empty")
    run("create", "fast", "--durability", "os")
    assert "  durability: os\n" in run("describe", "fast")
    assert run_json("describe", "empty")["columns"] == []
    connect(store).ledger("orders").append([{"id": 1, "item": "tea"}])
    assert "columns: id int64, item string (version 0)" in run("describe", "orders")
    columns = [{"name": "id", "type": "int64"}, {"name": "item", "type": "string"}]
    assert run_json("describe", "orders")["columns"] == columns
    connect(store).ledger("raw").register_payload_schemas('{"type": "STRING"}')
    assert "columns: a payload schema (version 0)" in run("describe", "raw")
