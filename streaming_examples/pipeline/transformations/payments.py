"""The ledger `payments`, into which two flows write. Each row is stored exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from pyspark_ledger import configure

spark = configure(SparkSession.active(), store="ledger-store")


def unread(ledger: str) -> DataFrame:
    stream = spark.readStream.format("ledger").option("subscription", "payments")
    return stream.option("startingPosition", "earliest").load(ledger)


dp.create_sink("payments", "ledger", {"path": "payments"})


@dp.append_flow(target="payments")
def paid() -> DataFrame:
    return unread("orders").select("id", col("price").alias("amount"))


@dp.append_flow(target="payments")
def refunded() -> DataFrame:
    return unread("refunds").select("id", (-col("price")).alias("amount"))
