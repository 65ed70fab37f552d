# Databricks notebook source
# MAGIC %md
# MAGIC # A ledger on this cluster
# MAGIC
# MAGIC A ledger is a durable log of rows. A broker, the process that owns the ledgers, starts on the driver's host.
# MAGIC Executors write and read through the broker. The store, the directory of the ledgers, is deleted with the
# MAGIC cluster. To keep the rows, copy them to a bucket before the cluster ends (`ledger offload`).

# COMMAND ----------

from pathlib import Path

from pyspark_ledger import serve, session
from pyspark_ledger.connector.doctor.platform import probe_platform

spark = session()  # the session of the notebook
store = "/local_disk0/ledger-store" if Path("/local_disk0").is_dir() else "ledger-store"
served = serve(spark, store)

# COMMAND ----------

spark.range(100_000).selectExpr("id", "id % 7 AS day").write.format("ledger").mode("append").save("visits")

# COMMAND ----------

stream = spark.readStream.format("ledger").option("startingPosition", "earliest")
rows = stream.option("subscription", "weekly").load("visits")
counts = rows.writeStream.format("ledger").option("checkpointLocation", f"{store}-checkpoint")
counts.trigger(availableNow=True).start("copied").awaitTermination()
print("copied:", spark.read.format("ledger").load("copied").count())

# COMMAND ----------

# MAGIC %md
# MAGIC **Platform.** The report says what this platform permits. Paste the text into a question about the platform.

# COMMAND ----------

print(probe_platform(spark))

# COMMAND ----------

served.stop()
