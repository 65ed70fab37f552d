"""Reads of a bucket's topic on the driver: its columns, its range, its tasks; and the bounded read.

Rules
- The catalogue and the heads of entries are read once and kept, because objects do not change. A stream looks for new
  objects when it has reached the end of the known ones.
- The findings of `load()` travel with the source (`BucketTopic`). The process that plans the read does not ask the
  bucket for them again.
- A topic has columns if its entries have columns. They are those of the entries at the beginning and at the end of its
  segments. Otherwise its entries are messages, and their heads are read before anything is planned.
- An entry of columns begins with their schema, so the first bytes of a block are enough. A block is read further only
  if it begins with more of something else. The task that reads the rows verifies the checksum.
- Payload schemas are those of option `payloadSchema`, else those that the newest ledger was offloaded with.
- A partitioned topic is read as its partitions, each with a range of its own.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.options.bucket import BucketOptions
from pyspark_ledger.connector.options.options import LedgerOptions, require_ledger
from pyspark_ledger.connector.read.bucket.task import BucketObjects, BucketTask
from pyspark_ledger.connector.read.planner import BatchPlanner, Task
from pyspark_ledger.connector.read.task_split import part_bytes
from pyspark_ledger.connector.rows.metadata_columns import PROVENANCE
from pyspark_ledger.connector.rows.shape import RowOptions, RowShape, row_shape
from pyspark_ledger.connector.schema import METADATA
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.message.arrow_payload import decode_rows, leading_schema
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_arrow, is_marker, parse_entry, parse_head
from pyspark_ledger.ledger.message.schema.documents import TopicSchemas, parse_schemas
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.offload.bucket.catalogue import Segment, TopicLedgers
from pyspark_ledger.offload.bucket.entry_heads import EntryHeads
from pyspark_ledger.offload.bucket.fetch import read_heads
from pyspark_ledger.offload.bucket.frames import ByteRange, stream_frames
from pyspark_ledger.offload.bucket.listing import BucketListing
from pyspark_ledger.offload.bucket.topic_log import BucketLog, segment_ranges
from pyspark_ledger.offload.storage.prefetch import ObjectRange, RangePrefetcher

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.offload.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)


_PEEK_BYTES = 256 * 1024


def first_entry_columns(store: ObjectStore, span: ByteRange) -> pa.Schema | None:
    """Return the columns of a block's first entry with rows: empty for a message, None if there are only markers."""
    where = f"{store.address}/{span.data_name}"
    begin = memoryview(store.get_range(span.data_name, span.offset, min(_PEEK_BYTES, span.size_bytes))).cast("B")
    head = parse_head(begin[HEADER_BYTES + FRAME_BYTES :], f"entry {span.ledger_id}:{span.at_entry} in {where}")
    if head is not None and is_arrow(head.metadata):
        columns = leading_schema(head.payload)
        if columns is not None:
            return _without_metadata(columns)
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset)]
    with RangePrefetcher(store, ranges, piece_bytes=_PEEK_BYTES, in_flight=2) as ahead:
        for frame in stream_frames(ahead.pieces(0), span, where):
            place = f"entry {span.ledger_id}:{frame.entry_id} in {where}"
            entry = parse_entry(frame.entry, place, require_checksum=False)
            if not is_marker(entry.metadata):
                return _schema_of(entry, place)
    return None


def _schema_of(entry: ParsedEntry, where: str) -> pa.Schema:
    if not is_arrow(entry.metadata):
        return pa.schema([])
    return _without_metadata(decode_rows(entry.payload, where)[0].schema)


def _without_metadata(columns: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in columns if field.name not in METADATA.names])


_PEEKS_AT_ONCE = 2


@dataclass(frozen=True)
class BucketTopic:
    """Findings on a topic when its columns were asked for: its ledgers, and its columns (None for messages)."""

    topics: list[TopicLedgers]
    columns: pa.Schema | None


