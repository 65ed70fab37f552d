# Databricks notebook source
# MAGIC %md
# MAGIC # A bucket without a broker
# MAGIC
# MAGIC Sealed ledgers go to object storage in the format of Apache Pulsar's tiered storage. From there Spark reads them
# MAGIC straight from their objects: no broker is asked, and no Pulsar runs. The rows are the flights that left New York
# MAGIC in 2013; the bucket is that of a real S3 server on this machine.

# COMMAND ----------

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from pyspark_ledger import connect, session
from streaming_examples.broker_control import stop_broker
from streaming_examples.flights import FLIGHT_ROWS, flights
from streaming_examples.s3_server import S3Server

PROVIDER = "streaming_examples.s3_server:credentials"
server = S3Server.start(Path(mkdtemp(prefix="bucket-")))
history = server.make_bucket("history")
store = connect()
store.offload_to(history, endpoint=server.endpoint, credential_provider=PROVIDER)

# COMMAND ----------

# MAGIC %md
# MAGIC **Write, seal, offload.** A ledger for each quarter of the year: after three months the segment is sealed and
# MAGIC uploaded, and the next one begins.

# COMMAND ----------

year = flights()
ledger = store.ledger("flights")
segments = []
for quarter in range(4):
    months = pa.array(range(3 * quarter + 1, 3 * quarter + 4))
    ledger.append(year.filter(pc.is_in(year["month"], value_set=months)))
    segments.append(ledger.offload(seal=True))

print(f"{ledger.describe().rows:,} flights in {segments[-1].offloaded} segments, all of them in {history}")
assert segments[-1].offloaded == 4

# COMMAND ----------

# MAGIC %md
# MAGIC **What a bucket holds.** Without a name the reader lists it. Each ledger has a data object and an index; the
# MAGIC topic is in their metadata, so the bucket tells everything itself.

# COMMAND ----------

spark = session()
reader = (
    spark.read.format("ledger")
    .option("offload", history)
    .option("offloadEndpoint", server.endpoint)
    .option("credentialProvider", PROVIDER)
)
listing = reader.load().orderBy("ledgerId")
listing.select("topic", "ledgerId", "entries", "blocks", "bytes", "state").show(truncate=False)
sizes = [row["bytes"] for row in listing.collect()]

# COMMAND ----------

# MAGIC %md
# MAGIC **Now without the broker.** It is stopped, and its directory is not looked at. The same flights come out.

# COMMAND ----------

stop_broker(store.client)
rows = reader.load("flights")
assert rows.count() == FLIGHT_ROWS

delays = rows.groupBy("month").agg(f.avg("dep_delay").alias("delay"), f.count("*").alias("flights")).orderBy("month")
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
# MAGIC **Where a row is.** `includeMetadata` says it, and a read begins and ends at any position. The second and third
# MAGIC quarters are two ledgers in the middle of the log.

# COMMAND ----------

ledgers = [row["ledgerId"] for row in listing.collect()]
middle = (
    reader.option("startingPosition", f"{ledgers[1]}:0").option("endingPosition", f"{ledgers[3]}:0").load("flights")
)
found = {row["month"] for row in middle.select("month").distinct().collect()}
assert found == {4, 5, 6, 7, 8, 9}
print("months of the two ledgers in the middle:", sorted(found))

# COMMAND ----------

# MAGIC %md
# MAGIC **As a stream.** The same objects in admitted batches, to their end; a query that stays goes on with what is
# MAGIC offloaded later.

# COMMAND ----------

batches: list[int] = []
stream = (
    spark.readStream.format("ledger")
    .option("offload", history)
    .option("offloadEndpoint", server.endpoint)
    .option("credentialProvider", PROVIDER)
    .option("maxRowsPerTrigger", 100_000)
    .load("flights")
    .writeStream.foreachBatch(lambda batch, _: batches.append(batch.count()))
    .option("checkpointLocation", mkdtemp(prefix="bucket-checkpoint-"))
    .trigger(availableNow=True)
    .start()
)
stream.awaitTermination()
assert sum(batches) == FLIGHT_ROWS
print("rows of each batch:", batches)

# COMMAND ----------

plt.figure(figsize=(11, 2.4))
plt.barh(range(len(batches)), batches, color="#54a24b")
plt.title("rows of each batch, at most 100,000 or one entry")
plt.gca().invert_yaxis()
plt.show()

# COMMAND ----------

spark.stop()
server.stop()
