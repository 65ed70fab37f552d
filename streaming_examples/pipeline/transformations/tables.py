"""Tables that are made from the ledger `orders`."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import sum as total

from pyspark_ledger import configure

# Spark runs this file in the directory of spark-pipeline.yml. So the store is beside that file.
spark = configure(SparkSession.active(), store="ledger-store")


@dp.table
def orders() -> DataFrame:
    """Copy of the ledger `orders`, which grows with each run."""
    stream = spark.readStream.format("ledger").option("subscription", "tables")
    return stream.option("startingPosition", "earliest").load("orders")


@dp.materialized_view
def income() -> DataFrame:
    """Income of each item, computed anew in each run."""
    return spark.read.table("orders").groupBy("item").agg(total("price").alias("income"))
