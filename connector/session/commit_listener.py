"""Listener that acknowledges each batch as soon as Spark has committed it, also the last batch of a query.

Spark tells a data source about a commit only while it plans the next batch. So a data source never learns that the last
batch of a query is committed. Spark also sends a progress event for each batch, after the batch is in its commit log.
The event contains the batch's `endOffset`. Sessions of `session()`, `configure()` and `serve()` listen to these
events, and move the cursors. `catch_up()` takes the same end from the last progress of an ended query.

Invariants
- Acknowledgements go only up to the end offset of a progress event. Rows after it may have been read by tasks, but
  Spark may have to read them again.
- The listener never blocks Spark's listener bus. A separate thread calls the broker, with only the newest position of
  each cursor.
- With Spark Connect, this process logs the warnings that the source has logged on the server, each once for a run.
- If an acknowledgement fails, a warning is logged. The next batch, or the next start of the query, also acknowledges
  these rows.
- A process that ends waits, for a limited time, until the commits of its finished queries are acknowledged.
- A pipeline (`pyspark.pipelines`) runs its queries in the session of its client. So a listener of the client gets their
  events too, except the start of a query. The source itself has no proof of the last commit: Spark gives it neither the
  checkpoint nor a call after the commit. Without a listener, the next run acknowledges.
- A run that leaves rows unread, because this Spark runs Trigger.AvailableNow as one micro-batch, is warned about at its
  end. A listener sees no trigger. So the sign of such a run is one batch, a limit that ended the batch, and an end
  without an error. `stop()` after the first batch looks the same.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.pipelines import is_definition_file
from pyspark_ledger.connector.read.committed import committed
from pyspark_ledger.connector.read.progress import (
    BATCH_ID_KEY,
    WARNINGS_KEY,
    SourceIdentity,
    source_report,
)
from pyspark_ledger.connector.session.listeners import add_listener
from pyspark_ledger.connector.session.rows_left import FixedEnds, ends_after_one_batch, has_batch
from pyspark_ledger.connector.session.session_id import session_id, set_session_id
from pyspark_ledger.connector.spark_features import is_connect
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.logs.batch import BatchId, current_batch, in_batch
from pyspark_ledger.ledger.logs.json_lines import log_connector_by
from pyspark_ledger.ledger.logs.steps import timed_step
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import MarkDelete

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_ledger.ledger.client.client import Client

_log = logging.getLogger(__name__)
SETTLE_SECONDS = 10.0
# Spark setting with the id of the session's listener (`session_id`). `is_installed` tests whether this process has the
# listener with that id.
CONF = "spark.ledger.acknowledgedBy"


class CursorMover:
    """Thread that moves cursors. It moves a cursor only to the newest requested position."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # The newest position of each cursor, by store, ledger and subscription. A store is named by place and id,
        # because a copy has the id of its original.
        self._wanted: dict[tuple[str, str, str, str], tuple[SourceIdentity, Position, BatchId | None]] = {}
        # Cursors whose last request has failed.
        self._failed: set[tuple[str, str, str, str]] = set()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._connections: dict[tuple[str, str], DriverConnection] = {}

    def put(self, origin: SourceIdentity, ledger: str, position: Position) -> None:
        """Record that Spark has committed everything before `position`."""
        with self._changed:
            key = _key(origin, ledger)
            self._failed.discard(key)
            # `catch_up` may be ahead of the listener's events.
            if key not in self._wanted or self._wanted[key][1] < position:
                self._wanted[key] = (origin, position, current_batch())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger-acknowledging", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, until_ms: int) -> bool:
        """Wait until all requested positions are acknowledged. Return False if `until_ms` comes first.

        `until_ms` is a time of the monotonic clock.
        """
        with self._changed:
            while self._wanted or self._busy:
                left = until_ms - monotonic_ms()
                if left <= 0:
                    return False
                self._changed.wait(left / 1000)
        return True

    def has_failed(self, origin: SourceIdentity, ledger: str) -> bool:
        """Return whether the last acknowledgement of a cursor has failed."""
        with self._changed:
            return _key(origin, ledger) in self._failed

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._wanted:
                    self._changed.wait()
                (_, _, ledger, _), (origin, position, batch) = self._wanted.popitem()
                self._busy = True
            try:
                with in_batch(batch), timed_step("acknowledge", ledger=ledger, position=str(position)):
                    self._acknowledge(origin, ledger, position)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _acknowledge(self, origin: SourceIdentity, ledger: str, position: Position) -> None:
        request = MarkDelete(ledger, origin.subscription, position, replay_floor=position)

        def ask(client: Client) -> None:
            if client.store_id != origin.store_id:
                raise Refused(
                    f"{origin.store} is store {client.store_id} here, the query reads store {origin.store_id}",
                    hint="A path means a directory of the driver's host. From another host, use the broker's address",
                )
            client.ask(request)

        try:
            key = origin.store, origin.store_id
            if key not in self._connections:
                self._connections[key] = DriverConnection(origin.store, credentials=origin.to_credentials())
            self._connections[key].call(ask)
        except NotFound as gone:
            _log.info("subscription %s of %s is not acknowledged: %s", origin.subscription, ledger, gone)
        except Exception as error:  # noqa: BLE001 — the thread must continue for the other cursors
            _log.warning(
                "subscription %s of %s is not acknowledged up to %s, its next batch or start repeats this: %s",
                origin.subscription, ledger, position, error,
            )  # fmt: skip
            with self._changed:
                self._failed.add(_key(origin, ledger))


