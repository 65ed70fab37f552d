"""Goal: a plan that is older than its micro-batch is reported. Method: the calls of a task in several micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_ledger.connector.connection import print_once
from pyspark_ledger.connector.read.batch_reader import warn_of_old_plan


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    print_once.cache_clear()
    yield
    print_once.cache_clear()


def test_a_plan_of_an_earlier_micro_batch_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    for batch in ("3", "3", "4", "5"):
        warn_of_old_plan("plan-1", "query-1", batch)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "query query-1 reads a static ledger again" in said[0]
    assert "call load() inside foreachBatch" in said[0]
    warn_of_old_plan("plan-1", "query-2", "3")  # a DataFrame that a second query uses
    assert "query query-2" in capsys.readouterr().err


def test_new_plans_and_batch_jobs_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for batch in range(2000):
        warn_of_old_plan(f"plan of {batch}", "query-3", str(batch))
        warn_of_old_plan("plan-2", None, None)
    assert capsys.readouterr().err == ""
