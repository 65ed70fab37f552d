"""Read-only store: it reads the files of a store without a broker, and changes nothing.

`ReadOnlyStore` has the methods of a broker's client, so that `ledger.api.store` can use it instead of a client. It
refuses calls that would change the store. It takes no lock and no lease, and does not raise the store's epoch, as a new
broker would. So it fences no broker, and a broker can serve the store at the same time.

Invariants
- No file in the directory is changed. In particular, no segment (a file of a ledger) is repaired, and no file is
  deleted.
- A reader gets only the acknowledged entries of the open segment, even if the broker was killed.
- Each call reads the last committed state of the metadata. If a broker changes the store during a call, the call is
  repeated.
- Exception: for a store in a bucket, all calls see the state at the time of the open. Reason: they read a local copy,
  the view (`ledger.bucket_store.view`), and no broker changes the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from pyspark_ledger.ledger.client.block_reader import FrameBlock
from pyspark_ledger.ledger.client.end_watch import EndWatch
from pyspark_ledger.ledger.client.substitute_client import Answers, SubstituteClient
from pyspark_ledger.ledger.clock import pause, system_clock_ms
from pyspark_ledger.ledger.cursor.acknowledgements import AcknowledgementTable, cursor_log_form
from pyspark_ledger.ledger.cursor.cursor_acknowledgements import CursorPlace
from pyspark_ledger.ledger.cursor.cursors import CursorTable
from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.context import LogContext
from pyspark_ledger.ledger.log.remaining import prefix_left, reading_left
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment, LogSegments
from pyspark_ledger.ledger.log.segments.segment_list import SegmentList
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.sync_pool import SyncPool
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.names import (
    canonical_name,
    nearest_ledger,
    partition_count,
    partition_names,
    short_name,
    without_partitions,
)
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import (
    AskEnd,
    AskSchemas,
    DescribeLedger,
    GetSchema,
    LedgerDescription,
    LedgerNames,
    ListLedgers,
    SchemaVersion,
    SegmentDescription,
)
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, DescribeCursor
from pyspark_ledger.ledger.protocol.ends import KnownEnd, MovedEnd, MovedEnds, WaitEnds, WireError
from pyspark_ledger.ledger.protocol.ledgers import AskPartitions, PartitionCount
from pyspark_ledger.ledger.protocol.reads import (
    AskLimitedRanges,
    AskLogStatuses,
    LogStatus,
    OpenedRead,
    OpenRead,
    PositionReply,
    ReadProgress,
    ReadRequest,
    SeekTime,
    SplitPart,
    SplitParts,
    SplitRanges,
    SplitRequest,
    limited,
)
from pyspark_ledger.ledger.protocol.request import Reply, Request
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.segment.recovery import recover_segment
from pyspark_ledger.ledger.segment.writer import LOCAL_DISK, SegmentWriter, data_path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.batch_status import BatchStatus
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader, NoOffloader
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.transport.mapped_block import read_block

_ATTEMPTS = 3
_POLL_MS = 1_000  # between two looks for new entries, which a broker of this store may append
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadOnlyLog:
    """Managed ledger of a read-only store. `trimmed` returns the segments that retention deleted."""

    name: str
    listed: SegmentList
    snapshot: LogSnapshot
    trimmed: Callable[[], list[SegmentDescription]]

    def status(self, reading: ReadProgress, skipped: PositionSet | None = None) -> LogStatus:
        return reading_left(self.snapshot, reading, self.trimmed, skipped)

    def prefix(
        self, range_: PositionRange, rows: int, size_bytes: int, skipped: PositionSet | None = None
    ) -> SplitPart:
        if skipped:
            return prefix_left(self.snapshot, range_, skipped, rows, size_bytes)
        return self.snapshot.prefix(range_, rows, size_bytes)

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        return self.snapshot.split(range_, target_bytes, max_parts)

    def require_incarnation(self, wanted: str) -> None:
        """Raise DataLoss if the ledger was deleted and created again."""
        if wanted and wanted != self.listed.incarnation:
            raise DataLoss(
                f"ledger {self.name!r} has incarnation {self.listed.incarnation}, the request names {wanted}",
                hint="The ledger was deleted and created again: read it again",
            )


class ReadOnlyStore(SubstituteClient):
    """Substitute for a client, with the calls of the protocol that change nothing."""

    refused = "the store at {address} is opened for reading only"
    hint = "Use connect() to change the store"

    def __init__(self, path: Path, *, built: bool = False, offloader: LedgerOffloader | None = None) -> None:
        """`built`: the directory is the local copy (the view) of a bucket. `offloader` reads the uploaded segments."""
        reader = offloader or NoOffloader()
        self._built: dict[str, ReadOnlyLog] | None = {} if built else None
        self.watch = EndWatch(self.ask)
        self._directory = path / "ledgers"
        self._metadata = Metadata(MetadataView(path / "metadata.sqlite", TABLES), system_clock_ms)
        self._context = LogContext(
            self._metadata.store_record().store_id,
            partial(self._metadata.require_epoch, -1),
            self._directory,
            self._metadata,
            Settings(),
            system_clock_ms,
            ThreadPoolExecutor(1, thread_name_prefix="none"),
            SyncPool(lambda: None),
            lambda name: None,  # noqa: ARG005 — a read-only store seals no segment
            lambda name, due_ms: None,  # noqa: ARG005 — a read-only store does no background work
            lambda ledger_ids: None,  # noqa: ARG005 — a read-only store deletes no segment
            offloader=lambda: reader,
        )
        store_id, settings = self._context.store_id, self._context.settings
        form = cursor_log_form(settings)
        place = CursorPlace(
            self._directory,
            store_id,
            form,
            0,
            system_clock_ms,
            lambda: -1,
            durability=_BucketView() if built else LOCAL_DISK,
            read_only=True,
        )
        acknowledgements = AcknowledgementTable(self._metadata, place, settings)
        self.cursors = CursorTable(
            self._metadata, system_clock_ms, lambda name: self.ledger(name).snapshot, acknowledgements
        )
        batch_status = BatchStatus(self, system_clock_ms)
        answers: Answers = {
            ListLedgers: lambda _: LedgerNames(without_partitions(self._metadata.names())),
            AskPartitions: self._partitions,
            DescribeLedger: self._describe,
            AskEnd: self._end,
            WaitEnds: self._wait,
            OpenRead: self._open_read,
            SplitRequest: self._split,
            SeekTime: self._seek,
            GetSchema: self.get_schema,
            DescribeCursor: self.cursors.describe,
            AskAckedRanges: self.cursors.acked_ranges,
            AskLogStatuses: batch_status.statuses,
            AskLimitedRanges: batch_status.limit,
            SplitRanges: batch_status.split,
            AskSchemas: batch_status.schemas,
        }
        super().__init__(str(path), answers)

    def ask(self, request: Request[Reply], **_: object) -> Reply:
        ask = super().ask
        return _retried(lambda: ask(request))

    def open_read(self, request: OpenRead) -> OpenedRead:
        """Return the range and the schema of a read, and the acknowledged rows, which the read leaves out."""
        return self.ask(request)

    def read_blocks(self, request: ReadRequest, **_: object) -> Iterator[FrameBlock]:
        """Yield the blocks of a range. The bytes of local files are read without a copy."""
        for block in self.blocks(request):
            self._require_open()
            yield FrameBlock(block.ledger_id, block.first_entry, block.entries, read_block(block), True)

    def read_ranges(
        self, requests: Sequence[ReadRequest], **_: object
    ) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
        """Yield each request with the blocks of its range."""
        for request in requests:
            yield request, self.read_blocks(request)

    def blocks(self, request: ReadRequest) -> list[SegmentBlock]:
        """Return the places of a range in files. Raises DataLoss if the ledger was deleted and created again."""
        log = self.ledger(request.name)
        log.require_incarnation(request.incarnation)
        return _retried(lambda: log.snapshot.blocks(request.range, request.max_block_bytes))

    def logs(self, name: str) -> list[str]:
        """Return the logs of a ledger: its partitions, or the ledger itself. Returns none for a missing ledger."""
        name = canonical_name(name)
        if not self._metadata.exists(name):
            return []
        count = self._partitions(AskPartitions(name)).partitions
        return partition_names(name, count) if count else [name]

    def ledger(self, name: str) -> ReadOnlyLog:
        """Return a managed ledger. Raises NotFound with the name of a similar ledger."""
        name = canonical_name(name)
        if self._built is None:
            return self._read_log(name)
        if name not in self._built:
            self._built[name] = self._read_log(name)
        return self._built[name]

    def _read_log(self, name: str) -> ReadOnlyLog:
        self._require_exists(name)
        listed = SegmentList(self._metadata.ledger(name), self._context)
        snapshot = listed.snapshot(None)
        left_open = [segment for row in listed.left_open if (segment := self._acknowledged(row)) is not None]
        segments = LogSegments.of((*snapshot.segments, *left_open))
        snapshot = replace(snapshot, segments=segments)
        return ReadOnlyLog(name, listed, snapshot, lambda: self._metadata.segments.trimmed(name))

    def _require_exists(self, name: str) -> str:
        """Return the full name of an existing ledger."""
        name = canonical_name(name)
        if not self._metadata.exists(name):
            near = nearest_ledger(name, self._metadata.names())
            hint = f"Did you mean {near!r}?" if near else ""
            raise NotFound(f"there is no ledger {short_name(name)!r} in the store at {self.address}", hint=hint)
        return name

    def _acknowledged(self, kept: SegmentRecord) -> LogSegment | None:
        """Return the open segment up to its acknowledged end.

        This end is in the sidecar, a small file beside the segment. Without a sidecar, return the segment up to the
        last undamaged entry. Return None if the segment has no file: in a view, a segment without entries has no file.
        """
        ledger_id = kept.ledger_id
        path = data_path(self._directory, ledger_id)
        if self._built is not None and not path.exists():
            return None
        found = recover_segment(
            path,
            ledger_id,
            store_id=self._context.store_id,
            block_bytes=kept.block_bytes,
            first_row=kept.first_row,
            describe=entry_traits,
            built=self._built is not None,
        )
        entries = found.entries if found.acknowledged is None else found.acknowledged
        index = EntryIndex.of_rows(ledger_id, kept.first_row, found.index.rows()[:entries])
        return LogSegment(
            ledger_id,
            index.count,
            kept.first_row,
            index.row_end - kept.first_row,
            int(index.lengths.sum()),
            0,
            path,
            lambda: index,
        )

    def _partitions(self, request: AskPartitions) -> PartitionCount:
        name = canonical_name(request.name)
        return PartitionCount(
            partition_count(self.ledger(name).listed.properties) if self._metadata.exists(name) else 0
        )

    def _describe(self, request: DescribeLedger) -> LedgerDescription:
        log = self.ledger(request.name)
        listed = log.listed
        return msgspec.structs.replace(
            log.snapshot.description(listed.properties, listed.terminated),
            cursors=self._metadata.cursors.names(listed.name),
            schema_version=self._metadata.schema(listed.name, -1)[0],
        )

    def _end(self, request: AskEnd) -> msgspec.Struct:
        return self.ledger(request.name).snapshot.end_since(request.since)

    def _wait(self, request: WaitEnds) -> MovedEnds:
        """Return the ledgers that have moved. Look once more after `_POLL_MS`, because no broker reports changes."""
        if request.wait_ms and self._built is not None:
            raise Refused(
                f"the copy of the bucket in {self.address} never has new rows, a loop waits for them",
                hint="Pass wait=0, so that the loop ends at the end of the ledger",
            )
        moved = self._moved(request.known)
        if request.wait_ms and not moved:
            pause(min(request.wait_ms, _POLL_MS))
            moved = self._moved(request.known)
        return MovedEnds(moved)

    def _moved(self, ledgers: Sequence[KnownEnd]) -> list[MovedEnd]:
        return [moved for known in ledgers if (moved := self._state(known)) is not None]

    def _state(self, known: KnownEnd) -> MovedEnd | None:
        try:
            if known.partitions:
                count = self._partitions(AskPartitions(known.name)).partitions
                return MovedEnd(known.name, partitions=count) if count != known.partitions else None
            log = self.ledger(known.name)
        except NotFound as error:
            return MovedEnd(known.name, error=WireError.of(error))
        return known.moved(log.listed.incarnation, log.snapshot.end, terminated=log.listed.terminated is not None)

    def _open_read(self, request: OpenRead) -> OpenedRead:
        log = self.ledger(request.name)
        log.require_incarnation(request.incarnation)
        snapshot = log.snapshot
        range_, skip = self.cursors.left(snapshot, request)
        opened = OpenedRead(range_, log.listed.incarnation, *self._metadata.schema(log.name, -1), skip)
        if request.limits is None:
            return opened
        return limited(opened, snapshot.limited(range_, request.limits), snapshot.end, terminated=snapshot.terminated)

    def _split(self, request: SplitRequest) -> SplitParts:
        return SplitParts(self.ledger(request.name).split(request.range, request.target_bytes, request.max_parts))

    def _seek(self, request: SeekTime) -> PositionReply:
        found: Position = self.ledger(request.name).snapshot.seek_time(request.timestamp_ms)
        return PositionReply(found)

    def get_schema(self, request: GetSchema) -> SchemaVersion:
        """Return the registered schema of a version, or the newest. Raises NotFound for a missing ledger."""
        name = self._require_exists(request.name)
        return SchemaVersion(name, *self._metadata.schema(name, request.version))


class _BucketView:
    """Durability of a bucket's local copy. Nobody writes to its files."""

    in_bucket = True

    def sync(self, writer: SegmentWriter) -> None:
        raise Refused(f"{writer} belongs to a store that is opened for reading only")


def _retried(query: Callable[[], T]) -> T:
    """Call the function. Repeat the call after an error.

    Reason: a broker may have sealed or deleted a segment meanwhile.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return query()
        except (Refused, NotFound):
            raise
        except LedgerError:
            continue
    return query()
