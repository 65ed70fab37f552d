"""Sealed segments that can be published, of a ledger or of a topic in a bucket, and the rows of a segment.

A segment's rows are a DataFrame.

    StoreSegments     segments of a ledger, read through the broker
    BucketSegments    segments of a topic, read from the objects of a bucket without a broker

Rules
- A log is a ledger without partitions, or one partition. Its segments are ordered.
- Only sealed segments are listed, because their content never changes.
- In a bucket, a transaction is open if its commit or abort is missing. Only segments before the first open transaction
  are listed, because it is unknown whether later rows are visible.
- A segment is read as a range of positions. Each partition of the DataFrame becomes one data file of the table.
- Each object of a bucket is listed and scanned once, not again for each segment.
- If entries between the last published segment and the first existing segment were deleted, an error is raised before
  any write.

Rules of `part_rows`
- A part is the input of one task.
- Spark plans a data source in a separate process, which would have to scan the bucket again. But this process has
  already read all entries to find transactions. So this process plans the parts, and creates a data source class that
  contains the parts.
- Each segment registers its data source under the same name, so the session keeps only the last data source. This does
  no harm, because a DataFrame keeps the data source with which it was created.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_ledger.connector.options.options import LedgerOptions, read_options
from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader
from pyspark_ledger.connector.read.bucket.scan import BucketRead
from pyspark_ledger.connector.read.data_loss import loss_of
from pyspark_ledger.connector.read.ledger.scan import LedgerRead
from pyspark_ledger.connector.read.planner import BatchPlanner, Task
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, LedgerDescription
from pyspark_ledger.ledger.protocol.ledgers import SealLedger
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, ReadProgress
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, PROVENANCE, Topic
from pyspark_ledger.offload.table.commit_metadata import NO_SEGMENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pyspark_ledger.connector.rows.shape import RowShape
    from pyspark_ledger.offload.bucket.topic_log import BucketLog


@dataclass(frozen=True, slots=True)
class PlannedTasks(BatchPlanner):
    """Plan with tasks that another process planned."""

    columns: StructType
    planned: Sequence[Task]

    def schema(self) -> StructType:
        return self.columns

    def tasks(self) -> Sequence[Task]:
        return self.planned


def part_rows(spark: SparkSession, name: str, parts: Sequence[Task], columns: StructType) -> DataFrame:
    """Return a frame with the rows of the parts, read by a data source with this name. `columns` is its schema."""

    class PlannedParts(DataSource):
        """Data source of the parts. A class inside of a function is pickled with the function's variables."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> LedgerBatchReader:
            return LedgerBatchReader(PlannedTasks(schema, parts))

    spark.dataSource.register(PlannedParts)
    return spark.read.format(name).load()


