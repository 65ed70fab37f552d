"""Goal: a driver that dies in mid-batch has a successor on another host, with Spark's checkpoint in the store's bucket.

Method: Spark writes its checkpoint through Hadoop's S3A to a real S3 server. Each driver has a cache and a working
directory of its own. It gets SIGKILL in mid-batch together with its broker, and its directories are deleted.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.connector.session.delta import PACKAGES, s3a_settings
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.objects.factory import open_object_store
from streaming_examples.s3_server import S3Server
from tests.rigs import broker_process
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.deadline import wait_until
from tests.rigs.drivers import kill, start, tail
from tests.rigs.fault_points import FaultPoints
from tests.rigs.large_rows_app import BATCH_ROWS

BATCHES = 6


def submit_arguments(server: S3Server) -> str:
    """Return Spark's arguments for a checkpoint on the server. S3A reads the keys from the environment."""
    s3a = {"endpoint": server.endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
    settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
    confs = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    return f"--packages {s3a_settings()[PACKAGES]} {confs} pyspark-shell"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_successor_goes_on_from_the_checkpoint_in_the_bucket(
    bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, checkpoint, points = f"{bucket}/ledgers", f"{bucket}/checkpoints/copy", FaultPoints(tmp_path / "points")
    be_client(s3_server, tmp_path / "filling", monkeypatch)
    create_store(store)
    source, rows = connect(store).ledger("in"), BATCH_ROWS * BATCHES
    for first in range(0, rows, BATCH_ROWS):
        source.append(pa.table({"n": pa.array(range(first, first + BATCH_ROWS), pa.int64())}))
    stop_broker(bucket_directory(store))
    words = ["-m", "tests.rigs.large_rows_app", store, checkpoint.replace("s3://", "s3a://"), str(points.directory)]
    environment = {"PYSPARK_SUBMIT_ARGS": submit_arguments(s3_server), "PYTHONPATH": os.getcwd()}  # noqa: PTH109
    for host, place in (("one", "staged"), ("two", "committed"), ("three", "")):
        directory = tmp_path / host
        directory.mkdir()
        monkeypatch.setenv("LEDGER_CACHE", str(directory / "cache"))
        if place:
            points.arm(place)
        driver = start(words, directory / "cache", directory / "app.log", **environment)
        try:
            if place:
                points.reached(place)
            else:
                wait_until(lambda: connect(store).ledger("out").describe().rows >= rows, "all rows are copied", 300)
                found = connect(store).ledger("out").read()["n"].to_pylist()
        except AssertionError as never:
            raise AssertionError(f"{never}\n{tail(directory / 'app.log')}") from None
        finally:
            kill(driver)
            broker_process.kill_all(bucket_directory(store))
        points.release()
        shutil.rmtree(directory)
    batches = [sorted(found[start : start + BATCH_ROWS]) for start in range(0, len(found), BATCH_ROWS)]
    assert batches == [list(range(start, start + BATCH_ROWS)) for start in range(0, rows, BATCH_ROWS)]
    keys = [found.key for found in open_object_store(checkpoint).objects()]
    assert {f"offsets/{batch}" for batch in range(BATCHES)} <= set(keys)
