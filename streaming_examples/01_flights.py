# Databricks notebook source
# MAGIC %md
# MAGIC # Flights through a ledger
# MAGIC
# MAGIC A ledger is a log: it keeps every row, in order, for any number of readers. Here it gets the flights that left
# MAGIC New York in the winter of 2013. One reader takes them all at once; another follows and remembers where it was.

# COMMAND ----------

import matplotlib.pyplot as plt
import pyarrow.compute as pc
from pyspark.sql import functions as f

from pyspark_ledger import connect, session
from streaming_examples.flights import flights

spark = session("flights")
year = flights()

# COMMAND ----------

# MAGIC %md
# MAGIC **Write.** The ledger is created with the columns of the first rows. No row is visible before all are.

# COMMAND ----------

january = spark.createDataFrame(year.filter(pc.equal(year["month"], 1)))
january.write.format("ledger").mode("append").save("flights")

# COMMAND ----------

# MAGIC %md
# MAGIC **Read** what is there, as any table.

# COMMAND ----------

written = spark.read.format("ledger").load("flights")
written.groupBy("origin").agg(f.count("*"), f.avg("dep_delay")).orderBy("origin").show()

# COMMAND ----------

# MAGIC %md
# MAGIC **Follow.** A stream with a subscription reads on from where it was; its rows go to a second ledger, each once.

# COMMAND ----------


def follow() -> int:
    """Read what is new, keep the flights that left more than an hour late; how many rows were read."""
    stream = spark.readStream.format("ledger").option("subscription", "late").option("startingPosition", "earliest")
    late = stream.load("flights").where("dep_delay > 60").writeStream.format("ledger")
    query = late.option("checkpointLocation", "checkpoints/late").trigger(availableNow=True).start("late-flights")
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


print("January:", follow(), "rows read")
february = spark.createDataFrame(year.filter(pc.equal(year["month"], 2)))
february.write.format("ledger").mode("append").save("flights")
print("February:", follow(), "rows read")

# COMMAND ----------

# MAGIC %md
# MAGIC **Without Spark.** The same ledgers, as Arrow tables.

# COMMAND ----------

late = connect().ledger("late-flights").read().combine_chunks()
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
