"""The stream, `spark.readStream.format("ledger")`: Spark's reader over a planner.

Spark keeps one reader on the driver for each run of a query. For each trigger Spark calls `latestOffset(start)`,
`reportLatestOffset`, `commit(previous end)` and `partitions(start, end)`. After a failure it calls `partitions` first.

Rules
- Offsets are JSON values. An unchanged offset is returned exactly as it was passed.
- The planner is created at the first call. Reason: Spark also creates readers only to pickle them.
- Executors get a copy without a planner, and therefore without a connection, lease or thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import IgnoredStart
from pyspark_ledger.connector.read.offsets import StreamOffset
from pyspark_ledger.connector.read.planner import StreamPlanner, partitions_of, read_partition
from pyspark_ledger.connector.spark_errors import plain_errors
from pyspark_ledger.ledger.errors import LedgerError, Unsupported

try:
    from pyspark.sql.streaming import datasource as admission
except ImportError:  # Spark 4.0 and 4.1 have no limits and no AvailableNow for Python sources
    admission = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)
_MIXIN: Any = getattr(admission, "SupportsTriggerAvailableNow", object)


@plain_errors
class LedgerStreamReader(DataSourceStreamReader, _MIXIN):  # type: ignore[misc]
    """Spark's reader of a stream: plans batches on the driver with the planner of `plan`, reads tasks on executors."""

    def __init__(self, options: LedgerOptions, plan: Callable[[], StreamPlanner]) -> None:
        limits = (options.max_rows_per_trigger, options.max_bytes_per_trigger, options.min_rows_per_trigger)
        if admission is None and limits != (None, None, None):
            raise Unsupported(
                "maxRowsPerTrigger, maxBytesPerTrigger and minRowsPerTrigger need Spark 4.2: this one knows no limits "
                "of Python sources",
                hint="Leave them out, or use Spark 4.2 or newer",
            )
        self._options = options
        self._plan = plan
        self._running: StreamPlanner | None = None
        self._ignored_start = IgnoredStart(options)

    def __getstate__(self) -> dict[str, object]:
        return {}  # a task has all that an executor needs

    @property
    def _planner(self) -> StreamPlanner:
        if self._running is None:
            self._running = self._plan()
        return self._running

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        initial = self._planner.initial()
        self._ignored_start.on_initial_offset(self._planner.start_warning)
        return initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; `start` itself if there is nothing to deliver.

        Spark before 4.2 passes no arguments. The answer is then the current end of the ledgers.
        """
        if start is None:
            return self._planner.latest_without_start().to_json()
        self._ignored_start.on_start_offset()
        read_all = type(limit).__name__ == "ReadAllAvailable"
        end = self._planner.latest(StreamOffset.from_json(start), limited=not read_all)
        return start if end is None else end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return one of the set limits as Spark's token. `latestOffset` applies all limits."""
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
        return self._planner.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch: the same tasks for the same arguments, in any process."""
        self._ignored_start.on_start_offset()
        return partitions_of(self._planner.tasks(StreamOffset.from_json(start), StreamOffset.from_json(end)))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        self._planner.acknowledge(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Release the leases of the run at once. Otherwise they expire."""
        if self._running is None:
            return
        try:
            self._running.stop()
        except LedgerError as error:
            _log.info("a lease could not be released and expires: %s", error)
