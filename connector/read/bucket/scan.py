"""Reads of one topic in a bucket, on the driver: the columns, the range and the tasks, and the planner of batch reads.

The page docs/concepts.md explains the words entry, segment, block and log.

Rules
- The listing of the bucket (its *catalogue*) and the headers of the entries (their *heads*) are read once and kept.
  Reason: an object never changes. A stream lists the bucket again when it has read all known objects.
- The catalogue and the columns that `load()` found are pickled with the source (`BucketTopic`). So the process that
  plans the read does not read them again.
- The entries of a topic have columns (`offload.bucket.topic_columns`), or they are messages. For messages, all heads
  are read before planning.
- Payload schemas come from option `payloadSchema`, else from the newest segment that was offloaded with schemas.
- A partitioned topic is read as its partitions. Each partition has its own range.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.options.bucket import BucketOptions
from pyspark_ledger.connector.options.options import LedgerOptions, require_ledger
from pyspark_ledger.connector.read.bucket.task import BucketObjects, BucketTask
from pyspark_ledger.connector.read.planner import BatchPlanner, Task
from pyspark_ledger.connector.read.task_split import part_bytes
from pyspark_ledger.connector.rows.shape import RowOptions, RowShape, row_shape
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.message.schema.documents import TopicSchemas, parse_schemas
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.rows.metadata_columns import PROVENANCE
from pyspark_ledger.offload.bucket.catalogue import Segment, TopicSegments
from pyspark_ledger.offload.bucket.entry_heads import EntryHeads
from pyspark_ledger.offload.bucket.fetch import read_heads
from pyspark_ledger.offload.bucket.heads_cache import HeadsCache
from pyspark_ledger.offload.bucket.histories import require_one_history
from pyspark_ledger.offload.bucket.listing import BucketListing
from pyspark_ledger.offload.bucket.topic_columns import topic_columns
from pyspark_ledger.offload.bucket.topic_log import BucketLog

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.ledger.objects.object_store import ObjectStore

_log = logging.getLogger(__name__)


_KNOWN_HEADS = HeadsCache()


@dataclass(frozen=True)
class BucketTopic:
    """Catalogue of a topic and its columns (None for messages), passed to the process that plans the read."""

    topics: list[TopicSegments]
    columns: pa.Schema | None


class BucketRead:
    """Read of a topic or its partitions, on the driver.

    `findings` are the catalogue and columns that `load()` found.
    """

    def __init__(
        self, options: LedgerOptions, user_schema: StructType | None = None, findings: BucketTopic | None = None
    ) -> None:
        self.options = options
        self.bucket: BucketOptions = require_bucket(options)
        self.name = require_ledger(options)
        self._user_schema = user_schema
        self._heads: dict[tuple[str, int], EntryHeads] = {}
        self._end_columns: dict[str, list[pa.Schema | None]] = {}
        self._topics: list[TopicSegments] | None = None
        self._joined = set[tuple[str, str]]()
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
    def topics(self) -> list[TopicSegments]:
        """Topic, or its partitions in order. Raises NotFound."""
        if self._topics is None:
            self._topics = self._find_topics()
        return self._topics

    def _find_topics(self) -> list[TopicSegments]:
        try:
            catalogue = self._listing.catalogue()
            topics = catalogue.find(self.name, self.bucket.records(), cluster=self.bucket.offload_cluster)
        except NotFound as nothing:
            if self.options.history is None:
                raise
            raise NotFound(
                f"{nothing.message}; the read needs an object of the topic to know its columns",
                hint="If all offloaded segments are published and deleted, read only the table, with format('delta'). "
                f"Else: {nothing.hint or 'name the topic as it is in the bucket'}",
            ) from nothing
        for fault in catalogue.topicless_faults:
            _log.warning("%s may be incomplete, because an object without a topic cannot be read: %s", self.name, fault)
        for topic in topics:
            require_one_history(self.store, topic, self._joined)
        return topics

    @property
    def logs(self) -> list[BucketLog]:
        """Logs of the topics. Logs of messages have the heads of all entries, unless option `offloadScan` is `none`."""
        if self._logs is None:
            scan = self.columns is None and self.bucket.offload_scan == "auto"
            self._logs = [BucketLog(topic, self._entry_heads(topic) if scan else {}) for topic in self.topics]
        return self._logs

    def refresh(self, *, for_columns: bool = False) -> None:
        """Forget the listing and, with `for_columns`, the topic's columns, so that later objects are found."""
        self._topics = self._logs = None
        if for_columns:
            self.__dict__.pop("columns", None)

    def with_options(self, options: LedgerOptions) -> BucketRead:
        """Return a read with other options that shares this read's listing, columns and entry heads."""
        read = BucketRead(options, findings=self.findings())
        read._heads, read._logs = self._heads, self.logs
        return read

    @cached_property
    def columns(self) -> pa.Schema | None:
        """Columns of the topic's entries; None for messages."""
        return topic_columns(self.store, self.topics, self._end_columns)

    def findings(self) -> BucketTopic:
        """Return the catalogue and columns, for the process that plans the read."""
        return BucketTopic(self.topics, self.columns)

    def shape(self) -> RowShape:
        options = self.options
        row_options = RowOptions(
            options.include_metadata, options.columns, options.rescued_data_column or "", options.payload_schema or ""
        )
        schemas = None if self.columns is not None or row_options.payload_schema else self._schemas()
        # A read of table and bucket does not return the columns of `PROVENANCE`, because a published table lacks them.
        more = PROVENANCE if options.history is None else None
        shape = row_shape(self.columns, schemas, row_options, self.name, more=more)
        return shape if self._user_schema is None else shape.for_schema(self._user_schema, self.name)

    def _schemas(self) -> TopicSchemas | None:
        """Return the payload schemas of the newest segment that was offloaded with schemas; None if there are none."""
        segments = [segment for topic in self.topics for segment in topic.segments]
        for segment in sorted(segments, key=lambda segment: segment.ledger_id, reverse=True):
            if segment.index.payload_schemas:
                return parse_schemas(segment.index.payload_schemas, f"the index of {segment.data_name}")
        return None

    def schema(self) -> StructType:
        return self.shape().spark_schema(self.name)

    def start_position(self, log: BucketLog) -> Position:
        if self.options.starting_timestamp is not None:
            return self.with_heads(log).find_time(self.options.starting_timestamp)
        position = self.options.starting_position or EARLIEST
        if position in (EARLIEST, LATEST):
            return log.start if position == EARLIEST else log.end
        return self._require_position(log, position, "startingPosition")

    def end_position(self, log: BucketLog) -> Position:
        if self.bucket.ending_timestamp is not None:
            return self.with_heads(log).find_time(self.bucket.ending_timestamp)
        position = self.options.ending_position or LATEST
        return log.end if position == LATEST else self._require_position(log, position, "endingPosition")

    def with_heads(self, log: BucketLog) -> BucketLog:
        """Return `log` after reading the heads of all its entries."""
        log.heads.update(self._entry_heads(log.topic))
        return log

    def tasks(self, log: BucketLog, range_: PositionRange) -> list[BucketTask]:
        """Return the tasks of a range. Raises DataLoss if entries are missing and `failOnDataLoss` is set."""
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

    def require_one_topic(self, position: Position, option: str) -> None:
        """Raise Refused if an option gives a position and the topic has several partitions."""
        if len(self.topics) > 1:
            raise Refused(
                f"option {option!r} is {position}, and {self.name} has {len(self.topics)} partitions here",
                hint="A position belongs to one partition: load this partition, or give a timestamp",
            )

    def _require_position(self, log: BucketLog, position: Position, option: str) -> Position:
        self.require_one_topic(position, option)
        return log.require_position(position, option)

    def _entry_heads(self, topic: TopicSegments) -> dict[int, EntryHeads]:
        missing = [segment for segment in topic.segments if (segment.data_name, segment.ledger_id) not in self._heads]
        if missing:
            self._heads.update(self._read_heads(topic, missing))
        return {segment.ledger_id: self._heads[segment.data_name, segment.ledger_id] for segment in topic.segments}

    def _read_heads(self, topic: TopicSegments, segments: list[Segment]) -> dict[tuple[str, int], EntryHeads]:
        """Return the heads of segments, from this process's cache or from their objects."""
        access = self.bucket.address, self.bucket.s3()
        keys = {segment.ledger_id: (*access, segment.identity) for segment in segments}
        heads = {ledger_id: found for ledger_id, key in keys.items() if (found := _KNOWN_HEADS.get(key)) is not None}
        missing = [segment for segment in segments if segment.ledger_id not in heads]
        if missing:
            _log.info("reading the entry heads of %d segments of %s", len(missing), topic.name)
            for ledger_id, found in read_heads(self.store, missing).items():
                heads[ledger_id] = found
                _KNOWN_HEADS.put(keys[ledger_id], found)
        return {(segment.data_name, segment.ledger_id): heads[segment.ledger_id] for segment in segments}


class BucketScan(BatchPlanner):
    """Plan of a batch read of a topic. `findings` are the catalogue and columns that `load()` found."""

    def __init__(
        self, options: LedgerOptions, user_schema: StructType | None = None, findings: BucketTopic | None = None
    ) -> None:
        self._read = BucketRead(options, user_schema, findings)

    def schema(self) -> StructType:
        return self._read.schema()

    def findings(self) -> BucketTopic:
        return self._read.findings()

    def tasks(self) -> list[Task]:
        read = self._read
        tasks: list[Task] = []
        for log in read.logs:
            start, end = read.start_position(log), read.end_position(log)
            if start > end:
                raise Refused(f"the read of {log.topic.name} begins at {start} and ends before it, at {end}")
            tasks += read.tasks(log, PositionRange(start, end))
        return tasks


def require_bucket(options: LedgerOptions) -> BucketOptions:
    """Return the bucket's options. Raises Refused if option `offload` is not set."""
    if options.bucket is None:
        raise Refused("no bucket is named", hint="Name it with option 'offload'")
    return options.bucket