class BucketRead:
    """One read of a topic, or of its partitions, on the driver. `seen` has the findings of an earlier read."""

    def __init__(
        self, options: LedgerOptions, given: StructType | None = None, findings: BucketTopic | None = None
    ) -> None:
        self.options = options
        self.bucket: BucketOptions = require_bucket(options)
        self.name = require_ledger(options)
        self._given = given
        self._heads: dict[tuple[str, int], EntryHeads] = {}
        self._end_columns: dict[str, list[pa.Schema | None]] = {}
        self._topics: list[TopicLedgers] | None = None
        if findings is not None:
            self._topics, self.columns = findings.topics, findings.columns
        self._logs: list[BucketLog] | None = None

    @cached_property
    def store(self) -> ObjectStore:
        return self.bucket.store()

    @cached_property
    def _listing(self) -> BucketListing:
        return BucketListing(self.store)

    @property
    def topics(self) -> list[TopicLedgers]:
        """The topic, or its partitions in order; raises NotFound."""
        if self._topics is None:
            self._topics = self._found()
        return self._topics

    def _found(self) -> list[TopicLedgers]:
        try:
            catalogue = self._listing.catalogue()
            found = catalogue.find(self.name, self.bucket.records(), cluster=self.bucket.offload_cluster)
        except NotFound as nothing:
            if self.options.history is None:
                raise
            raise NotFound(
                f"{nothing.message}; what its rows are only objects say",
                hint="Read the table alone, by format('delta'), where all that was offloaded is published and gone; "
                f"else: {nothing.hint or 'name the topic as it is in the bucket'}",
            ) from nothing
        for stray in catalogue.topicless_faults:
            _log.warning("%s may lack what cannot be read and tells no topic: %s", self.name, stray)
        return found

    @property
    def logs(self) -> list[BucketLog]:
        """The topics as logs; messages with the heads of all their entries, unless the user said not to look."""
        if self._logs is None:
            scan = self.columns is None and self.bucket.offload_scan == "auto"
            self._logs = [BucketLog(topic, self._entry_heads(topic) if scan else {}) for topic in self.topics]
        return self._logs

    def refresh(self, *, for_columns: bool = False) -> None:
        """Forget the listing and, with `for_columns`, the columns. What was read of objects is kept."""
        self._topics = self._logs = None
        if for_columns:
            self.__dict__.pop("columns", None)

    def with_options(self, options: LedgerOptions) -> BucketRead:
        """Return this read with other options; the findings so far are kept."""
        same = BucketRead(options, findings=self.findings())
        same._heads, same._logs = self._heads, self.logs
        return same

    @cached_property
    def columns(self) -> pa.Schema | None:
        """The columns of the topic's entries, None for one of messages."""
        found: dict[str, pa.Field] = {}
        with ThreadPoolExecutor(_PEEKS_AT_ONCE, thread_name_prefix="peek") as pool:
            for topic in self.topics:
                for segment in topic.segments:
                    if segment.data_name not in self._end_columns:
                        ends = pool.map(partial(first_entry_columns, self.store), _ends(segment))
                        self._end_columns[segment.data_name] = list(ends)
                    for columns in self._end_columns[segment.data_name]:
                        if columns is None:
                            continue
                        if not len(columns) and not found:
                            return None
                        _join(found, columns, topic.name)
        return pa.schema(list(found.values())) if found else None

    def findings(self) -> BucketTopic:
        """Return the findings for the process that plans the read."""
        return BucketTopic(self.topics, self.columns)

    def shape(self) -> RowShape:
        options = self.options
        row_options = RowOptions(
            options.include_metadata, options.columns, options.rescued_data_column or "", options.payload_schema or ""
        )
        schemas = None if self.columns is not None or row_options.payload_schema else self._schemas()
        # Who wrote a message is not published: a table behind which a bucket is read has none of it.
        more = PROVENANCE if options.history is None else None
        shape = row_shape(self.columns, schemas, row_options, self.name, more=more)
        return shape if self._given is None else shape.as_given(self._given, self.name)

    def _schemas(self) -> TopicSchemas | None:
        """The payload schemas that the newest ledger with any was offloaded with."""
        segments = [segment for topic in self.topics for segment in topic.segments]
        for segment in sorted(segments, key=lambda one: one.ledger_id, reverse=True):
            if segment.index.payload_schemas:
                return parse_schemas(segment.index.payload_schemas, f"the index of {segment.data_name}")
        return None

    def schema(self) -> StructType:
        return self.shape().spark_schema(self.name)

    def start_position(self, log: BucketLog) -> Position:
        if self.options.starting_timestamp is not None:
            return self.with_heads(log).find_time(self.options.starting_timestamp)
        wanted = self.options.starting_position or EARLIEST
        if wanted in (EARLIEST, LATEST):
            return log.start if wanted == EARLIEST else log.end
        return self._placed(log, wanted, "startingPosition")

    def end_position(self, log: BucketLog) -> Position:
        if self.bucket.ending_timestamp is not None:
            return self.with_heads(log).find_time(self.bucket.ending_timestamp)
        wanted = self.options.ending_position or LATEST
        return log.end if wanted == LATEST else self._placed(log, wanted, "endingPosition")

    def with_heads(self, log: BucketLog) -> BucketLog:
        """The log with all its heads."""
        log.heads.update(self._entry_heads(log.topic))
        return log

    def tasks(self, log: BucketLog, range_: PositionRange) -> list[BucketTask]:
        """Return the tasks of a range; DataLoss if entries are missing and `failOnDataLoss` is set."""
        if not range_:
            return []
        skip = not self.bucket.fail_on_data_loss
        if not skip:
            log.require_whole(range_)
        for gap in log.gaps_in(range_):
            _log.warning("%s: %s is not in the bucket and is left out", log.topic.name, gap)
        source = BucketObjects(self.bucket.address, self.bucket.s3(), self.shape(), skip, self.bucket.crypto_keys)
        target = part_bytes(log.size_of(range_), self.options.min_partition_bytes, self.options.target_partition_bytes)
        return [BucketTask(source, log.topic.name, part) for part in log.parts(range_, target)]

    def require_one_topic(self, wanted: Position, option: str) -> None:
        """Refuse the position of an option where there are partitions."""
        if len(self.topics) > 1:
            raise Refused(
                f"option {option!r} is {wanted}, and {self.name} has {len(self.topics)} partitions here",
                hint="A position is of one partition: load that one, or give a timestamp",
            )

    def _placed(self, log: BucketLog, wanted: Position, option: str) -> Position:
        self.require_one_topic(wanted, option)
        return log.require_position(wanted, option)

    def _entry_heads(self, topic: TopicLedgers) -> dict[int, EntryHeads]:
        missing = [one for one in topic.segments if (one.data_name, one.ledger_id) not in self._heads]
        if missing:
            _log.info("looking through %d ledgers of %s", len(missing), topic.name)
            found = read_heads(self.store, missing)
            self._heads.update({(one.data_name, one.ledger_id): found[one.ledger_id] for one in missing})
        return {one.ledger_id: self._heads[one.data_name, one.ledger_id] for one in topic.segments}


