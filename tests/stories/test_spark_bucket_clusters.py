"""Goal: clusters share one store in a bucket, and a cluster continues what a killed one has begun.

Method: sessions in processes of their own, each with a cache directory of its own, as on hosts of their own. They use
one real S3. A driver gets SIGKILL while it stops between stage and commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from streaming_examples.s3_server import S3Server
from tests.rigs import broker_process
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.deadline import wait_until
from tests.rigs.drivers import kill, start, tail
from tests.rigs.fault_points import FaultPoints
from tests.rigs.large_rows_app import BATCH_ROWS

pytestmark = [pytest.mark.spark, pytest.mark.sessions, pytest.mark.slow]
ROWS, BATCHES = 500, 6
CLUSTER = """
import sys
from pyspark_ledger import connect, session
from tests.rigs.deadline import wait_until

store, checkpoint, number, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
spark = session(store=store)
read = spark.readStream.format("ledger").option("subscription", f"copy-{number}").option("startingPosition", "earliest")
write = read.load("flights").writeStream.format("ledger").option("checkpointLocation", checkpoint)
query = write.start(f"copied-{number}")
part = rows // 5
for first in range(number * rows, (number + 1) * rows, part):
    spark.range(first, first + part).selectExpr("id").write.format("ledger").mode("append").save("flights")
def copied():
    assert query.isActive, query.exception()
    return spark.read.format("ledger").load(f"copied-{number}").count() >= 2 * rows
wait_until(copied, "the rows of both clusters", 200, every=0.5)
query.stop()
found = spark.read.format("ledger").load(f"copied-{number}").collect()
assert sorted(row.id for row in found) == list(range(2 * rows))
"""


@pytest.fixture
def store(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store in a bucket, used by this process as by a client of the first cluster."""
    be_client(s3_server, tmp_path / "one", monkeypatch)
    create_store(bucket)
    yield bucket
    for name in ("one", "two", "three"):
        monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / name))
        with suppress(OSError):
            stop_broker(bucket_directory(bucket))


def test_two_clusters_write_and_read_one_store_at_the_same_time(store: str, tmp_path: Path) -> None:
    connect(store).ledger("flights").append(pa.table({"id": pa.array([], pa.int64())}))
    logs = [tmp_path / f"{name}.log" for name in ("one", "two")]
    clusters = [
        start(["-c", CLUSTER, store, str(tmp_path / f"c{number}"), str(number), str(ROWS)], log.with_suffix(""), log)
        for number, log in enumerate(logs)
    ]
    try:
        for cluster, log in zip(clusters, logs, strict=True):
            assert cluster.wait(300) == 0, tail(log)
    finally:
        for cluster in clusters:
            kill(cluster)
    rows = connect(store).ledger("flights").read()["id"].to_pylist()
    assert sorted(rows) == list(range(2 * ROWS))
    assert not (bucket_directory_in(store, tmp_path / "two") / "broker.json").exists(), "it has no broker of its own"


def bucket_directory_in(store: str, cache: Path) -> Path:
    return cache / bucket_directory(store).name


def test_a_successor_on_another_host_continues_a_killed_driver(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first host is lost with driver, broker and disk. Of the second host only the driver is lost."""
    source, points, log = connect(store).ledger("in"), FaultPoints(tmp_path / "points"), tmp_path / "app.log"
    rows = BATCH_ROWS * BATCHES
    for first in range(0, rows, BATCH_ROWS):
        source.append(pa.table({"n": pa.array(range(first, first + BATCH_ROWS), pa.int64())}))
    words = ["-m", "tests.rigs.large_rows_app", store, str(tmp_path / "checkpoint"), str(points.directory)]
    points.arm("staged")
    app = start(words, tmp_path / "one", log)
    try:
        for host, place, successor in (("one", "staged", "two"), ("two", "committed", "three")):
            try:
                points.reached(place)
            except AssertionError as never:
                raise AssertionError(f"{never}\n{tail(log)}") from None
            kill(app)
            if host == "one":
                broker_process.kill_all(bucket_directory(store))
                shutil.rmtree(tmp_path / host)
            monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / successor))
            points.release()
            if host == "one":
                points.arm("committed")
            app = start(words, tmp_path / successor, log)
        sink = connect(store).ledger("out")
        wait_until(lambda: sink.describe().rows >= rows, "all rows are copied", 120)
    finally:
        kill(app)
    assert sorted(sink.read()["n"].to_pylist()) == list(range(rows)), "no row is lost or repeated"
