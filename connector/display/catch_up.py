"""Wait for the end of a query and for its acknowledgement. The *backlog* is the rows that the query has not read yet.

Rules
- The last progress of an ended query proves the commit of its batch, as Spark reports a batch after its commit.
- The bar shows the share of the rows that the query has read: `read / (read + present backlog)`.
- Spark counts no rows while a batch runs. Until the first batch ends, the bar counts the tasks of this batch.
- A failed query raises its exception, like Spark's `awaitTermination`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark_ledger.connector.display.samples import Batches, batch_rows, query_title, reported_lag
from pyspark_ledger.connector.session.commit_listener import acknowledge_batch
from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.display.progress_bar import progress_bar

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.25
# Without a time-out, so long may acknowledgements take after the end of the query.
_ACKNOWLEDGE_MS = 60_000


def catch_up(
    query: StreamingQuery, timeout_s: float | None = None, *, progress: bool = True, clock: Clock = monotonic_ms
) -> bool:
    """Wait until the query has ended and its last batch is acknowledged. Raises the query's exception.

    Return False after the time-out, or if an acknowledgement fails.
    """
    until_ms = None if timeout_s is None else clock() + round(timeout_s * 1000)
    batches, rows, lag = Batches(query), 0, None
    with progress_bar(f"catch up {query_title(query)}", shown=progress) as bar:
        while True:
            ended = query.awaitTermination(_POLL_SECONDS)  # type: ignore[arg-type]  # Spark accepts 0.25
            found = batches.new()
            rows += batch_rows(found)
            lag = reported_lag(found[-1]) if found else lag
            if ended:
                bar.update(1.0, f"{rows:,} rows")
                latest = clock() + _ACKNOWLEDGE_MS if until_ms is None else until_ms
                return batches.last is None or acknowledge_batch(batches.last, latest)
            if lag is not None:
                whole = rows + lag.rows
                bar.update(rows / whole if whole else None, f"{rows:,} of {whole:,} rows")
            elif bar.shown:
                bar.update(*_tasks(str(query.runId)))
            if until_ms is not None and clock() >= until_ms:
                return False


def _tasks(run_id: str) -> tuple[float | None, str]:
    """Return the share of finished tasks of the running batch, and its text. The share is None with Spark Connect."""
    from pyspark.sql import SparkSession

    session, done, total = SparkSession.getActiveSession(), 0, 0
    with suppress(Exception):  # a job may end between two calls, and a session of Spark Connect lists no jobs
        tracker = session.sparkContext.statusTracker()  # type: ignore[union-attr]
        for job in set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(run_id)):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (() if info is None else info.stageIds)]
            done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
            total += sum(stage.numTasks for stage in stages if stage is not None)
    return (done / total, f"first batch, {done} of {total} tasks") if total else (None, "first batch")
