"""Goal: a report on the platform tells what a task finds, and leaves the session as it was. Method: a real session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pyspark_ledger.connector.doctor.platform import ask_task, probe_platform


@pytest.mark.sessions
def test_function_of_a_notebook_leaves_its_session(spark_session: SparkSession) -> None:
    found = {one.check: (one.state, one.found) for one in probe_platform().findings}
    assert found["platform"][1].startswith("a session of the driver, pyspark-ledger ")
    assert found["driver's address"] == ("ok", "localhost reached")
    for check in ("background process", "task", "python", "package in a task"):
        assert found[check][0] == "ok", found
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        ask_task(spark_session, "localhost", 1, 0.01)
    assert spark_session.range(3).count() == 3
