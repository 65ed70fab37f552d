"""Goal: a declarative pipeline reads and writes ledgers, each row once, and acknowledges what its run has committed.

Method: runs of the example project, in processes as `spark-pipelines` makes them. `make test-sparks` installs the
packages that pipelines need.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from tests.rigs.available_now import ONE_BATCH
from tests.rigs.pipeline import Pipeline, append_ids, missing_and_repeated

pytest.importorskip("pyspark.pipelines", reason="this Spark has no pipelines")
pytest.importorskip("grpc", reason="pipelines need the packages of Spark Connect: make test-sparks")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.sessions,
    pytest.mark.timeout(1800),  # a run takes half a minute, and minutes on a busy machine
    pytest.mark.feature("declarative pipelines"),
]


def test_two_runs_of_a_pipeline_read_each_row_once(tmp_path: Path) -> None:
    pipeline, elsewhere = Pipeline(tmp_path / "an odd näme"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    with connect(pipeline.store) as store:
        for number in range(2):
            append_ids(store, "orders", 1000 * number, 1000 * (number + 1))
            append_ids(store, "refunds", 500 * number, 500 * (number + 1))
            code, console = pipeline.run(cwd=elsewhere)
            assert code == 0, console[-6000:]
            assert "Run is COMPLETED" in console
            payments = store.ledger("payments").read().to_pydict()
            paid = [at for at, amount in zip(payments["id"], payments["amount"], strict=True) if amount > 0]
            back = [at for at, amount in zip(payments["id"], payments["amount"], strict=True) if amount < 0]
            assert missing_and_repeated(paid, 1000 * (number + 1)) == (0, 0)
            assert missing_and_repeated(back, 500 * (number + 1)) == (0, 0)
            for ledger, name in (("orders", "tables"), ("orders", "payments"), ("refunds", "payments")):
                assert store.ledger(ledger).cursor(name).state().backlog_rows == 0, "the last batch too"
        assert list(elsewhere.glob("ledger-store")) == []


def test_a_limited_source_is_refused_or_read_to_its_end(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "limited")
    pipeline.drop_tables()
    pipeline.replace(pipeline.payments, ".load(ledger)", '.option("maxRowsPerTrigger", 300).load(ledger)')
    with connect(pipeline.store) as store:
        append_ids(store, "orders", 0, 1000)
        append_ids(store, "refunds", 0, 500)
        code, console = pipeline.run()
        if ONE_BATCH:
            assert code != 0
            assert "maxRowsPerTrigger could end the batch" in console
            assert "'firstBatch'" in console
            assert not any(pipeline.storage.rglob("offsets/0")), "no first offset is stored"
            pipeline.replace(pipeline.payments, "300)", '300).option("firstBatch", "everything")')
            code, console = pipeline.run()
        assert code == 0, console[-6000:]
        assert store.ledger("payments").describe().rows == 1500


def test_a_pipeline_without_a_store_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "nameless")
    pipeline.drop_tables()
    pipeline.replace(pipeline.payments, 'configure(SparkSession.active(), store="ledger-store")',
                     "SparkSession.active()")  # fmt: skip
    code, console = pipeline.run("dry-run")
    assert code != 0
    assert "no store is named" in console
    assert "configure(spark, store=" in console
    assert not pipeline.store.exists()
