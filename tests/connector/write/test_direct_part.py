"""Goal: metrics and log lines state which parts went into the bucket, and which went through the broker.

Method: stage and commit by hand over a broker, a store in a real S3, and tasks that cannot reach the bucket.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.write.commit import PartMessage, commit_parts, stage_rows
from pyspark_ledger.connector.write.target import SinkTarget, prepare_target
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.broker.telemetry.openmetrics import exposition
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.logs.steps import FIELDS, STEPS
from pyspark_ledger.ledger.protocol.metrics import AskMetrics, BrokerMetrics, PartCounts
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import be_client, serve_direct_store

PART_BYTES, LARGE = 64 * 1024, 10_000
"""A part of `LARGE` rows exceeds the size from which a task puts its part into the bucket."""


@pytest.fixture
def store(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    be_client(s3_server, tmp_path / "cache", monkeypatch)
    directory = serve_direct_store(bucket, tmp_path, PART_BYTES, logFormat="json")
    yield bucket
    stop_broker(directory)


def target(store: str, **options: str) -> SinkTarget:
    given = {"path": "out", "store": store, "compression": "none", **options}
    return prepare_target(read_options(given, "stream write"), StructType().add("n", LongType()))


def stage(sink: SinkTarget, batch: int, task: int, rows: int) -> PartMessage:
    return stage_rows(sink, "1", "q", batch, iter([pa.record_batch({"n": pa.array(range(rows), pa.int64())})]), task)


def metrics(store: str) -> BrokerMetrics:
    return connect(store).client.ask(AskMetrics())


def steps(records: list[logging.LogRecord]) -> list[dict[str, Any]]:
    return [getattr(record, FIELDS) for record in records if record.name == STEPS.name]


def syncs(store: str) -> list[tuple[int, int | None]]:
    """Return the segments of each commit, and how many of them are copies, from the lines of the broker."""
    lines = (bucket_directory(store) / "broker.log").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [(line["segments"], line["copied"]) for line in found if line.get("step") == "sync" and "segments" in line]


def test_metrics_and_log_lines_tell_direct_parts_from_staged_ones(store: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = target(store)
    with caplog.at_level(logging.INFO, STEPS.name):
        messages = [stage(sink, 0, 0, LARGE), stage(sink, 0, 1, 1), stage(sink, 0, 2, LARGE)]
        commit_parts(sink, "1", messages, 0)
    large, small, _ = (message.parts[0].length for message in messages)
    *staged, committed = steps(caplog.records)
    assert [(step["parts"], step["direct_parts"], step["direct_bytes"]) for step in staged] == [
        (1, 1, large),
        (1, 0, 0),
        (1, 1, large),
    ]
    assert (committed["step"], committed["parts"], committed["bytes"]) == ("commit", 3, 2 * large + small)
    assert (committed["direct_parts"], committed["direct_bytes"]) == (2, 2 * large)
    assert metrics(store).parts == PartCounts(direct=2, direct_bytes=2 * large, staged=1, staged_bytes=small)
    commit_parts(sink, "1", messages, 0)
    assert metrics(store).parts.direct == 2, "a repetition appends nothing"
    assert syncs(store) == [(3, 0)]


def test_copies_and_swept_uploads_are_counted(store: str) -> None:
    sink, ledger = target(store), connect(store).ledger("out")
    stage(sink, 0, 0, LARGE)  # the first attempt of the task, whose message was lost
    message = stage(sink, 0, 0, LARGE)
    ledger.append([{"n": 1}])  # opens a segment with a higher id
    commit_parts(sink, "1", [message], 0)
    size = message.parts[0].length
    found = metrics(store)
    assert found.parts == PartCounts(direct=1, direct_bytes=size, copied=1, copied_bytes=size, swept=2)
    assert syncs(store) == [(1, 1)]
    lines = exposition(found, openmetrics=True).decode().splitlines()
    for line in (
        "ledger_direct_parts_total 1",
        f"ledger_direct_part_bytes_total {size}",
        "ledger_staged_parts_total 0",
        "ledger_staged_part_bytes_total 0",
        "ledger_copied_parts_total 1",
        f"ledger_copied_part_bytes_total {size}",
        "ledger_swept_parts_total 2",
    ):
        assert line in lines


@pytest.mark.thorough
def test_a_task_that_cannot_reach_the_bucket_says_so_once(store: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = target(store, offloadEndpoint="http://127.0.0.1:9")
    commit_parts(sink, "1", [stage(sink, 0, task, LARGE) for task in range(2)], 0)
    found = metrics(store).parts
    assert (found.direct, found.staged) == (0, 2)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("large parts go through the broker, because tasks of this process cannot write to the bu")
    assert "127.0.0.1:9" in warning
    assert "\n" not in warning
    assert connect(store).ledger("out").describe().rows == 2 * LARGE
