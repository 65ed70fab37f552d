"""Goal: kills between stage and commit lose and duplicate no row of a batch whose parts become segments.

Method: a query of large rows, and kills of its processes in rounds (`tests/rigs/killed_query.py`). Rounds:
LEDGER_FAULT_ROUNDS, by default the first five of `KILLS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import serve_store
from tests.rigs.killed_query import ROUNDS, SECONDS, KilledQuery
from tests.rigs.large_rows_app import BATCH_ROWS, PART_BYTES

pytestmark = [
    pytest.mark.feature("kills of Spark at any point of a batch"),
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(SECONDS),
]


@pytest.fixture
def running(store: Path, tmp_path: Path) -> Iterator[KilledQuery]:
    config = tmp_path / "broker.toml"
    config.write_text(f"stagedPartPromotionMinBytes = {PART_BYTES}\n", encoding="utf-8")
    serve_store(store, ["--config", str(config)])
    connect(store).ledger("in").append(pa.table({"n": pa.array([], pa.int64())}))
    query = KilledQuery(str(store), tmp_path)
    yield query
    query.kill()


@pytest.mark.slow
def test_kills_between_stage_and_commit_lose_and_repeat_no_row(running: KilledQuery, store: Path) -> None:
    running.require_copied(running.copy_in_rounds(store))
    segments = connect(store).ledger("out").describe().segments
    promoted = [segment for segment in segments if segment.rows == BATCH_ROWS // 2]
    assert len(promoted) > ROUNDS, "the parts have become segments"
    batches = {path.parent.name for path in store.glob("staging/*/*/*.part")}
    assert len(batches) <= 1, "parts of earlier batches are deleted"
    verified = CliRunner().invoke(app, ["verify", "--store", str(store)])
    assert verified.exit_code == 0, verified.output