INCARNATION = "__incarnation"
RESCUED = "__rescued"
"""Column for undecodable rows, if the publisher has a dead-letter table: JSON with reason, position and payload."""
_TOPIC = "__topic"
PUBLISHED_METADATA = ("__position", "__publishTime", "__eventTime", "__key", _TOPIC, "__messageProperties")
# Options that only the publisher may set. Reason: with a user's selection of rows, a partly published segment would
# count as published.
_PUBLISHER_OPTIONS = (
    "path", "ledger", "ledgers", "ledgersPattern", "table", "history", "includeMetadata", "rescuedDataColumn",
    "startingPosition", "startingPositions", "startingTimestamp", "startingTimestamps",
    "endingPosition", "endingPositions", "endingTimestamp", "endingTimestamps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublishableSegment:
    """Sealed segment. `rows` is -1 if rows were not counted."""

    ledger_id: int
    entries: int
    rows: int
    size_bytes: int

    @property
    def last(self) -> Position:
        return Position(self.ledger_id, self.entries - 1)


@dataclass(frozen=True, slots=True)
class SealedLog:
    """Log with its full name, incarnation, current start, and sealed segments in order.

    `properties` are the ledger's properties. They are empty for a bucket.
    """

    name: str
    incarnation: str
    start: Position
    segments: tuple[PublishableSegment, ...]
    properties: Mapping[str, str]

    def next_after(self, segment: int) -> PublishableSegment | None:
        """Return the first segment after `segment`, None if there is none. `segment` may be NO_SEGMENT."""
        at = bisect_right(self.segments, segment, key=lambda item: item.ledger_id)
        return self.segments[at] if at < len(self.segments) else None

    @property
    def topic(self) -> str:
        tenant, namespace, domain, local = self.name.split("/", 3)
        return f"{domain}://{tenant}/{namespace}/{local}"


class StoreSegments:
    """Segments of a ledger in a store. `options` are those of `format("ledger")` without row selection."""

    def __init__(self, ledger: str, options: Mapping[str, str], file_bytes: int) -> None:
        self.name = canonical_name(ledger)
        self._options = _with_location(options)
        self._file_bytes = file_bytes
        self.connection = self._read(self.name).connection

    @property
    def store_id(self) -> str:
        return self.connection.call(lambda client: client.store_id)

    def logs(self) -> list[SealedLog]:
        whole = self.describe(self.name)
        # The description of a partitioned ledger has only sums. So each partition needs a call.
        return [
            _to_sealed_log(self.describe(log.name) if whole.partitions else log) for log in whole.partitions or [whole]
        ]

    def seal(self, older_than_ms: int) -> None:
        """Seal the open segment of each log if it is older than `older_than_ms`."""
        whole = self.describe(self.name)
        for log in whole.partitions or [whole]:
            self.connection.ask(SealLedger(log.name, older_than_ms))

    def describe(self, name: str) -> LedgerDescription:
        """Return the current description of a ledger. Raises NotFound."""
        return self.connection.ask(DescribeLedger(name))

    def require_whole(self, log: SealedLog, after: int) -> None:
        """Raise DataLoss if retention deleted unpublished entries after segment `after`. NO_SEGMENT means no check."""
        if after == NO_SEGMENT:
            return
        rest = PositionRange(Position(after + 1, 0), LATEST)
        request = AskLogStatuses([log.name], {log.name: ReadProgress(rest.start, log.incarnation, count=False)})
        for found in self.connection.ask(request).logs:
            loss = loss_of(found, log.incarnation, rest)
            if loss is not None:
                raise loss.error()

    def columns(self, log: SealedLog) -> Sequence[str]:
        return [str(name) for name in self._read(log.name).shape().rows.names]

    def rows(self, spark: SparkSession, log: SealedLog, segment: PublishableSegment, *, rescue: bool) -> DataFrame:
        read = self._read(log.name, rescue=rescue)
        return _frame(spark, self._options, log, segment, read.shape(), self._file_bytes)

    def _read(self, name: str, *, rescue: bool = False) -> LedgerRead:
        return LedgerRead(read_options({**self._options, **_row_options(name, rescue=rescue)}, "batch read"))


class BucketSegments:
    """Segments of a topic in a bucket. `options` name the bucket and the access to it."""

    store_id = ""

    def __init__(self, ledger: str, options: Mapping[str, str], file_bytes: int) -> None:
        self._ledger = ledger
        sizes = dict.fromkeys(("minpartitionbytes", "targetpartitionbytes"), str(file_bytes))
        self._options = sizes | {name.lower(): value for name, value in _with_location(options).items()}
        self._source = f"ledger_parts_{new_id().replace('-', '')}"
        self._reads: dict[bool, BucketRead] = {}

    @cached_property
    def _read(self) -> BucketRead:
        """The read of the topic, which caches its listing and scan."""
        return BucketRead(self._options_with(_row_options(self._ledger, rescue=False)))

    def logs(self) -> list[SealedLog]:
        """Return the current state of the topic or of its partitions."""
        self._reads.clear()  # new segments may have more columns
        self._read.refresh(for_columns=True)
        found = []
        for log in self._read.logs:
            whole = [
                segment
                for segment in log.topic.segments
                if Position(segment.ledger_id, segment.stored_entries) <= log.end
            ]
            segments = tuple(
                PublishableSegment(segment.ledger_id, segment.stored_entries, -1, segment.index.data_bytes)
                for segment in whole
                if segment.stored_entries
            )
            found.append(SealedLog(canonical_name(log.topic.name), log.incarnation, log.start, segments, {}))
        return found

    def require_whole(self, log: SealedLog, after: int) -> None:
        """Raise DataLoss if entries after segment `after` are missing in the bucket, up to the last segment."""
        if log.segments:
            whole = PositionRange(Position(after + 1, 0), log.segments[-1].last.next())
            self._log(self._read, log).require_whole(whole)

    def columns(self, log: SealedLog) -> Sequence[str]:  # noqa: ARG002  # partitions have the same columns
        return [str(name) for name in self._read.shape().rows.names]

    def rows(self, spark: SparkSession, log: SealedLog, segment: PublishableSegment, *, rescue: bool) -> DataFrame:
        """Return the rows of a segment. This process plans the read, because Spark would list the bucket again."""
        if rescue not in self._reads:
            wanted = _row_options(self._ledger, rescue=rescue)
            names = self._read.with_options(self._options_with(wanted)).shape().rows.names
            del wanted["includeMetadata"]
            self._reads[rescue] = self._read.with_options(
                self._options_with(wanted | _columns(_require_free_names(log, names)))
            )
        read = self._reads[rescue]
        range_ = PositionRange(Position(segment.ledger_id, 0), segment.last.next())
        found = self._log(read, log)
        return _with_topic(part_rows(spark, self._source, read.tasks(found, range_), read.schema()), found.topic.name)

    def _options_with(self, wanted: Mapping[str, str]) -> LedgerOptions:
        return read_options(self._options | {name.lower(): value for name, value in wanted.items()}, "batch read")

    @staticmethod
    def _log(read: BucketRead, log: SealedLog) -> BucketLog:
        return next(found for found in read.logs if canonical_name(found.topic.name) == log.name)


def segment_source(ledger: str, options: Mapping[str, str], file_bytes: int) -> StoreSegments | BucketSegments:
    """Return the segments of a bucket if option `offload` names a bucket, else those of a store."""
    kind = BucketSegments if any(name.lower() == "offload" for name in options) else StoreSegments
    return kind(ledger, options, file_bytes)


def _with_location(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the store's location, because workers cannot resolve a relative location.

    Raises Refused for an option that the publisher sets.
    """
    from pyspark_ledger.ledger.location import store_location

    ours = {name.lower() for name in _PUBLISHER_OPTIONS}
    wrong = sorted(name for name in options if name.lower() in ours)
    if wrong:
        raise Refused(
            f"option {wrong[0]!r} is set by the publisher", hint="Remove the option: whole segments are published"
        )
    full_options = dict(options)
    lowered = {name.lower(): name for name in full_options}
    if "offload" not in lowered:
        full_options[lowered.get("store", "store")] = store_location(full_options.get(lowered.get("store", "store")))
    return full_options


def _row_options(name: str, *, rescue: bool) -> dict[str, str]:
    wanted = {"ledger": name, "includeMetadata": "true"}
    return {**wanted, "rescuedDataColumn": RESCUED} if rescue else wanted


def _to_sealed_log(found: LedgerDescription) -> SealedLog:
    segments = tuple(
        PublishableSegment(segment.ledger_id, segment.entries, segment.rows, segment.size_bytes)
        for segment in found.segments
        if segment.close_ms and segment.entries
    )
    return SealedLog(found.name, found.incarnation, found.start, segments, found.properties)


def _require_free_names(log: SealedLog, names: Sequence[str]) -> Sequence[str]:
    """Return the names of a log's columns. Raises Refused if the publisher makes a column of the same name."""
    clashing = {RESCUED, INCARNATION, *PROVENANCE.names}.intersection(names)
    if clashing:
        raise Refused(
            f"column {min(clashing)!r} of ledger {log.name} has the name of a column that the publisher makes",
            hint="Name the columns to publish with option 'columns', without this column",
        )
    return names


def _frame(
    spark: SparkSession,
    options: Mapping[str, str],
    log: SealedLog,
    segment: PublishableSegment,
    shape: RowShape,
    file_bytes: int,
) -> DataFrame:
    """Return a segment as a DataFrame with the columns of `shape`, in partitions of about `file_bytes`."""
    wanted = _columns(_require_free_names(log, shape.rows.names))
    named = {name.lower() for name in options}
    reader = spark.read.format("ledger").options(**options).options(**wanted)
    if RESCUED in shape.schema.names:
        reader = reader.option("rescuedDataColumn", RESCUED)
    for option in ("minPartitionBytes", "targetPartitionBytes"):
        if option.lower() not in named:
            reader = reader.option(option, str(file_bytes))
    reader = reader.option("startingPosition", str(Position(segment.ledger_id, 0)))
    return _with_topic(reader.option("endingPosition", str(segment.last.next())).load(log.name), log.name)


def _with_topic(frame: DataFrame, name: str) -> DataFrame:
    """Return the frame with the topic of ledger `name` as a literal. A text that is read for each row costs more."""
    from pyspark.sql import functions as f

    return frame.withColumn(_TOPIC, f.lit(Topic.of(name).text))


def _columns(rows: Sequence[str]) -> dict[str, str]:
    """Return the options that select the columns to read.

    `__messageId` is left out, because it repeats the position. `__topic` is left out, because it is the same for all
    rows. A list cannot have a name with a comma, or with blanks at its ends. Then all columns are selected.
    """
    names = [*rows, *(name for name in METADATA.names if name in PUBLISHED_METADATA and name != _TOPIC)]
    if any("," in name or name != name.strip() for name in names):
        return {"includeMetadata": "true"}
    return {"columns": ",".join(names)}
