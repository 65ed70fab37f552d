"""Trigger of a streaming query, as the task context of Spark names it."""

from __future__ import annotations

from pyspark_ledger.ledger.logs.batch import BatchId

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


def running_query() -> tuple[str | None, str | None]:
    """Return the query and the number of the batch that the running task belongs to, each None if there is none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None, None
    return context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)


def running_trigger() -> str:
    """Return the trigger of the running task, for logs; empty outside of a streaming query."""
    query, batch = running_query()
    return f"{query}:{batch}" if query and batch is not None else ""


def task_batch(batch: str) -> BatchId | None:
    """Return the batch of a task with the running trigger, None without an id."""
    return BatchId(batch, running_trigger()) if batch else None
