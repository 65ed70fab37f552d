"""Trigger of the streaming query to which the running Spark task belongs: the query's id and the batch's number.

Spark passes both as properties of the task's context. Logs name a trigger as `QUERY:BATCH`.
"""

from __future__ import annotations

from pyspark_ledger.ledger.logs.batch import BatchId

_RUN_ID = "spark.jobGroup.id"  # Spark runs the jobs of a streaming query in a group with the id of the query's run
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


def running_query() -> tuple[str | None, str | None]:
    """Return the id of the running task's query, and the batch's number. Each is None outside of a streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None, None
    return context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)


def running_trigger() -> str:
    """Return the trigger of the running task as `QUERY:BATCH`, for logs; empty outside of a streaming query."""
    query, batch = running_query()
    return f"{query}:{batch}" if query and batch is not None else ""


def running_run() -> str:
    """Return Spark's id of this run of the running task's query. Every start of the query has another id."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else context.getLocalProperty(_RUN_ID) or ""


def task_batch(batch: str) -> BatchId | None:
    """Return the id of the batch `batch` together with the running task's trigger; None if `batch` is empty."""
    return BatchId(batch, running_trigger()) if batch else None
