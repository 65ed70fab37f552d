"""Goal: `ledger append` takes files and standard input as rows and as messages. Method: typer's runner, small files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from tests.rigs.command import run, run_json

TAIL = ("--since", "earliest", "--wait", "0", "--output", "jsonl")


@pytest.fixture
def store(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    return store


def test_files_and_standard_input_are_appended_as_rows(store: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,item\n1,tea\n")
    (tmp_path / "b.jsonl").write_text('{"item": "salt", "id": 2}\n')
    run("append", "orders", "-f", str(tmp_path / "a.csv"), "--from", str(tmp_path / "b.jsonl"))
    run("append", "orders", "--from", "-", "--format", "csv", stdin="id,item\n3,\n")
    assert run_json("describe", "orders")["columns"] == [
        {"name": "id", "type": "int64"},
        {"name": "item", "type": "string"},
    ]
    rows = [json.loads(row) for row in run("follow", "orders", *TAIL).splitlines()]
    assert rows == [{"id": 1, "item": "tea"}, {"id": 2, "item": "salt"}, {"id": 3, "item": None}]
    assert "nothing was appended" in run("append", "orders", "--from", "-", "--format", "csv", stdin="id,item\n")


def test_rows_are_appended_as_messages_with_keys_and_properties(store: Path) -> None:
    columns = ("--key-column", "k", "--properties-column", "p")
    run("append", "clicks", "--from", "-", *columns, stdin='{"k": "007", "value": "home", "p": {"by": "web"}}\n')
    log = connect(store).ledger("clicks")
    assert log.read().select(["value", "__key", "__messageProperties"]).to_pylist() == [
        {"value": b"home", "__key": "007", "__messageProperties": [("by", "web")]}
    ]
    segment = store / "ledgers" / f"{log.describe().segments[0].ledger_id}.ledger"
    assert b"007" in segment.read_bytes()
    assert b"by" in segment.read_bytes()


@pytest.mark.broker_process
def test_an_append_of_rows_that_is_wrong_makes_no_store(store: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    for arguments, words in (
        (["a message", "--from", str(tmp_path / "a.csv")], "1 message and rows were given"),
        (["--key-column", "k"], "a column is named, but no rows are given"),
        (["--from", str(tmp_path / "b.csv")], "b.csv cannot be read: No such file"),
        (
            ["--from", str(tmp_path / "a.txt")],
            "expected .csv, .jsonl, .ndjson, .json, .parquet, .arrow. Name the format with --format",
        ),
    ):
        assert words in run("append", "orders", *arguments, status=1).replace("\n", " ")
    assert not store.exists()
