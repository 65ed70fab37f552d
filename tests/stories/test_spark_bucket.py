"""Goal: Spark reads a bucket of a Pulsar without any broker. Method: one story with an S3 server and real objects."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.connector.session.default_store import DefaultStore, set_default_store
from pyspark_ledger.ledger.objects.factory import open_object_store
from streaming_examples.s3_server import S3Server
from tests.ledger.message.test_fixtures_pulsar import ROOT, expected
from tests.rigs.available_now import run_all

pytestmark = pytest.mark.feature("reads of a bucket without a broker")

PROVIDER = "streaming_examples.s3_server:credentials"
FOLDER, NAME = "11-transactions", "persistent://public/fx/11-transactions"


def test_a_bucket_is_read_listed_and_streamed(
    spark_session: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    set_default_store(spark_session, DefaultStore())
    objects = open_object_store(bucket, s3_server.options)
    for path in sorted((ROOT / FOLDER / "objects").glob("*-ledger-*")):
        if not path.name.endswith(".json"):
            objects.put(path.name, path.read_bytes(), open_object_store(path.parent).head(path.name).metadata)
    options = {"offload": bucket, "offloadEndpoint": s3_server.endpoint, "credentialProvider": PROVIDER}

    listed = spark_session.read.format("ledger").options(**options).load().collect()
    assert {row["state"] for row in listed} == {"complete"}
    wanted = expected(FOLDER, [row["ledgerId"] for row in listed])

    frame = spark_session.read.format("ledger").options(**options, includeMetadata="true").load(NAME)
    rows = frame.select("__key", "__sequenceId", "__producer", f.length("value").alias("size")).collect()
    found = sorted((row["__producer"], row["__sequenceId"], row["__key"] or "", row["size"]) for row in rows)
    assert found == sorted((one["producer"], one["sequenceId"], one["key"] or "", one["size"]) for one in wanted)

    third = str(len(wanted) // 3)
    stream = spark_session.readStream.format("ledger").options(**options, maxRowsPerTrigger=third).load(NAME)
    sizes: list[int] = []
    write = stream.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
    run_all(write.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start)
    assert sum(sizes) == len(wanted)
    assert len(sizes) > 1

    with pytest.raises(PySparkException, match="no object is of topic"):
        spark_session.read.format("ledger").options(**options).load("public/fx/other").count()
    assert not (tmp_path / "ledger-store").exists()
