"""Run a query to the end of its ledgers, and wait for its acknowledgement.

The *backlog* is the rows that the query has not read yet.

Rules
- Spark without admission control runs Trigger.AvailableNow as one micro-batch. There, a query that `catch_up` can start
  is started again until it has read the rows that stood at its start (`connector.session.rows_left`). A run that finds
  no batch is the last one. So is a run that ends where the run before it ended.
- The last progress of an ended query proves the commit of its batch, as Spark reports a batch after its commit.
- The bar shows the share of the rows that the query has read: `read / (read + present backlog)`.
- Spark counts no rows while a batch runs. Until the first batch ends, the bar counts the tasks of this batch.
- A failed query raises its exception, like Spark's `awaitTermination`.
- A query that `catch_up` has started is stopped when the call ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_ledger.connector.display.samples import Batches, batch_rows, query_title, reported_lag
from pyspark_ledger.connector.session.commit_listener import acknowledge_batch, ends_in_catch_up
from pyspark_ledger.connector.session.rows_left import FixedEnds, end_offsets, ends_after_one_batch, has_batch
from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.display.progress_bar import ProgressBar, progress_bar
from pyspark_ledger.ledger.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_SECONDS = 0.25
# Without a time-out, so long may acknowledgements take after the end of the query.
_ACKNOWLEDGE_MS = 60_000
_AGAIN = "Call catch_up with the query's DataStreamWriter, or with a function that starts the query"


@dataclass(frozen=True, slots=True, repr=False)
class CatchUp:
    """Result of `catch_up`. It is true if the query has read all rows that stood at its start, and acknowledged them.

    `rows` and `batches` are what the call has seen the query read, in `runs` starts. `left` has the unread rows before
    the ends that stood at the start, by ledger. `reason` states why the result is false.
    """

    rows: int = 0
    batches: int = 0
    runs: int = 1
    left: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    @property
    def rows_left(self) -> int:
        """Unread rows of all ledgers, as counted when the last batch was planned."""
        return sum(self.left.values())

    def __bool__(self) -> bool:
        return not self.reason

    def __repr__(self) -> str:
        text = f"{self.rows:,} rows read (batches: {self.batches:,}, runs: {self.runs:,})"
        left = ", ".join(f"{rows:,} of {name}" for name, rows in sorted(self.left.items()))
        return ": ".join([text + (f", rows left: {left}" if left else ""), *([self.reason] if self.reason else [])])


def catch_up(
    query: StreamingQuery | DataStreamWriter | Callable[[], StreamingQuery],
    timeout_s: float | None = None,
    *,
    progress: bool = True,
    clock: Clock = monotonic_ms,
) -> CatchUp:
    """Wait until the query has read the rows that stood at its start, and its last batch is acknowledged.

    A `DataStreamWriter` is started with Trigger.AvailableNow. Raises the query's exception. Raises Refused if a second
    run would begin with another checkpoint.
    """
    until_ms = None if timeout_s is None else clock() + round(timeout_s * 1000)
    start = _starter(query)
    runs = _Runs(until_ms, clock)
    if start is None:
        return runs.wait(query, progress=progress)  # type: ignore[arg-type]  # `_starter` returns None for a query
    while True:
        started = start()
        try:
            runs.require_checkpoint(started)
            ends_in_catch_up(started)
            result = runs.wait(started, progress=progress)
        finally:
            started.stop()
        if not runs.has_next:
            return result


def _starter(
    query: StreamingQuery | DataStreamWriter | Callable[[], StreamingQuery],
) -> Callable[[], StreamingQuery] | None:
    """Return the function that starts a query; None if the query is started already."""
    if callable(query):
        return query
    if hasattr(query, "trigger"):
        return query.trigger(availableNow=True).start
    return None


class _Runs:
    """Runs of one query, one after the other. `has_next` tells whether another run can read more rows."""

    def __init__(self, until_ms: int | None, clock: Clock) -> None:
        self.has_next = False
        self._until_ms, self._clock = until_ms, clock
        self._ends = FixedEnds()
        self._rows = self._batches = self._runs = 0
        self._query_id = ""
        self._end: object = None

    def require_checkpoint(self, query: StreamingQuery) -> None:
        """Raise Refused if a query has another checkpoint than its last run. Reason: it would read the same rows."""
        if self._runs and str(query.id) != self._query_id:
            raise Refused(
                f"run {self._runs + 1} of query {query_title(query)} has a new checkpoint, so it would repeat rows of "
                f"run {self._runs}",
                hint="Set option 'checkpointLocation' of the query. The rows of the first runs are read",
            )
        self._query_id = str(query.id)

    def wait(self, query: StreamingQuery, *, progress: bool) -> CatchUp:
        """Wait for the end of a run, and for its acknowledgement."""
        self._runs, self.has_next = self._runs + 1, False
        batches = Batches(query)
        with progress_bar(f"catch up {query_title(query)}", shown=progress) as bar:
            if not self._wait_for_end(query, batches, bar):
                return self._result("the time-out came first")
        last = batches.last or {}
        latest = self._clock() + _ACKNOWLEDGE_MS if self._until_ms is None else self._until_ms
        acknowledged = acknowledge_batch(last, latest)
        is_complete, end = self._ends.are_reached(last), end_offsets(last)
        self.has_next = not is_complete and acknowledged and end != self._end and ends_after_one_batch(last)
        stalled, self._end = end == self._end, end
        if not acknowledged:
            return self._result("an acknowledgement has failed")
        if is_complete:
            return self._result("")
        if stalled:
            return self._result("the last run has read nothing")
        if not ends_after_one_batch(last):
            return self._result("the query ended before the end of its ledgers")
        return self._result(f"this Spark ended the query after one micro-batch. {_AGAIN}")

    def _wait_for_end(self, query: StreamingQuery, batches: Batches, bar: ProgressBar) -> bool:
        """Wait until the query has ended. Return False if the time-out comes first."""
        lag = None
        while True:
            ended = query.awaitTermination(_POLL_SECONDS)  # type: ignore[arg-type]  # Spark accepts 0.25
            found = batches.new()
            self._rows += batch_rows(found)
            self._batches += sum(has_batch(batch) for batch in found)
            lag = reported_lag(found[-1]) if found else lag
            if ended:
                bar.update(1.0, f"{self._rows:,} rows")
                return True
            if lag is not None:
                whole = self._rows + lag.rows
                bar.update(self._rows / whole if whole else None, f"{self._rows:,} of {whole:,} rows")
            elif bar.shown:
                bar.update(*_tasks(str(query.runId)))
            if self._until_ms is not None and self._clock() >= self._until_ms:
                return False

    def _result(self, reason: str) -> CatchUp:
        return CatchUp(self._rows, self._batches, self._runs, self._ends.left, reason)


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
