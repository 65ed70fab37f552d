"""The stream: `spark.readStream.format("ledger").load("orders")`, with or without a durable subscription.

Spark keeps one reader alive on the driver for a run of a query and calls, per trigger, `latestOffset(start)`,
`reportLatestOffset`, `commit(previous end)`, `partitions(start, end)`; after a failure it calls `partitions` first.
What is done then is `connector.read.ledger.stream`'s.

Rules: offsets go in and out as JSON values, and one that did not move as it came, to the letter. Executors get a copy
without connection, lease or thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import IgnoredStart
from pyspark_ledger.connector.read.ledger.scan import with_added_columns
from pyspark_ledger.connector.read.ledger.stream import StreamDriver
from pyspark_ledger.connector.read.ledger.task import fetch
from pyspark_ledger.connector.read.offsets import StreamOffset
from pyspark_ledger.connector.spark_errors import spark_face
from pyspark_ledger.ledger.errors import LedgerError, Unsupported

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming import datasource as admission
except ImportError:  # Spark 4.0 and 4.1 know no limits and no AvailableNow for Python sources
    admission = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)
_MIXIN: Any = getattr(admission, "SupportsTriggerAvailableNow", object)


@spark_face
class LedgerStreamReader(DataSourceStreamReader, _MIXIN):  # type: ignore[misc]
    """Spark's face of it: offsets in and out as JSON values, partitions to executors."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        limits = (options.max_rows_per_trigger, options.max_bytes_per_trigger, options.min_rows_per_trigger)
        if admission is None and limits != (None, None, None):
            raise Unsupported(
                "maxRowsPerTrigger, maxBytesPerTrigger and minRowsPerTrigger need Spark 4.2: this one knows no limits "
                "of Python sources",
                hint="Leave them out, or use Spark 4.2 or newer",
            )
        self._options = options
        self._schema = schema
        self._running: StreamDriver | None = None
        self._ignored_start = IgnoredStart(options)

    def __getstate__(self) -> dict[str, Any]:
        state = {"_options": self._options, "_schema": None, "_running": None}
        return {**state, "_ignored_start": self._ignored_start}

    @property
    def _driver(self) -> StreamDriver:
        if self._running is None:
            self._running = StreamDriver(self._options, self._schema)
        return self._running

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the query begins without a checkpoint."""
        initial = self._driver.initial()
        self._ignored_start.asked(self._driver.overruled)
        return initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself when there is nothing to deliver.

        Before 4.2 Spark hands over neither: then it is the end of the log, as far as it has rows.
        """
        if start is None:
            return self._driver.latest_without_start().to_json()
        self._ignored_start.told()
        all_of_it = type(limit).__name__ == "ReadAllAvailable"
        end = self._driver.latest(StreamOffset.from_json(start), limited=not all_of_it)
        return start if end is None else end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """A token of the limits; they are computed in `latestOffset`, all at once."""
        if self._options.max_bytes_per_trigger is not None:
            return admission.ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_rows_per_trigger is not None:
            return admission.ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.min_rows_per_trigger is not None:
            return admission.ReadMinRows(self._options.min_rows_per_trigger)
        return admission.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Pin the end: what comes later is for the next run."""
        self._driver.pin_end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the log ends, and the lag, for Spark's progress."""
        return with_added_columns(self._driver.report(), self._driver.read)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch; the same for the same arguments, in any process."""
        self._ignored_start.told()
        return self._driver.partitions(StreamOffset.from_json(start), StreamOffset.from_json(end))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part."""
        return iter(()) if partition is None or partition.value is None else fetch(partition.value)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark has committed the batch that ended at `end`."""
        self._driver.acknowledge(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Give back what time would give back anyway."""
        if self._running is None:
            return
        try:
            self._running.stop()
        except LedgerError as error:
            _log.info("a lease was left to run out: %s", error)