def _key(origin: SourceIdentity, ledger: str) -> tuple[str, str, str, str]:
    return origin.store, origin.store_id, ledger, origin.subscription


class CommitListener(StreamingQueryListener):
    """Listener that acknowledges the batches that a session's queries commit."""

    def __init__(
        self,
        put: Callable[[SourceIdentity, str, Position], None],
        *,
        of_pipeline: bool = False,
        logs_warnings: bool = False,
    ) -> None:
        self._put = put
        self._next_step = _NEXT_RUN if of_pipeline else _CATCH_UP
        self._logs_warnings = logs_warnings
        self._logged: dict[str, set[str]] = {}  # by run
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._only_batches: dict[str, Mapping[str, Any] | None] = {}  # by run; None after the second batch of a run

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        with self._changed:
            self._running.add(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Acknowledge the end of a committed batch."""
        with self._changed:
            self._running.add(str(event.progress.runId))
        progress = json.loads(event.progress.json)
        _put_committed(progress, self._put)
        run = str(event.progress.runId)
        if self._logs_warnings:
            self._log_warnings(progress, self._logged.setdefault(run, set()))
        if has_batch(progress):
            self._only_batches[run] = None if run in self._only_batches else progress

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: no batch was committed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Warn if a run has ended after one batch and has left rows. `catch_up` tells so itself."""
        self._logged.pop(str(event.runId), None)
        only_batch = self._only_batches.pop(str(event.runId), None)
        if only_batch is not None and event.exception is None and str(event.runId) not in _caught_up:
            _warn_of_rows_left(only_batch, self._next_step)
        with self._changed:
            self._running.discard(str(event.runId))
            self._changed.notify_all()

    def _log_warnings(self, progress: Mapping[str, Any], logged: set[str]) -> None:
        for source in progress.get("sources", []):
            for line in (source_report(source) or {}).get(WARNINGS_KEY, []):
                if line not in logged:
                    _log.warning("query %s, on the server: %s", progress.get("name") or progress.get("id"), line)
                    logged.add(line)

    def settle(self, active: Callable[[], set[str]], until_ms: int) -> bool:
        """Wait until all events of ended queries have arrived. Return False if `until_ms` comes first."""
        with self._changed:
            while self._running - active():
                left = until_ms - monotonic_ms()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 100) / 1000)
        return True