class BucketScan(BatchPlanner):
    """Plan of a bounded read of a topic. `seen` has the findings of the process that asked for the columns."""

    def __init__(
        self, options: LedgerOptions, given: StructType | None = None, findings: BucketTopic | None = None
    ) -> None:
        self._read = BucketRead(options, given, findings)

    def schema(self) -> StructType:
        return self._read.schema()

    def findings(self) -> BucketTopic:
        return self._read.findings()

    def tasks(self) -> list[Task]:
        read = self._read
        found: list[Task] = []
        for log in read.logs:
            start, end = read.start_position(log), read.end_position(log)
            if start > end:
                raise Refused(f"the read of {log.topic.name} begins at {start} and ends before it, at {end}")
            found += read.tasks(log, PositionRange(start, end))
        return found


def require_bucket(options: LedgerOptions) -> BucketOptions:
    """The options of the bucket; they are there whenever one is read."""
    if options.bucket is None:
        raise Refused("no bucket is named", hint="Name it by option 'offload'")
    return options.bucket


def _ends(segment: Segment) -> list[ByteRange]:
    spans = segment_ranges(segment)
    return list({span.offset: span for span in (*spans[:1], *spans[-1:])}.values())


def _join(found: dict[str, pa.Field], columns: pa.Schema, topic: str) -> None:
    for field in columns:
        known = found.setdefault(field.name, field)
        if known.type != field.type:
            raise Corrupt(f"column {field.name!r} of {topic} is {known.type} in one entry and {field.type} in another")
