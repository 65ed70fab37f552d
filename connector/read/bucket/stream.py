"""The stream of a bucket: `spark.readStream.format("ledger").option("offload", …)`, sealed ledgers in batches.

Rules
- It begins with the first entry, unless the options say otherwise, and comes to an end of what is there; ledgers that
  are offloaded later follow in later batches.
- `partitions(start, end)` is a function of its arguments and of objects that do not change.
- Limits hold for the partitions of a topic together, shared out evenly; each batch reads at least one entry.
- Nothing is acknowledged: no broker is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import IgnoredStart
from pyspark_ledger.connector.read.bucket.batch import BucketPartition
from pyspark_ledger.connector.read.bucket.scan import BucketRead
from pyspark_ledger.connector.read.bucket.task import fetch_part
from pyspark_ledger.connector.read.limits import Limits
from pyspark_ledger.connector.read.offsets import LedgerOffset, StreamOffset, batch_range
from pyspark_ledger.connector.spark_errors import spark_face
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.offload.bucket.topic_log import BucketLog

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming import datasource as admission
except ImportError:  # Spark 4.0 and 4.1 know no limits and no AvailableNow for Python sources
    admission = None  # type: ignore[assignment]

_MIXIN: Any = getattr(admission, "SupportsTriggerAvailableNow", object)


class BucketDriver:
    """What a running query knows of the bucket."""

    def __init__(self, options: LedgerOptions, given: StructType | None = None) -> None:
        self.read = BucketRead(options, given)
        self.limits = Limits(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        self.pinned: dict[str, Position] | None = None
        self._initial: StreamOffset | None = None

    def initial(self) -> StreamOffset:
        """Where the query begins without a checkpoint."""
        if self._initial is None:
            self._initial = StreamOffset(
                {log.topic.path: LedgerOffset(self.read.starting(log), log.life) for log in self.read.logs},
                initial=True,
            )
        return self._initial

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """The end of the next batch; None when there is nothing to read."""
        left = self._left(start)
        if not left and self.pinned is None:
            self.read.look_again()
            left = self._left(start)
        if not left:
            return None
        ends = {log.topic.path: range_.end for log, range_ in left}
        if limited and self.limits:
            ends = self._admitted(left)
        moved = {
            log.topic.path: LedgerOffset(ends.get(log.topic.path, self._at(start, log)), log.life)
            for log in self.read.logs
        }
        began = {name: offset.position for name, offset in start.ledgers.items()} if start.initial else {}
        return StreamOffset(moved, initial=False, began=began)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[BucketPartition]:
        """The parts of a batch."""
        found: list[BucketPartition] = []
        known = {log.topic.path: log for log in self.read.logs}
        for path in end.ledgers:
            if path not in known:
                self.read.look_again()
                known = {log.topic.path: log for log in self.read.logs}
            log = known.get(path)
            if log is None:
                raise DataLoss(f"topic {path} of the checkpoint is not in {self.read.bucket.address} any more")
            own = start if path in start.ledgers else StreamOffset({path: LedgerOffset(log.start, log.life)})
            range_ = batch_range(path, own, end)
            if range_.end > log.end:
                raise DataLoss(f"{path} ends at {log.end} in the bucket, the checkpoint is at {range_.end}")
            found += [BucketPartition(part) for part in self.read.parts(log, range_)]
        return found

    def pin_end(self) -> None:
        """AvailableNow: nothing beyond the end as it is now."""
        self.pinned = {log.topic.path: log.end for log in self.read.logs}

    def _at(self, start: StreamOffset, log: BucketLog) -> Position:
        known = start.ledgers.get(log.topic.path)
        if known is None:
            return log.start
        if known.incarnation != log.life:
            raise Refused(
                f"{log.topic.name} was written by {log.life!r}, the checkpoint is of {known.incarnation!r}",
                hint="Start with a new checkpoint",
            )
        return known.position

    def _left(self, start: StreamOffset) -> list[tuple[BucketLog, PositionRange]]:
        ranges = []
        for log in self.read.logs:
            end = log.end if self.pinned is None else min(log.end, self.pinned.get(log.topic.path, log.start))
            range_ = PositionRange(self._at(start, log), end)
            if range_ and log.parts(range_, 2**62):
                ranges.append((log, range_))
        return ranges

    def _admitted(self, left: Sequence[tuple[BucketLog, PositionRange]]) -> dict[str, Position]:
        """The limits, shared out: what one does not use is there for those after it."""
        rows, size = self.limits.rows, self.limits.size_bytes
        ends: dict[str, Position] = {}
        for number, (log, range_) in enumerate(left):
            others = len(left) - number
            share = (None if rows is None else max(rows // others, 1), None if size is None else max(size // others, 1))
            end = self.read.timed(log).admitted(range_, *share)
            used_rows, used_bytes = log.measure(PositionRange(range_.start, end))
            rows = None if rows is None else max(rows - used_rows, 0)
            size = None if size is None else max(size - used_bytes, 0)
            ends[log.topic.path] = end
        return ends


@spark_face
class BucketStreamReader(DataSourceStreamReader, _MIXIN):  # type: ignore[misc]
    """Spark's face of it."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        self._options = options
        self._schema = schema
        self._running: BucketDriver | None = None
        self._ignored_start = IgnoredStart(options)

    def __getstate__(self) -> dict[str, Any]:
        state = {"_options": self._options, "_schema": self._schema, "_running": None}
        return {**state, "_ignored_start": self._ignored_start}

    @property
    def _driver(self) -> BucketDriver:
        if self._running is None:
            self._running = BucketDriver(self._options, self._schema)
        return self._running

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the query begins without a checkpoint."""
        self._ignored_start.asked("")
        return self._driver.initial().to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself when there is nothing to read."""
        if start is None:  # before Spark 4.2: everything that is there
            whole = self._driver.latest(self._driver.initial(), limited=False)
            return (whole or self._driver.initial()).to_json()
        self._ignored_start.told()
        all_of_it = type(limit).__name__ == "ReadAllAvailable"
        end = self._driver.latest(StreamOffset.from_json(start), limited=not all_of_it)
        return start if end is None else end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """A token of the limits; they are computed in `latestOffset`, both at once."""
        if self._options.max_bytes_per_trigger is not None:
            return admission.ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_rows_per_trigger is not None:
            return admission.ReadMaxRows(self._options.max_rows_per_trigger)
        return admission.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Pin the end: what is offloaded later is for the next run."""
        self._driver.pin_end()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch."""
        self._ignored_start.told()
        return self._driver.partitions(StreamOffset.from_json(start), StreamOffset.from_json(end))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part."""
        return iter(()) if partition is None or partition.value is None else fetch_part(partition.value)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: nobody holds anything back for this reader."""

    def stop(self) -> None:
        """Nothing is held."""
