"""Log of one cursor: a segment file with the successive states of the cursor's acknowledgements.

A *whole state* has all acknowledgements. A *delta* has the acknowledgements since the previous delta. A whole state
that is too large for one entry is split into *chunks*, followed by a *footer*.

    entry     an ordinary entry with CRC32C; `ledger.positions.position_chunks` describes the bytes of its payload
    metadata  sequence id: the number of the state, the same for all its chunks · property `ledger.cursor.kind`: state,
              chunk, footer or delta · property `ledger.cursor.compression`: the codec of a whole state

Invariants
- The entries of a whole state are contiguous. Deltas of this state follow, or another whole state.
- The sidecar, a small file beside the segment, has the segment's acknowledged end. A flushed state is synced and is
  before this end. If bytes before this end are damaged, recovery raises an error that names the place.
- The acknowledged end is 0 until the metadata name the log.
- Entries after the acknowledged end may be incomplete because of a crash. Recovery uses the newest complete whole
  state, and its deltas up to the first gap in their numbers.
- A recovered file is never written again. The next flush creates a new log with a whole state, and then the metadata
  name the new log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import Corrupt, LedgerError
from pyspark_ledger.ledger.message.compression import NAMES, NONE, ZSTD
from pyspark_ledger.ledger.message.entry import BrokerStamp, ParsedEntry, entry_rows, parse_entry
from pyspark_ledger.ledger.message.entry import encode_entry as entry_of
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.position_chunks import (
    STATE_BYTES_MAX,
    compression_number,
    decode_state,
    encode_delta,
    encode_state,
    parse_delta,
    state_ending_at,
)
from pyspark_ledger.ledger.positions.position_info import DecodedInfo, decode_info, encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.recovery import recover_segment
from pyspark_ledger.ledger.segment.scan import EntryTraits
from pyspark_ledger.ledger.segment.writer import (
    LOCAL_DISK,
    SegmentDurability,
    SegmentWriter,
    StampedEntry,
    data_path,
    index_path,
)

BLOCK_BYTES = 64 * 1024 * 1024
_KIND, _COMPRESSION = "ledger.cursor.kind", "ledger.cursor.compression"
_STATE, _CHUNK, _FOOTER, _DELTA = "state", "chunk", "footer", "delta"
_PRODUCER = "ledger-cursor"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CursorLogForm:
    """Format of states and limits of a cursor's log.

    An entry has at most `entry_bytes`, the log at most `entries_max` entries. At most `deltas_max` deltas follow a
    whole state. If `deltas_max` is 0, only whole states are written, as in PIP-381.
    """

    entry_bytes: int
    compression: int
    deltas_max: int
    entries_max: int


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """State of a cursor, recovered from the cursor's log.

    `deltas` is the number of applied deltas. `encoding` names the encoding of the whole state (`DecodedInfo.encoding`).
    """

    mark_delete: Position
    acknowledged: PositionSet
    deltas: int
    entries: int
    size_bytes: int
    encoding: str
    crossing: tuple[tuple[Position, Position], ...] = ()


class CursorLog:
    """Writer of a cursor's log. Not thread-safe."""

    def __init__(self, writer: SegmentWriter, form: CursorLogForm, clock: Clock) -> None:
        self.ledger_id = writer.ledger_id
        self._writer = writer
        self._form = form
        self._clock = clock
        self._is_referenced = False
        self._number = 0
        self._base: int | None = None
        self._base_bytes = self._delta_bytes = self._deltas = 0
        self.size_bytes = 0

    @classmethod
    def create(
        cls,
        directory: Path,
        ledger_id: int,
        store_id: str,
        form: CursorLogForm,
        clock: Clock,
        durability: SegmentDurability = LOCAL_DISK,
    ) -> CursorLog:
        """Create a log without a state. The file is durable on return, unless a bucket keeps its bytes."""
        writer = SegmentWriter.create(
            directory, ledger_id, store_id=store_id, block_bytes=BLOCK_BYTES, durability=durability
        )
        return cls(writer, form, clock)

    @property
    def is_full(self) -> bool:
        """Whether the next state needs a new log."""
        return self._writer.entries >= self._form.entries_max or self._writer.failed

    def flush(self, mark_delete: Position, acknowledged: PositionSet, added: PositionSet | None) -> int:
        """Make the state durable, and return the number of written bytes.

        `added` are the positions since the last flush. They are written as a delta if the delta is small. Otherwise the
        whole state is written. Raises OSError if the device fails. The caller then creates a new log.
        """
        if added is not None and self._base is not None and self._deltas < self._form.deltas_max:
            written = self._flush_delta(self._base, encode_info(mark_delete, added))
            if written:
                return written
        return self.write_state(mark_delete, acknowledged)

    def _flush_delta(self, base: int, info: bytes) -> int:
        """Write a delta and return its size in bytes. If the delta is too large, write nothing and return 0."""
        if len(info) > STATE_BYTES_MAX:
            return 0
        delta = encode_delta(base, self._deltas + 1, info, compression=ZSTD)
        if len(delta) > self._form.entry_bytes or self._delta_bytes + len(delta) > max(self._base_bytes, 4096):
            return 0
        self._append([(delta, _DELTA)], NONE)
        self._deltas, self._delta_bytes = self._deltas + 1, self._delta_bytes + len(delta)
        return len(delta)

    def write_state(self, mark_delete: Position, acknowledged: PositionSet) -> int:
        """Write a whole state, and return the size of its entries in bytes."""
        info = encode_info(mark_delete, acknowledged)
        parts = encode_state(info, compression=self._form.compression, entry_bytes=self._form.entry_bytes)
        kinds = [_STATE] if len(parts) == 1 else [_CHUNK] * (len(parts) - 1) + [_FOOTER]
        self._append(list(zip(parts, kinds, strict=True)), self._form.compression)
        self._base, self._deltas, self._delta_bytes = self._writer.entries - 1, 0, 0
        self._base_bytes = sum(len(part) for part in parts)
        return self._base_bytes

    def mark_referenced(self) -> None:
        """Set the acknowledged end to the end of the synced entries. Called after the metadata name this log."""
        if not self._is_referenced:
            self._is_referenced = True
            self._writer.acknowledge()

    def close(self) -> None:
        self._writer.close()

    def _append(self, parts: list[tuple[bytes, str]], compression: int) -> None:
        now = self._clock()
        stamps = self._writer.index.timestamps
        stamp = BrokerStamp(max(now, int(stamps[-1])) if len(stamps) else now, 0)
        entries = []
        for payload, kind in parts:
            metadata = MessageMetadata(
                producer_name=_PRODUCER, sequence_id=self._number, publish_time=now, marker_type=0
            )
            metadata.properties.add(key=_KIND, value=kind)
            if compression != NONE:
                metadata.properties.add(key=_COMPRESSION, value=NAMES[compression])
            buffers = entry_of(metadata, payload)
            entries.append(StampedEntry(stamp, sum(map(len, buffers)), buffers))
        self._number += 1
        try:
            self._writer.write(entries)
            self._writer.sync()
            if self._is_referenced:
                self._writer.acknowledge()
        except LedgerError:
            self._base = None
            raise
        self.size_bytes += sum(len(payload) for payload, _ in parts)


