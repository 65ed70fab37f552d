"""Goal: a pipeline on Spark without admission control never ends early in silence, and other queries are not refused.

Method: processes with the arguments of `spark-pipelines`, and tasks with Spark's properties. A real pipeline is in
tests/stories/test_spark_pipelines.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from pyspark_ledger.connector import pipelines
from pyspark_ledger.connector.read import stream_reader
from pyspark_ledger.connector.read.planner import TaskPartition, read_partition
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.errors import Refused
from tests.rigs.older_spark import OLDER_SPARK, OlderSpark
from tests.rigs.stream import append, reader

LIMITS = [{"maxRowsPerTrigger": "4"}, {"maxBytesPerTrigger": "1"}, {"minRowsPerTrigger": "12"}]
START = "org.apache.spark.sql.pipelines.graph.TriggeredGraphExecution$$anon$1.run(TriggeredGraphExecution.scala:87)"
PROBE = "from pyspark_ledger.connector.pipelines import is_driver_of_pipeline as f; print(f())"


@pytest.fixture
def in_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pipelines, stream_reader):
        monkeypatch.setattr(module, "is_driver_of_pipeline", lambda: True)


def older_reader(store: Path, **options: str) -> Any:
    made = reader(store, startingPosition="earliest", **options)
    made._features = OLDER_SPARK
    return made


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.usefixtures("in_pipeline")
def test_a_limit_is_refused_before_the_first_offset(store: Path, orders: Ledger, limit: dict[str, str]) -> None:
    (name,) = limit
    with pytest.raises(Refused, match=f"{name} could end the batch") as refused:
        older_reader(store, subscription="billing", **limit).latestOffset()
    assert "firstBatch" in (refused.value.hint or "")
    assert orders.describe().cursors == [], "nothing is changed"


@pytest.mark.parametrize("options", [{}, *({"firstBatch": "everything"} | limit for limit in LIMITS)])
@pytest.mark.usefixtures("in_pipeline")
def test_a_run_that_reads_everything_is_not_refused(store: Path, orders: Ledger, options: dict[str, str]) -> None:
    spark = OlderSpark(lambda: reader(store, startingPosition="earliest", **options))
    spark.run(1)
    assert spark.read_rows == list(range(10))


@pytest.mark.usefixtures("in_pipeline")
def test_admission_control_needs_no_refusal(store: Path, orders: Ledger) -> None:
    limited = reader(store, startingPosition="earliest", maxRowsPerTrigger="4")
    assert limited.latestOffset(limited.initialOffset(), None)
    limited.stop()


@pytest.mark.usefixtures("in_pipeline")
def test_a_repeated_batch_says_that_later_rows_are_left(
    store: Path, orders: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = set[str]()
    monkeypatch.setattr(stream_reader, "print_once", lines.add)
    spark = OlderSpark(lambda: reader(store, startingPosition="earliest"))
    spark.run(1, fail_after="rows")
    append(orders, 10, 15)
    assert not lines
    spark.run(0)
    assert (spark.read_rows, lines) == (list(range(10)), {pipelines.REPEATED})
    spark.run(1)
    assert (spark.read_rows, len(lines)) == (list(range(15)), 1)


@pytest.mark.parametrize(
    ("site", "limits", "is_refused"),
    [(START, "maxRowsPerTrigger", True), (START, "", False), ("start at main.py:7", "maxRowsPerTrigger", False)],
)
def test_a_task_of_a_limited_pipeline_is_refused(
    site: str, limits: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 — Spark's name
            return {"callSite.long": site}.get(name)

    class NoRows:
        def read(self) -> Any:
            return iter(())

    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: Context()))
    partition = TaskPartition(NoRows(), limits=limits)
    if is_refused:
        with pytest.raises(Refused, match=limits):
            read_partition(partition)
    else:
        assert list(read_partition(partition)) == []


@pytest.mark.parametrize(
    ("command", "is_pipeline"),
    [
        (["/x/pyspark/pipelines/cli.py", "run"], True),
        (["org.apache.spark.deploy.SparkPipelines"], True),
        (["/x/my/pipelines.py", "run"], False),
    ],
)
def test_a_driver_of_a_pipeline_is_known_by_its_ancestors(command: list[str], is_pipeline: bool) -> None:
    # The arguments of a process between this test and the probe.
    run = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PROBE!r}], check=True)"
    done = subprocess.run([sys.executable, "-c", run, *command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(is_pipeline)
