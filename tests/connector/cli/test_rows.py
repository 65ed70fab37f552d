"""Goal: a shell appends and reads rows, in pipes that end at any time. Method: typer's runner, and real processes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.connector.rows import row_input
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from tests.rigs.command import run

LEDGER = [sys.executable, "-c", "from pyspark_ledger.connector.cli.app import app; app(prog_name='ledger')"]
WAIT_SECONDS = 60.0
ROWS = [{"id": 1, "item": "tea"}, {"id": 2, "item": "salt"}]


@pytest.fixture
def store(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    return store


def read(*arguments: str) -> list[object]:
    return [json.loads(line) for line in run("read", *arguments, "--output", "jsonl").splitlines()]


def printed(*arguments: str) -> pa.BufferReader:
    return pa.BufferReader(CliRunner().invoke(app, ["read", *arguments]).stdout_bytes)


def test_rows_are_printed_in_each_format(store: Path) -> None:
    end = connect(store).ledger("orders").append(ROWS)
    assert read("orders") == ROWS
    assert read("orders", "--columns", "item, id") == [{"item": row["item"], "id": row["id"]} for row in ROWS]
    assert pa.ipc.open_stream(printed("orders", "-o", "arrow")).read_all().to_pylist() == ROWS
    assert pyarrow.parquet.read_table(printed("orders", "-o", "parquet")).to_pylist() == ROWS
    assert "│ 2  │ salt │" in run("read", "orders")
    connect(store).ledger("orders").append([{"id": 3, "item": None}])
    assert read("orders", "--since", str(end)) == [{"id": 3, "item": None}]
    assert read("orders", "--until", str(end)) == ROWS
    assert read("orders", "--since", "2100-01-01T00:00:00Z") == []
    empty = printed("orders", "--since", "2100-01-01T00:00:00Z", "-o", "parquet")
    assert pyarrow.parquet.read_table(empty).schema.names == ["id", "item"]


def test_messages_and_partitions_are_printed(store: Path) -> None:
    run("append", "clicks", "home", "basket")
    assert read("clicks", "--columns", "value") == [{"value": "aG9tZQ=="}, {"value": "YmFza2V0"}]
    parts = connect(store).create_partitioned("parts", 2)
    for number in range(4):
        parts.append([{"id": number}])
    assert sorted(row["id"] for row in read("parts", "--since", "2000-01-01T00:00:00Z")) == [0, 1, 2, 3]  # type: ignore[index]
    followed = run("follow", "parts", "--since", "earliest", "--wait", "0", "--output", "jsonl").splitlines()
    assert sorted(json.loads(line)["id"] for line in followed) == [0, 1, 2, 3]
    assert run("follow", "parts", "--wait", "0") == "", "new rows only"
    assert "--since is the position 0:1" in run("follow", "parts", "--since", "0:1", status=1)
    said = run("read", "parts", "--since", "0:1", status=1)
    assert "--since is the position 0:1, but parts has partitions. Name a time, or a partition" in said


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["read", "ordrs"], 1, "there is no ledger 'ordrs'"),
        (["read", "ordrs"], 1, "Did you mean 'orders'?"),
        (
            ["read", "orders", "--columns", "id,itm"],
            1,
            "'itm', but ledger 'orders' has no such column. Did you mean 'item'?",
        ),
        (["read", "orders", "--columns", "zzz"], 1, "The columns are id, item"),
        (["read", "orders", "--columns", "id,id"], 1, "columns names 'id' 2 times. Name each column once"),
        (["read", "orders", "--since", "soon"], 1, "--since is 'soon', expected earliest, latest, SEGMENT:ENTRY"),
        (["read", "orders", "--colums", "id"], 2, "--columns"),
        (["reed", "orders"], 2, "Did you mean 'read'"),
        (
            ["append", "orders", "--format", "csv"],
            1,
            "format csv is named, but no rows are given. Name their file with",
        ),
    ],
)
def test_near_misses_and_wrong_values_are_named(store: Path, words: list[str], status: int, said: str) -> None:
    connect(store).ledger("orders").append(ROWS)
    assert said in " ".join(run(*words, status=status).split())


def test_a_wrong_line_says_how_far_rows_were_appended(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_input, "PART_BYTES", 30)
    monkeypatch.setattr(row_input, "_READ_BYTES", 10)
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"".join(b'{"id": %d}\n' % number for number in range(8)) + b'{"id": "eight"}\n{"id": 9}\n')
    said = run("append", "orders", "--from", str(file), status=1)
    orders = connect(store).ledger("orders")
    appended = [row["id"] for row in orders.read().to_pylist()]
    assert appended == list(range(len(appended)))
    assert 0 < len(appended) <= 8
    assert f"line 9 of {file} cannot be read as jsonl" in said
    assert """; it is '{"id": "eight"}'. The rows before were appended, up to """ + str(orders.end().end) in said
    said = run("append", "none", "--from", "-", status=1, stdin='{"id": }\n')
    assert "line 1 of standard input cannot be read" in said
    assert "Nothing was appended" in said
    with pytest.raises(NotFound):
        connect(store).ledger("none").describe()


def test_what_read_prints_append_takes(store: Path, tmp_path: Path) -> None:
    connect(store).ledger("orders").append(ROWS)
    for name in ("x.jsonl", "x.arrow", "x.parquet"):
        (tmp_path / name).write_bytes(printed("orders", "-o", name.partition(".")[2]).read())
        run("append", "copies", "--from", str(tmp_path / name))
    assert read("copies") == 3 * ROWS


@pytest.mark.thorough
@pytest.mark.parametrize("output", ["table", "jsonl", "arrow", "parquet"])
def test_the_end_of_the_reader_ends_the_command(store: Path, output: str) -> None:
    connect(store).ledger("orders").append(pa.table({"id": range(300_000), "item": ["tea"] * 300_000}))
    reading, writing = os.pipe()
    command = [*LEDGER, "read", "orders", "--output", output]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True) as reader:
        os.close(writing)
        assert os.read(reading, 4)
        os.close(reading)
        assert reader.stderr is not None
        assert reader.stderr.read() == ""
        assert reader.wait(WAIT_SECONDS) == 141


@pytest.mark.thorough
def test_rows_that_arrive_slowly_are_appended_soon(store: Path) -> None:
    orders = connect(store).ledger("orders")
    command = [*LEDGER, "append", "orders", "--from", "-", "--output", "json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as appending:
        assert appending.stdin is not None
        for number in range(3):
            appending.stdin.write(b'{"id": %d}\n' % number)
            appending.stdin.flush()
            until = time.monotonic() + WAIT_SECONDS
            while not (connect(store).names() and orders.read().num_rows == number + 1):
                assert time.monotonic() < until, f"row {number} was not appended while the input is open"
                time.sleep(0.02)
        printed_last, _ = appending.communicate(timeout=WAIT_SECONDS)
    assert json.load(io.BytesIO(printed_last))["end"]
    assert appending.returncode == 0


@pytest.mark.thorough
@pytest.mark.broker_process
def test_a_shell_completes_names_and_starts_no_broker(store: Path) -> None:
    def completed() -> list[str]:
        asked = {"_LEDGER_COMPLETE": "complete_bash", "COMP_WORDS": "ledger read or", "COMP_CWORD": "2"}
        done = subprocess.run(LEDGER, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed() == []
    assert BrokerRecord.read(store) is None
    for name in ("orders", "old/er/orders", "prices"):
        connect(store).ledger(name).append(ROWS)
    assert completed() == ["orders"]
