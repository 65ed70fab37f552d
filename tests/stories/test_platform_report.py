"""Goal: a report on the platform tells what a task finds, and leaves the session as it was. Method: the command on a
host that looks like Databricks, with a bucket of a real S3 server; and the function of a notebook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_ledger.connector.doctor.platform import probe_platform
from pyspark_ledger.connector.doctor.spark_probe import ask_task
from streaming_examples.s3_server import S3Server


@pytest.mark.sessions
@pytest.mark.spark
def test_command_reports_on_tasks_sources_and_the_bucket(tmp_path: Path, s3_server: S3Server, bucket: str) -> None:
    module = tmp_path / "modules" / "databricks" / "service_credentials.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    working = tmp_path / "working"
    working.mkdir()
    environment = {
        **os.environ,
        **s3_server.environment,
        "DATABRICKS_RUNTIME_VERSION": "17.3-here",
        "PYTHONPATH": os.pathsep.join([str(module.parents[1]), os.environ["PYTHONPATH"]]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ledger = [sys.executable, "-m", "pyspark_ledger.connector.cli.app", "doctor", "--platform", "--bucket", bucket]
    done = subprocess.run(
        [*ledger, "--store", str(working / "store"), "--conf", "spark.master=local[1]", "--output", "json"],
        cwd=working, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert "Databricks dedicated compute (a guess), a session of the driver" in found["platform"]["found"]
    for check in ("task", "python", "package in a task", "driver's address", "S3 from the driver", "S3 from a task"):
        assert found[check]["state"] == "ok", found[check]
    assert found["Unity Catalog"]["found"].startswith("planner and tasks of a Python source import"), found
    for value in ("17.3-here", s3_server.environment["AWS_SECRET_ACCESS_KEY"], s3_server.endpoint):
        assert value not in done.stdout
    assert list(working.iterdir()) == []


@pytest.mark.sessions
def test_function_of_a_notebook_leaves_its_session(
    spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {one.check: one for one in probe_platform(spark_session, store=tmp_path).findings}
    assert found["driver's address"].found == "a task reaches a listener at localhost"
    assert found["Unity Catalog"].found == "not Databricks"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    credentials = {one.check: one for one in probe_platform(store=tmp_path).findings}["Unity Catalog"]
    assert credentials.state == "warning"
    assert "by the planner (ModuleNotFoundError) and a task (ModuleNotFoundError) of a source" in credentials.found
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        ask_task(spark_session, {"host": "", "port": 0, "seconds": 1}, 0.01)
    assert spark_session.range(3).count() == 3
    assert list(tmp_path.iterdir()) == []
