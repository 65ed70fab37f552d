# Databricks notebook source
# MAGIC %md
# MAGIC # The connector as a whole
# MAGIC
# MAGIC A year of flights is routed into one ledger for each airport, by a column of each row. One stream reads them all
# MAGIC by a pattern, in batches of a bounded size; its backlog is watched from 336,776 rows to zero. An airport that
# MAGIC opens while it runs is found. At last entries are lost on purpose, and it is said which.

# COMMAND ----------

import matplotlib.pyplot as plt
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger import connect, session, settle, watch
from pyspark_ledger.connector.session.metrics import ledgers_of
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from streaming_examples.flights import FLIGHT_ROWS, flights

spark = session("connector")
store = connect()
year = spark.createDataFrame(flights().select(["time_hour", "carrier", "flight", "origin", "dest", "dep_delay"]))

# COMMAND ----------

# MAGIC %md
# MAGIC **Routing.** The column `__ledger` says where a row goes, `__eventTime` what its readers are told of it. The
# MAGIC three ledgers get their rows in one commit: all of them, once, or none.

# COMMAND ----------

routed = year.withColumn("__ledger", f.concat(f.lit("from-"), "origin")).withColumn("__eventTime", f.col("time_hour"))
routed.write.format("ledger").mode("append").option("createLedgers", "true").option("entryBytes", "64k").save()

rows = {ledger.name.rpartition("/")[2]: ledger.rows for ledger in map(store.client.describe, store.names())}
print(rows)
assert sum(rows.values()) == FLIGHT_ROWS

# COMMAND ----------

# MAGIC %md
# MAGIC **Several ledgers, one stream.** A pattern names them. No batch has more rows than the limit, each ledger gets
# MAGIC its share of it. What every batch leaves behind stands in Spark's progress; `watch` prints it as it comes.

# COMMAND ----------

watch(spark)


def delays(**options: str) -> StreamingQuery:
    """Return a stream of the late flights of all airports, by one subscription and further options."""
    stream = spark.readStream.format("ledger").option("ledgersPattern", "from-...").option("subscription", "delays")
    stream = stream.option("startingPosition", "earliest").option("includeMetadata", "true").options(**options).load()
    late = stream.where("dep_delay > 60").withColumn("airport", f.substring_index("__topic", "/", -1))
    kept = late.select("airport", "__eventTime", "carrier", "flight", "dest", "dep_delay")
    write = kept.withColumnRenamed("__eventTime", "left").writeStream.format("ledger")
    return write.option("checkpointLocation", "checkpoints/delays").trigger(availableNow=True).start("late-flights")


query = delays(maxRowsPerTrigger="100000")
query.awaitTermination()
settle(spark)

# COMMAND ----------

# MAGIC %md
# MAGIC **Backlog to zero.** Also after the last batch: the session acknowledges what Spark has committed. The bars are
# MAGIC the rows that each batch left behind, airport by airport.

# COMMAND ----------

seen = [line for progress in query.recentProgress for line in ledgers_of(progress)]
airports = sorted(rows)
batches = sorted({line.batch for line in seen})
plt.figure(figsize=(9, 3))
bottom = [0] * len(batches)
for airport in airports:
    lag = {line.batch: line.lag_rows for line in seen if line.ledger.endswith(airport)}
    plt.bar(batches, [lag[batch] for batch in batches], bottom=bottom, label=airport)
    bottom = [below + lag[batch] for below, batch in zip(bottom, batches, strict=True)]
plt.legend()
plt.xlabel("batch")
plt.ylabel("rows left behind")
plt.show()

taken = {line.batch: line.rows for line in seen if line.rows}
print("rows of each batch:", list(taken.values()))
assert sum(taken.values()) == FLIGHT_ROWS
assert max(taken.values()) <= 100_000
backlog = {airport: store.ledger(airport).cursor("delays").state().backlog_rows for airport in airports}
print("backlog:", backlog)
assert not any(backlog.values())

# COMMAND ----------

# MAGIC %md
# MAGIC **An airport opens.** Its ledger matches the pattern, so the next run reads it, from its beginning.

# COMMAND ----------

opened = year.where("origin = 'EWR'").limit(1000).withColumn("origin", f.lit("SWF")).coalesce(1)
opened.withColumn("__eventTime", f.col("time_hour")).write.format("ledger").mode("append").save("from-SWF")
query = delays()
query.awaitTermination()
settle(spark)
assert store.ledger("from-SWF").cursor("delays").state().backlog_rows == 0
print("rows of the new airport:", query.lastProgress["numInputRows"])

# COMMAND ----------

# MAGIC %md
# MAGIC **What the sink wrote** is every late flight, once.

# COMMAND ----------

late = spark.read.format("ledger").load("late-flights")
by_hour = late.groupBy(f.hour("left").alias("hour")).count().orderBy("hour").collect()
plt.figure(figsize=(9, 2.5))
plt.bar([row.hour for row in by_hour], [row["count"] for row in by_hour])
plt.xlabel("hour of departure, UTC")
plt.ylabel("flights an hour late")
plt.show()

expected = year.where("dep_delay > 60").count() + opened.where("dep_delay > 60").count()
assert late.count() == expected
print(f"{expected:,} late flights, each once")

# COMMAND ----------

# MAGIC %md
# MAGIC **Data loss.** A ledger that keeps next to nothing is read without a subscription, so nothing holds back what
# MAGIC the stream has still to read. It does not go on in silence: the error names ledger, range, and how much it was.

# COMMAND ----------

store.client.create(CreateLedger("short", max_entries_per_ledger=2))
short = store.ledger("short")
for first in range(0, 100, 10):
    short.append([{"n": number} for number in range(first, first + 10)])


def count_short(**options: str) -> int:
    """Return the rows of the stream; its checkpoint keeps the position."""
    stream = spark.readStream.format("ledger").option("startingPosition", "earliest").options(**options).load("short")
    write = stream.writeStream.format("noop").option("checkpointLocation", "checkpoints/short")
    query = write.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


print("rows:", count_short())
for first in range(100, 200, 10):
    short.append([{"n": number} for number in range(first, first + 10)])
short.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
short.trim()
try:
    count_short()
except StreamingQueryException as error:
    print(next(line for line in str(error).splitlines() if "LEDGER_DATA_LOSS" in line))
left = count_short(failOnDataLoss="false")
print("rows that are left, with failOnDataLoss=false:", left)
assert 0 < left < 100

# COMMAND ----------

spark.stop()