_CATCH_UP = "Call catch_up with the query's DataStreamWriter: it starts the query until these rows are read"
_NEXT_RUN = "Run the pipeline again: a run that finishes the batch of an interrupted run reads no other rows"


def _warn_of_rows_left(progress: Mapping[str, Any], next_step: str) -> None:
    """Log the rows that the only batch of a run has left, on a Spark that ends Trigger.AvailableNow after one batch."""
    ends = FixedEnds()
    if not ends_after_one_batch(progress) or ends.are_reached(progress):
        return
    left = ", ".join(f"{rows:,} rows of {name}" for name, rows in sorted(ends.left.items())) or "possibly rows"
    _log.warning(
        "query %s ended after one micro-batch and left %s unread. This Spark runs Trigger.AvailableNow as one "
        "micro-batch. %s",
        progress.get("name") or progress.get("id"), left, next_step,
    )  # fmt: skip


def _put_committed(
    progress: Mapping[str, Any], put: Callable[[SourceIdentity, str, Position], None]
) -> list[tuple[SourceIdentity, str]]:
    """Request the acknowledgement of a committed batch. Return its cursors."""
    trigger, cursors = f"{progress.get('id')}:{progress.get('batchId')}", []
    for source in progress.get("sources", []):
        with in_batch(_batch_of(source, trigger)):
            for origin, ledger, position in committed(source):
                put(origin, ledger, position)
                cursors.append((origin, ledger))
    return cursors


def _batch_of(source: Mapping[str, Any], trigger: str) -> BatchId:
    """Return the id of the batch that one source of a progress has read."""
    report = source_report(source)
    batch = report.get("batch") if isinstance(report, Mapping) else None
    known = batch.get(BATCH_ID_KEY) if isinstance(batch, Mapping) else None
    return BatchId(str(known or trigger), trigger)


_acknowledger = CursorMover()
# The newest runs that `catch_up` has started.
_caught_up: deque[str] = deque(maxlen=1000)
_listeners: weakref.WeakValueDictionary[str, CommitListener] = weakref.WeakValueDictionary()


def install(spark: SparkSession) -> None:
    """Add a listener to a session that acknowledges each committed batch. A repeated call changes nothing."""
    if is_installed(spark):
        return
    log_connector_by()
    # Without Spark Connect, the source's standard error is that of this process.
    listener = CommitListener(_acknowledger.put, of_pipeline=is_definition_file(), logs_warnings=is_connect(spark))
    # At the end of the process, wait until the last acknowledgements are sent.
    add_listener(spark, listener, lambda: _settled(spark, listener, monotonic_ms() + int(SETTLE_SECONDS * 1000)))
    _listeners[set_session_id(spark, CONF)] = listener


def is_installed(spark: SparkSession) -> bool:
    """Return whether a listener of this process acknowledges for the session."""
    return session_id(spark, CONF) in _listeners


def settle(spark: SparkSession, timeout_s: float = SETTLE_SECONDS) -> bool:
    """Wait until the commits of a session's ended queries are acknowledged. Return False after the time-out."""
    until_ms = monotonic_ms() + int(timeout_s * 1000)
    listener = _listeners.get(session_id(spark, CONF))
    return listener is None or _settled(spark, listener, until_ms)


def ends_in_catch_up(query: StreamingQuery) -> None:
    """Record that `catch_up` tells of rows that this run leaves, so that the listener does not warn."""
    _caught_up.append(str(query.runId))


def acknowledge_batch(progress: Mapping[str, Any], until_ms: int) -> bool:
    """Acknowledge the batch of a query's progress. Return False if that fails or `until_ms` comes first."""
    cursors = _put_committed(progress, _acknowledger.put)
    return _acknowledger.settle(until_ms) and not any(_acknowledger.has_failed(*cursor) for cursor in cursors)


def _settled(spark: SparkSession, listener: CommitListener, until_ms: int) -> bool:
    def active() -> set[str]:
        return {str(query.runId) for query in spark.streams.active}

    return listener.settle(active, until_ms) and _acknowledger.settle(until_ms)
