"""Streams, `spark.readStream.format("ledger")`: Spark's reader, which uses the planner of a source.

Spark keeps one reader on the driver for each execution of a query. For each trigger Spark calls `latestOffset(start)`,
`reportLatestOffset`, `commit(previous end)` and `partitions(start, end)`. After a failure it calls `partitions` first.

Spark 4.0 and 4.1 have no *admission control*: they pass no start and no limits to `latestOffset()`. There the start
is the offset that the previous call returned. At the first call, it is the initial offset. `connector.spark_features`
has the order of the calls. These releases do not call `reportLatestOffset` either. So the end offset of a batch
contains the batch's progress report.

Rules
- Offsets are JSON values. An unchanged offset is returned exactly as it was passed.
- The planner is created at the first call. Reason: Spark creates some readers only to pickle them.
- Executors get a copy without a planner, so the copy has no connection, lease or thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_ledger.connector.connection import print_once
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.pipelines import REPEATED, is_driver_of_pipeline, require_complete_run
from pyspark_ledger.connector.read.bounds import IgnoredStart
from pyspark_ledger.connector.read.offsets import REPORT_KEY, StreamOffset
from pyspark_ledger.connector.read.planner import StreamPlanner, partitions_of, read_partition
from pyspark_ledger.connector.read.progress import BATCH_ID_KEY, WARNINGS_KEY
from pyspark_ledger.connector.read.read_batches import ReadBatches
from pyspark_ledger.connector.read.run_warnings import RunWarnings
from pyspark_ledger.connector.spark_errors import plain_errors
from pyspark_ledger.connector.spark_features import admission, spark_features, stream_reader_classes
from pyspark_ledger.ledger.errors import LedgerError, Unsupported
from pyspark_ledger.ledger.logs.batch import in_batch
from pyspark_ledger.ledger.logs.json_lines import log_connector_by
from pyspark_ledger.ledger.logs.steps import timed_step

_log = logging.getLogger(__name__)


@plain_errors
class LedgerStreamReader(*stream_reader_classes()):  # type: ignore[misc]  # the classes of the running Spark
    """Spark's reader of a stream. It plans batches on the driver, with a planner that `plan` creates.

    It reads tasks on executors.
    """

    def __init__(self, options: LedgerOptions, plan: Callable[[], StreamPlanner]) -> None:
        log_connector_by()
        self._options = options
        self._plan = plan
        self._running: StreamPlanner | None = None
        self._ignored_start = IgnoredStart(options)
        self._features = spark_features()
        self._batches = ReadBatches()
        self._warnings = RunWarnings()
        # Only without admission control: the newest offset, and the end of the first batch.
        self._last_end: dict[str, Any] | None = None
        self._first_end: dict[str, Any] | None = None
        self._first_planned = False

    def __getstate__(self) -> dict[str, object]:
        return {}  # a task has all that an executor needs

    @property
    def _planner(self) -> StreamPlanner:
        if self._running is None:
            require_complete_run(self._limits)
            self._warnings.start()
            self._running = self._plan()
        return self._running

    @property
    def _limits(self) -> str:
        """Names of the options that can end the first batch, if Spark has no admission control; else empty."""
        options = self._options
        if self._features.admission_control or options.first_batch == "everything":
            return ""
        limits = {
            "maxRowsPerTrigger": options.max_rows_per_trigger,
            "maxBytesPerTrigger": options.max_bytes_per_trigger,
            "minRowsPerTrigger": options.min_rows_per_trigger,
        }
        return " and ".join(name for name, limit in limits.items() if limit)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        initial = self._planner.initial()
        self._ignored_start.on_initial_offset(self._planner.start_warning)
        return initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. If there are no rows to deliver, return the start.

        Spark without admission control passes no arguments. The limits also apply to its batches.
        """
        if start is not None:
            self._ignored_start.on_start_offset(StreamOffset.from_json(start))
            return self._end_after(start, limited=type(limit).__name__ != "ReadAllAvailable")
        start = self._last_end or self._planner.initial().to_json()
        limited = not self._is_first_unlimited()
        self._last_end = self._end_after(start, limited=limited)
        if StreamOffset.from_json(start).initial:
            self._first_end = self._last_end
        return self._last_end

    def _end_after(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """Return the end of the batch after `start`. It contains the progress report if Spark asks for no report."""
        with in_batch(self._batches.after(start)):
            with timed_step("plan") as figures:
                end = self._planner.latest(StreamOffset.from_json(start), limited=limited)
                figures["found"] = end is not None
            if end is None:
                return start
            report = None if self._features.progress_report else self._report()
        return end.to_json() if report is None else end.to_json() | {REPORT_KEY: report}

    def _report(self) -> dict[str, Any] | None:
        """Return the planner's report with the batch's id and the run's warnings. The session's listener logs both."""
        report, batch = self._planner.report(), self._batches.newest
        if report is None or batch is None:
            return report
        lines = self._warnings.lines()
        report = {**report, "batch": {**report.get("batch", {}), BATCH_ID_KEY: batch.batch}}
        return report | ({WARNINGS_KEY: lines} if lines else {})

    def _is_first_unlimited(self) -> bool:
        """Return whether the limits do not apply to the next batch: the first one with `firstBatch` = `everything`.

        Otherwise the first call logs a warning if a limit is set. Reason: without admission control,
        `Trigger.AvailableNow` ends after one batch. With a limit, that is before the end of the log.
        """
        is_first, self._first_planned = not self._first_planned, True
        if not is_first or self._options.first_batch == "everything":
            return is_first
        if self._limits:
            _log.warning(
                "this Spark runs Trigger.AvailableNow as one micro-batch: such a run ends at maxRowsPerTrigger or "
                "maxBytesPerTrigger, and reads nothing below minRowsPerTrigger. Run the query with catch_up, or set "
                "firstBatch to everything"
            )
        return False

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return one of the limits that the user has set. Any of them will do: `latestOffset` applies all."""
        if self._options.max_bytes_per_trigger is not None:
            return admission.ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_rows_per_trigger is not None:
            return admission.ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.min_rows_per_trigger is not None:
            return admission.ReadMinRows(self._options.min_rows_per_trigger)
        return admission.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.pin_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        with in_batch(self._batches.newest):
            return self._report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch: the same tasks for the same arguments, in any process."""
        from_offset = StreamOffset.from_json(start)
        self._ignored_start.on_start_offset(from_offset)
        if self._last_end is None:
            self._last_end = end
        if self._is_repeated(start, end) and is_driver_of_pipeline():
            print_once(REPEATED)
        if end == self._first_end != start and not from_offset.initial:
            raise Unsupported(
                "this Spark asked for the end of a batch before it stated the newest offset of the checkpoint",
                hint="Nothing was read. Run the query on Spark 4.0.5, 4.1.4 or newer",
            )
        batch = self._batches.between(start, end)
        with in_batch(batch), timed_step("split") as figures:
            tasks = self._planner.tasks(from_offset, StreamOffset.from_json(end))
            figures["tasks"] = len(tasks)
        return partitions_of(tasks, batch.batch, self._limits)

    def _is_repeated(self, start: dict[str, Any], end: dict[str, Any]) -> bool:
        """Return whether Spark without admission control repeats the unfinished batch of an earlier run."""
        return not self._features.admission_control and not self._first_planned and start != end

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        with in_batch(self._batches.ending_at(end)), timed_step("acknowledge"):
            self._planner.acknowledge(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Release the query's leases at once. Otherwise they expire."""
        self._warnings.stop()
        if self._running is None:
            return
        try:
            self._running.stop()
        except LedgerError as error:
            _log.info("a lease could not be released and expires: %s", error)
