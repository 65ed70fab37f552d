"""Read-only store: it reads the files of a store without a broker, and changes nothing.

`ledger.api.store` uses the class instead of a client. It refuses calls that would change the store. It takes no lock
and no lease, and it does not raise the epoch. A broker can serve the store at the same time.

Invariants
- No file in the directory is changed. In particular, no segment is repaired, and no file is deleted.
- Of the open segment, also of a killed broker, a reader gets only the acknowledged entries.
- Each call reads the last committed state of the metadata. If a broker changes the store during a call, the call is
  repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pyspark_ledger.ledger.client.block_reader import FrameBlock
from pyspark_ledger.ledger.client.kept_producer import KeptProducers
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.cursor.acknowledgements import AcknowledgementTable, cursor_log_form
from pyspark_ledger.ledger.cursor.cursor_acknowledgements import CursorPlace
from pyspark_ledger.ledger.cursor.cursors import CursorTable
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.log_segments import LogSegment, LogSegments
from pyspark_ledger.ledger.log.queries import log_description, log_end
from pyspark_ledger.ledger.log.segment_list import LogContext, SegmentList
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.sync_pool import SyncPool
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.names import canonical_name, nearest_ledger, partition_count, short_name, without_partitions
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import (
    AskEnd,
    DescribeLedger,
    Empty,
    GetSchema,
    LedgerDescription,
    LedgerNames,
    NameLedger,
    SchemaVersion,
)
from pyspark_ledger.ledger.protocol.ledgers import PartitionCount
from pyspark_ledger.ledger.protocol.reads import (
    OpenedRead,
    OpenRead,
    PositionReply,
    ReadRequest,
    SeekTime,
    SplitParts,
    SplitRequest,
)
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.recovery import recover_segment
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.transport.mapped_block import read_block

_ATTEMPTS = 3
T = TypeVar("T")


class ReadOnlyStore:
    """Substitute for a client, with the calls of the protocol that change nothing."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.kept = KeptProducers()  # always empty, because calls that need a producer are refused
        self._directory = path / "ledgers"
        self._metadata = Metadata(MetadataView(path / "metadata.sqlite", TABLES), system_clock_ms)
        self._context = LogContext(
            self._metadata.store_record().store_id,
            -1,
            self._directory,
            self._metadata,
            Settings(),
            system_clock_ms,
            ThreadPoolExecutor(1, thread_name_prefix="none"),
            SyncPool(1, lambda: None),
            lambda name: None,  # noqa: ARG005 — a read-only store seals no segment
            lambda ledger_ids: None,  # noqa: ARG005 — a read-only store deletes no segment
        )
        store_id, settings = self._context.store_id, self._context.settings
        form = cursor_log_form(settings)
        place = CursorPlace(self._directory, store_id, form, 0, system_clock_ms, lambda: -1, read_only=True)
        held = AcknowledgementTable(self._metadata, place, settings)
        self._cursors = CursorTable(self._metadata, system_clock_ms, lambda name: self._list(name)[1], held)
        self._answers: dict[str, Callable[[Any], msgspec.Struct]] = {
            "list": lambda _: LedgerNames(without_partitions(self._metadata.names())),
            "partitions": self._partitions,
            "describe": self._describe,
            "end": self._end,
            "read.open": self._open_read,
            "split": self._split,
            "seek": self._seek,
            "schema.get": self._schema,
            "cursor.describe": self._cursors.describe,
            "cursor.holes": self._cursors.acked_ranges,
        }

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self.address!r})"

    def call(self, action: str, request: msgspec.Struct, **_: object) -> Any:
        """Return the reply to a call. Raises Refused for a call that would change the store."""
        answer = self._answers.get(action)
        if answer is None:
            raise Refused(
                f"the store at {self.address} is opened for reading only, {action!r} was called",
                hint="Use connect() to change the store",
            )
        return _retried(lambda: answer(request))

    def names(self) -> list[str]:
        """Return the canonical names of all ledgers."""
        names: list[str] = self.call("list", Empty()).names
        return names

    def describe(self, name: str) -> LedgerDescription:
        """Return the description of a ledger."""
        described: LedgerDescription = self.call("describe", DescribeLedger(name))
        return described

    def open_read(self, request: OpenRead) -> OpenedRead:
        """Return the range, the schema and the skipped positions of a read."""
        opened: OpenedRead = self.call("read.open", request)
        return opened

    def read_blocks(self, request: ReadRequest, **_: object) -> Iterator[FrameBlock]:
        """Yield the blocks of a range. Local files are mapped."""
        snapshot = self._list(request.name)[1]
        for block in _retried(lambda: snapshot.blocks(request.range, request.max_block_bytes)):
            yield FrameBlock(block.ledger_id, block.first_entry, block.entries, read_block(block), True)

    def _list(self, name: str) -> tuple[SegmentList, LogSnapshot]:
        name = canonical_name(name)
        if not self._metadata.exists(name):
            near = nearest_ledger(name, self._metadata.names())
            hint = f"Did you mean {near!r}?" if near else ""
            raise NotFound(f"there is no ledger {short_name(name)!r} in the store at {self.address}", hint=hint)
        listed = SegmentList(self._metadata.ledger(name), self._context)
        snapshot = listed.snapshot(None)
        segments = (*snapshot.segments, *map(self._acknowledged, listed.left_open))
        return listed, LogSnapshot(name, LogSegments.of(segments), snapshot.trimmed, snapshot.terminated)

    def _acknowledged(self, kept: SegmentRecord) -> LogSegment:
        """Return the open segment up to its acknowledged end, which its sidecar (a small file beside it) has.

        Without a sidecar, return the segment up to the last undamaged entry.
        """
        ledger_id = kept.ledger_id
        path = data_path(self._directory, ledger_id)
        found = recover_segment(
            path,
            ledger_id,
            store_id=self._context.store_id,
            block_bytes=kept.block_bytes,
            first_row=kept.first_row,
            describe=entry_traits,
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

    def _partitions(self, request: NameLedger) -> PartitionCount:
        name = canonical_name(request.name)
        return PartitionCount(partition_count(self._list(name)[0].properties) if self._metadata.exists(name) else 0)

    def _describe(self, request: DescribeLedger) -> LedgerDescription:
        listed, snapshot = self._list(request.name)
        return msgspec.structs.replace(
            log_description(snapshot, listed.incarnation, listed.properties, listed.terminated),
            cursors=self._metadata.cursors.names(listed.name),
            schema_version=self._metadata.schema(listed.name, -1)[0],
        )

    def _end(self, request: AskEnd) -> msgspec.Struct:
        listed, snapshot = self._list(request.name)
        return log_end(snapshot, listed.incarnation, request.since)

    def _open_read(self, request: OpenRead) -> OpenedRead:
        listed, snapshot = self._list(request.name)
        range_, skip = self._cursors.left(snapshot, request)
        return OpenedRead(range_, listed.incarnation, *self._metadata.schema(listed.name, -1), skip)

    def _split(self, request: SplitRequest) -> SplitParts:
        snapshot = self._list(request.name)[1]
        return SplitParts(snapshot.split(request.range, request.target_bytes, request.max_parts))

    def _seek(self, request: SeekTime) -> PositionReply:
        found: Position = self._list(request.name)[1].seek_time(request.timestamp_ms)
        return PositionReply(found)

    def _schema(self, request: GetSchema) -> SchemaVersion:
        name = canonical_name(request.name)
        return SchemaVersion(name, *self._metadata.schema(name, request.version))


def _retried(query: Callable[[], T]) -> T:
    """Run a query. Repeat it after an error, because a broker may have sealed or deleted a segment meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return query()
        except (Refused, NotFound):
            raise
        except LedgerError:
            continue
    return query()
