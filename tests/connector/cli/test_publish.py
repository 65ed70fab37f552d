"""Goal: `ledger publish` writes segments to a table on S3 as they are sealed, and refuses impossible requests in one
line.

Method: the command itself, in a Spark of its own, against a real S3 server and through S3A. It is interrupted at the
end. The jars are some 600 MB the first time. About a minute and a half.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.connector.session.delta import delta_settings, s3a_settings, with_packages
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Unavailable
from streaming_examples.s3_server import S3Server

PATIENCE_SECONDS = 400.0


@pytest.mark.parametrize(
    "artifact", ["io.delta:delta-spark_2.13:4.0.0", "io.delta:delta-spark_4.1_2.13:4.4.0"], ids=["4.0", "4.4"]
)
def test_delta_settings_take_the_artifact_that_the_library_names(
    artifact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta 4.0 and 4.4 name their artifacts differently. Only one of them is installed."""

    def named(builder: SparkSession.Builder) -> SparkSession.Builder:
        return builder.config("spark.jars.packages", artifact)

    monkeypatch.setattr("delta.configure_spark_with_delta_pip", named)
    found = with_packages(delta_settings(), {"spark.jars.packages": "a:b:1"})
    assert found["spark.jars.packages"] == f"{artifact},a:b:1"
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"


@pytest.mark.parametrize("part", ["delta", "metadata"])
def test_without_the_library_settings_are_unavailable(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    if part == "delta":
        monkeypatch.setitem(sys.modules, "delta", None)
    else:
        monkeypatch.setattr("pyspark_ledger.connector.session.delta.version", missing)
    with pytest.raises(Unavailable, match="delta-spark is not installed here") as found:
        delta_settings()
    assert "pyspark-ledger[delta]" in (found.value.hint or "")


def test_packages_are_those_of_both() -> None:
    both = with_packages(delta_settings(), {"spark.jars.packages": "a:b:1", "spark.master": "local[1]"})
    spark, delta = ".".join(version("pyspark").split(".")[:2]), version("delta-spark")
    assert both["spark.jars.packages"] == f"io.delta:delta-spark_{spark}_2.13:{delta},a:b:1"
    assert both["spark.master"] == "local[1]"
    assert with_packages({}, {"x": "1"}) == {"x": "1"}
    assert s3a_settings()["spark.jars.packages"].startswith("org.apache.hadoop:hadoop-aws:3.")


@pytest.mark.broker_process
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--every", "often"], "--every is 'often', expected a time"),
        (["--every", "0s"], "--every is '0s', expected a time above 0"),
        (["--option", "payloadSchema"], "--option is 'payloadSchema', expected NAME=VALUE"),
        (["--file-bytes", "5"], "file_bytes is 5, expected"),
        (["--partition-by", "=x"], "'=x' is no partition column"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(given: list[str], said: str, store: Path) -> None:
    ran = CliRunner().invoke(app, ["publish", "orders", "--table", "./t", "--store", str(store), *given])
    assert ran.exit_code == 1
    assert said in ran.stderr.replace("\n", " ")
    assert not store.exists()


@pytest.mark.slow
@pytest.mark.spark
def test_segments_reach_a_table_on_s3_as_they_are_sealed(
    store: Path, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    orders = connect(store).ledger("orders")
    assert isinstance(orders, Ledger)
    orders.append([{"id": 0}])
    orders.seal()
    table = bucket.replace("s3://", "s3a://") + "/orders"
    s3a = {"endpoint": s3_server.endpoint, "path.style.access": "true", "connection.ssl.enabled": "false"}
    conf = [word for name, value in s3a.items() for word in ("--conf", f"spark.hadoop.fs.s3a.{name}={value}")]
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.connector.cli.app",
        "publish",
        "orders",
        "--table",
        table,
        "--every",
        "200ms",
    ]
    command += ["--store", str(store), "--output", "json", "--conf", "spark.master=local[1]", *conf]
    out = tmp_path / "out"
    with out.open("wb") as told, (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=told, stderr=log, cwd=tmp_path, env={**os.environ, **s3_server.environment}
        )
    try:
        for number in (1, 2):
            until = time.monotonic() + PATIENCE_SECONDS
            while len(out.read_text(encoding="utf-8").splitlines()) < number:
                assert process.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")[-3000:]
                assert time.monotonic() < until
                time.sleep(0.05)
            if number == 1:
                orders.append([{"id": 1}])
                orders.seal()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    told_segments = [json.loads(line)["segment"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert told_segments == [one.ledger_id for one in orders.describe().segments if one.close_ms]
    client, name = s3_server.client(), bucket.removeprefix("s3://").split("/", 1)
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=name[0], Prefix=name[1])["Contents"]]
    assert sum(key.endswith(".json") and "_delta_log" in key for key in keys) == 2
    assert sum(key.endswith(".parquet") for key in keys) == 2
