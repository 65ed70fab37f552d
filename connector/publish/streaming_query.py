"""The publisher as a streaming query: each trigger is a pass over what was sealed since.

    Spark's clock, a row a trigger ──▶ foreachBatch ──▶ Publisher.publish

Rule: the query's checkpoint counts triggers, and nothing else. How far a table is its own commits say, so a query may
begin with an empty checkpoint, go on with an old one, or run beside other publishers. A pass that fails fails
the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_ledger.connector.publish.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_ledger.connector.publish.request import Publishing

_CLOCK = "rate-micro-batch"  # a batch at every trigger, and one under `availableNow`


class _Pass:
    """What a trigger does. It travels as what the user said; the publisher is made where it runs, at the first one."""

    def __init__(self, ledger: str, table: str, options: Mapping[str, str], publishing: Publishing) -> None:
        self._said = ledger, table, options, publishing
        self._publisher: Publisher | None = None

    def __call__(self, clock: DataFrame, _number: int) -> None:
        if self._publisher is None:
            self._publisher = Publisher(clock.sparkSession, *self._said)
        self._publisher.publish()


def publishing_query(
    spark: SparkSession, ledger: str, table: str, options: Mapping[str, str], publishing: Publishing
) -> DataStreamWriter:
    """A query that is not started yet: its trigger, checkpoint and name are for the caller to say."""
    Publisher(spark, ledger, table, options, publishing)  # what it refuses it refuses now
    clock = spark.readStream.format(_CLOCK).option("rowsPerBatch", 1).load()
    return clock.writeStream.foreachBatch(_Pass(ledger, table, options, publishing))
