"""Acknowledging all rows of a DataFrame by one call: `acknowledge(done, "orders", subscription="billing")`.

It is the write with `action` `ack` or `nack`, of the one column that says which rows are meant, and with one setting of
the session changed for as long as it runs. Spark measures an Arrow batch after each row that it adds, to cut it by
bytes; of a place in a ledger, a struct of three numbers, that is most of what the write costs. A place is some twenty
bytes, so the number of rows bounds the batch already.

Rules
- The setting is as it was when the call is over, also when it failed. It is the session's, so that of the calls of one
  process one runs at a time: else each would take the other's value for the session's own.
- Whatever the write refuses is refused here, in the same words.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from connector.acknowledged_positions import MESSAGE_ID, POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEASURED = "spark.sql.execution.arrow.maxBytesPerBatch"
_NOT_MEASURED = str(2**31 - 1)
_lock = threading.Lock()


def acknowledge_frame(
    frame: DataFrame, ledger: str, subscription: str, action: Literal["ack", "nack"], options: Mapping[str, str]
) -> None:
    """Acknowledge, or give back, the rows of a frame that was read with `includeMetadata`; durable on return."""
    column = next((name for name in (POSITION, MESSAGE_ID) if name in frame.columns), None)
    write = (frame if column is None else frame.select(column)).write.format("ledger").mode("append")
    with _lock, _unmeasured(frame.sparkSession):
        write.options(**options).option("action", action).option("subscription", subscription).save(ledger)


@contextmanager
def _unmeasured(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(MEASURED, None)
    spark.conf.set(MEASURED, _NOT_MEASURED)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(MEASURED)
        else:
            spark.conf.set(MEASURED, before)
