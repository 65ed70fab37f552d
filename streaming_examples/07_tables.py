# Databricks notebook source
# MAGIC %md
# MAGIC # Yesterday's stream is today's table
# MAGIC
# MAGIC The flights that left New York in 2013 come in by a ledger. What is sealed of it is put into a Delta table, each
# MAGIC segment exactly once: then they are SQL, for every engine that reads Delta, with time travel.

# COMMAND ----------

from pathlib import Path

import matplotlib.pyplot as plt

from pyspark_ledger import connect, publish, session
from streaming_examples.flights import FLIGHT_ROWS, flights

spark = session("tables", delta=True, **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": 2})
log = connect().ledger("flights")
year = flights()
table = str(Path("tables/flights").absolute())  # SQL wants the whole path
options = {"store": "./ledger-store"}

# COMMAND ----------

# MAGIC %md
# MAGIC **Two quarters, two segments.** Each is sealed and published; a publisher that is asked again finds nothing to
# MAGIC do, because the table itself says how far it is.

# COMMAND ----------

quarters = [[1, 2, 3], [4, 5, 6]]
months = year.column("month").to_numpy()
for quarter in quarters:
    log.append(year.filter([month in quarter for month in months.tolist()]))
    log.seal()
    for done in publish(spark, "flights", table, options=options, partition_by=["month"]):
        print(f"segment {done.segment}: {done.rows:,} flights are in the table")
assert publish(spark, "flights", table, options=options) == []

# COMMAND ----------

# MAGIC %md
# MAGIC **SQL**, over the table, and over the log: the same answer.

# COMMAND ----------

SQL = """
    SELECT month, day, count(*) AS flights, round(avg(dep_delay), 3) AS delay
    FROM {rows} GROUP BY month, day ORDER BY month, day
"""
delta = spark.read.format("delta")
today = spark.sql(SQL, rows=delta.load(table)).collect()
assert today == spark.sql(SQL, rows=spark.read.format("ledger").options(**options).load("flights")).collect()
print(f"{sum(row.flights for row in today):,} of {FLIGHT_ROWS:,} flights on {len(today)} days")

# COMMAND ----------

# MAGIC %md
# MAGIC **Time travel.** Version 0 is the first quarter: as the table was then.

# COMMAND ----------

before = spark.sql(SQL, rows=delta.option("versionAsOf", 0).load(table)).collect()
assert before == today[: len(before)]
spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("version", "operation", "userMetadata").show(truncate=80)

# COMMAND ----------

# MAGIC %md
# MAGIC **A row knows its place in the log**: the worst delay, with its position there.

# COMMAND ----------

worst = delta.load(table).orderBy("dep_delay", ascending=False).select("__position", "carrier", "flight", "dep_delay")
worst.show(3, truncate=False)

# COMMAND ----------

figure, axes = plt.subplots(figsize=(8, 3))
axes.plot([row.delay for row in today], color="tab:blue", label="version 2")
axes.plot([row.delay for row in before], color="tab:orange", label="version 1")
axes.set(xlabel="day of 2013", ylabel="mean departure delay, minutes", title="The table now, and as it was")
axes.legend()
plt.show()

# COMMAND ----------

spark.stop()
