"""View of the topics in a bucket that Pulsar, or `ledger offload`, wrote: reads in Python without a broker.

`TopicsView` has those methods of a broker's client that a read of `ledger.api` uses.

Rules
- The view has the segments that were in the bucket when it was opened. It changes nothing.
- The name of a topic in any of Pulsar's spellings names a ledger. A partitioned topic is a partitioned ledger.
- The rows of messages are what a consumer of Pulsar would get: no entry of an aborted transaction, no chunk of an
  incomplete message. For this, the first read of a topic of messages reads the heads of all its entries.
- A range with a missing segment raises DataLoss.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from pyspark_ledger.ledger.client.read_client import ParsedBlock
from pyspark_ledger.ledger.client.substitute_client import Answers, SubstituteClient
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.names import partition_of
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd, GetSchema, LedgerEnd, LedgerNames, ListLedgers, SchemaVersion
from pyspark_ledger.ledger.protocol.ledgers import AskPartitions, PartitionCount
from pyspark_ledger.ledger.protocol.reads import (
    AskLogStatuses,
    LogStatus,
    LogStatuses,
    OpenedRead,
    OpenRead,
    PositionReply,
    ReadProgress,
    ReadRequest,
    SeekTime,
)
from pyspark_ledger.offload.bucket.catalogue import Catalogue, TopicSegments
from pyspark_ledger.offload.bucket.fetch import read_heads, read_part
from pyspark_ledger.offload.bucket.histories import require_one_history
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_columns import topic_columns
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from pyspark_ledger.offload.bucket.topic_name import spelled

_PART_BYTES = 4 * 1024 * 1024


class TopicsView(SubstituteClient):
    """Topics of one bucket, with the methods of a client that change nothing."""

    refused = "{address} has offloaded topics and no store"
    hint = "Read the rows of its topics, with read(), batches() or scan()"

    def __init__(self, store: ObjectStore) -> None:
        """List the bucket. Raises NotFound if it has no offloaded topic."""
        self._store = store
        self._catalogue: Catalogue = read_catalogue(store)
        self._joined = set[tuple[str, str]]()
        self._logs: dict[str, BucketLog] = {}
        self._schemas: dict[str, SchemaVersion] = {}
        answers: Answers = {
            ListLedgers: lambda _: LedgerNames(self._names),
            AskPartitions: self._partitions,
            AskEnd: self._end,
            AskLogStatuses: self._statuses,
            GetSchema: self._schema,
            OpenRead: self.open_read,
            SeekTime: self._seek,
        }
        super().__init__(store.address, answers)

    def open_read(self, request: OpenRead) -> OpenedRead:
        """Return the range and the columns of a read. Raises Refused for a read of a loop, which may wait for rows."""
        if request.limits is not None:
            raise Refused(
                f"a loop over {request.name} was started, but {self.address} has offloaded topics, which do not grow",
                hint=self.hint,
            )
        log, schema = self._log(request.name), self._schema(GetSchema(request.name))
        end = log.end if request.end is None else min(request.end, log.end)
        start = log.start if request.start == EARLIEST else log.require_position(min(request.start, end), "start")
        return OpenedRead(PositionRange(start, max(start, end)), log.incarnation, schema.version, schema.arrow_schema)

    def read_blocks(self, request: ReadRequest, **_: object) -> Iterator[ParsedBlock]:
        """Yield the entries of a range, in parts of some MiB. Raises DataLoss for a missing segment."""
        log = self._log(request.name)
        log.require_whole(request.range)
        for part in log.parts(request.range, _PART_BYTES):
            self._require_open()
            yield ParsedBlock(read_part(self._store, part))

    def retire(self, handle: str) -> None:
        super().retire(handle)
        self._store.close()

    @cached_property
    def _names(self) -> list[str]:
        topics = {spelled(attempt.topic) for attempt in self._catalogue.attempts if attempt.topic}
        return sorted({part[0] if (part := partition_of(topic)) else topic for topic in topics})

    def _topics(self, name: str) -> list[TopicSegments]:
        topics = self._catalogue.find(name)
        for topic in topics:
            require_one_history(self._store, topic, self._joined)
        return topics

    def _partitions(self, request: AskPartitions) -> PartitionCount:
        try:
            names = [topic.name for topic in self._topics(request.name)]
        except NotFound:
            return PartitionCount(0)
        parts = [part for name in names if (part := partition_of(name)) and request.name != name]
        return PartitionCount(max((number + 1 for _, number in parts), default=0))

    def _log(self, name: str) -> BucketLog:
        """Return the log of one topic. A log of messages has the heads of all its entries."""
        if name not in self._logs:
            (topic,) = self._topics(name)
            log = BucketLog(topic)
            self._logs[name] = log if self._schema(GetSchema(name)).version >= 0 else self._scanned(log)
        return self._logs[name]

    def _scanned(self, log: BucketLog) -> BucketLog:
        return log if log.scanned else BucketLog(log.topic, read_heads(self._store, log.topic.segments))

    def _schema(self, request: GetSchema) -> SchemaVersion:
        name = request.name
        if name not in self._schemas:
            columns = topic_columns(self._store, self._topics(name), {})
            found = SchemaVersion(name, -1) if columns is None else SchemaVersion(name, 0, schema_bytes(columns))
            self._schemas[name] = found
        return self._schemas[name]

    def _end(self, request: AskEnd) -> LedgerEnd:
        log = self._log(request.name)
        return LedgerEnd(request.name, log.incarnation, log.start, log.end)

    def _at_time(self, name: str, time_ms: int) -> Position:
        self._logs[name] = self._scanned(self._log(name))
        return self._logs[name].find_time(time_ms)

    def _seek(self, request: SeekTime) -> PositionReply:
        return PositionReply(self._at_time(request.name, request.timestamp_ms))

    def _statuses(self, request: AskLogStatuses) -> LogStatuses:
        logs = [
            self._status(topic.name, request.readings.get(name, request.otherwise))
            for name in request.names
            for topic in self._topics(name)
        ]
        return LogStatuses(system_clock_ms(), logs)

    def _status(self, name: str, reading: ReadProgress) -> LogStatus:
        log = self._log(name)
        begin = log.start if reading.from_ms is None else self._at_time(name, reading.from_ms)
        stop = log.end if reading.until_ms is None else self._at_time(name, reading.until_ms)
        stop = min(stop, LATEST if reading.until is None else reading.until)
        return LogStatus(name, log.incarnation, log.start, log.end, begin, stop)