def recover_cursor_log(
    directory: Path, ledger_id: int, store_id: str, *, fence: bool = True, built: bool = False
) -> RecoveredState | None:
    """Return the newest state in a cursor's log. Returns None if the log has no complete state.

    With `built`, the file was built from the log of a store in a bucket, and may have no sidecar. If `fence` is set, a
    broker that still writes the file is fenced first. Raises Corrupt or DataLoss for damage before the acknowledged
    end.
    """
    path = data_path(directory, ledger_id)
    if fence and path.exists():
        disk.take_from_writer(path, index_path(directory, ledger_id))
    found = recover_segment(
        path, ledger_id, store_id=store_id, block_bytes=BLOCK_BYTES, first_row=0, describe=_traits, built=built
    )
    index = found.index
    fd = disk.open_file(path)
    try:

        def entry(number: int) -> ParsedEntry:
            data = disk.read_exact(fd, int(index.lengths[number]), int(index.offsets[number]) + FRAME_BYTES)
            return parse_entry(data, f"{path} entry {number}")

        ends = index.count, found.acknowledged or 0
        return _newest(*ends, entry, str(path), int(index.lengths.sum()))
    finally:
        os.close(fd)


def _newest(
    count: int, acknowledged: int, entry: Callable[[int], ParsedEntry], where: str, size: int
) -> RecoveredState | None:
    """Return the newest whole state with its deltas. Raises Corrupt for damage before entry `acknowledged`."""
    for base in range(count - 1, -1, -1):
        last = entry(base)
        kind, compression = _kind_and_compression(last)
        if kind not in {_STATE, _FOOTER}:
            continue
        number = last.metadata.sequence_id
        try:
            state = state_ending_at(base, lambda at: _part(entry(at), kind, number, f"{where} entry {at}"), where)  # noqa: B023 — called at once
            info = decode_info(decode_state(state, compression, where), where)
        except LedgerError as error:
            if base < acknowledged:
                raise Corrupt(
                    f"{where}: the state that ends at entry {base} is not complete, {acknowledged} entries were "
                    f"acknowledged: {error.message}"
                ) from error
            _log.error(
                "%s: the state that ends at entry %d is not complete, an older state is used: %s", where, base, error
            )
            continue
        return _with_deltas(info, base, count, entry, where, size)
    if acknowledged:
        raise Corrupt(f"{where}: none of its {acknowledged} acknowledged entries is the state of a cursor")
    return None


def _with_deltas(
    info: DecodedInfo, base: int, count: int, entry: Callable[[int], ParsedEntry], where: str, size: int
) -> RecoveredState:
    mark_delete, acknowledged, deltas = info.mark_delete, info.acknowledged, 0
    for at in range(base + 1, count):
        parsed = entry(at)
        if _kind_and_compression(parsed)[0] != _DELTA:
            break
        delta = parse_delta(parsed.payload, f"{where} entry {at}")
        if (delta.base, delta.number) != (base, deltas + 1):
            break
        added = decode_info(delta.info, f"{where} entry {at}")
        acknowledged.update(added.acknowledged)
        mark_delete, deltas = max(mark_delete, added.mark_delete), deltas + 1
    return RecoveredState(mark_delete, acknowledged, deltas, count, size, info.encoding, info.crossing)


def _part(parsed: ParsedEntry, kind: str, number: int, where: str) -> memoryview:
    """Return the payload of one entry of a state. Raises Corrupt if the entry belongs to another state."""
    found, _ = _kind_and_compression(parsed)
    if found not in {kind, _CHUNK} or parsed.metadata.sequence_id != number:
        raise Corrupt(f"{where} is a {found} of state {parsed.metadata.sequence_id}, expected a part of state {number}")
    return parsed.payload


def _kind_and_compression(parsed: ParsedEntry) -> tuple[str, int]:
    """Return the kind of an entry and the compression of its state."""
    properties = {pair.key: pair.value for pair in parsed.metadata.properties}
    return properties.get(_KIND, ""), compression_number(properties.get(_COMPRESSION, NAMES[NONE]))


def _traits(entry: memoryview) -> EntryTraits:
    """Return an entry's traits for the recovery of the segment. Entries of a cursor have no rows and no run."""
    parsed = parse_entry(entry, "an entry of a cursor")
    return EntryTraits(entry_rows(parsed.metadata), None, closes_run=False, stamp=parsed.stamp)
