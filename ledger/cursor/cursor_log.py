"""A cursor's own ledger: the states of what it has acknowledged, one after the other, in a segment like any other.

    entry     envelope of every entry, CRC32C and all; its payload is byte for byte what
              `ledger.positions.position_chunks` says
    envelope  sequence id: the number of the state, one for all its parts · property `ledger.cursor.kind`: state, chunk,
              footer or delta · property `ledger.cursor.compression`: the codec of a whole state

Invariants
- A whole state is one uninterrupted run of entries, and is followed by deltas on it or by another whole state.
- What was flushed was synced and is below the acknowledged end of the file: damage there is an error that names the
  place. Nothing is acknowledged before the metadata name the ledger. Above the end lies at most what a crash tore:
  recovery goes back to the newest state that is whole, and takes the deltas on it as far as their numbers have no gap.
- A recovered file is only read. The next flush begins a new ledger with a whole state, and the metadata names it then.
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
from pyspark_ledger.ledger.segment.writer import SegmentWriter, StampedEntry, data_path, index_path

BLOCK_BYTES = 64 * 1024 * 1024
_KIND, _COMPRESSION = "ledger.cursor.kind", "ledger.cursor.compression"
_STATE, _CHUNK, _FOOTER, _DELTA = "state", "chunk", "footer", "delta"
_PRODUCER = "ledger-cursor"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CursorLogForm:
    """How states are written. `deltas_max` 0: whole states only, as in PIP-381."""

    entry_bytes: int
    compression: int
    deltas_max: int
    entries_max: int


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What a cursor's ledger held. `deltas`: how many were taken on top of the whole state; `encoding` is its form."""

    mark_delete: Position
    acknowledged: PositionSet
    deltas: int
    entries: int
    size_bytes: int
    encoding: str
    crossing: tuple[tuple[Position, Position], ...] = ()


class CursorLog:
    """The ledger that is being written. One thread at a time."""

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
    def create(cls, directory: Path, ledger_id: int, store_id: str, form: CursorLogForm, clock: Clock) -> CursorLog:
        """A new ledger without a state, durable on return."""
        writer = SegmentWriter.create(directory, ledger_id, store_id=store_id, block_bytes=BLOCK_BYTES)
        return cls(writer, form, clock)

    @property
    def is_full(self) -> bool:
        """Whether the next state belongs into a new ledger."""
        return self._writer.entries >= self._form.entries_max or self._writer.failed

    def flush(self, mark_delete: Position, acknowledged: PositionSet, added: PositionSet | None) -> int:
        """Make the state durable: as what was `added` since the last flush where that is little, else whole.

        The bytes that were written. Raises OSError when the device refuses; the caller begins a new ledger then.
        """
        if added is not None and self._base is not None and self._deltas < self._form.deltas_max:
            written = self._flush_delta(self._base, encode_info(mark_delete, added))
            if written:
                return written
        return self.write_state(mark_delete, acknowledged)

    def _flush_delta(self, base: int, info: bytes) -> int:
        """The bytes of a delta; 0, and nothing is written, when it is no little thing."""
        if len(info) > STATE_BYTES_MAX:
            return 0
        delta = encode_delta(base, self._deltas + 1, info, compression=ZSTD)
        if len(delta) > self._form.entry_bytes or self._delta_bytes + len(delta) > max(self._base_bytes, 4096):
            return 0
        self._append([(delta, _DELTA)], NONE)
        self._deltas, self._delta_bytes = self._deltas + 1, self._delta_bytes + len(delta)
        return len(delta)

    def write_state(self, mark_delete: Position, acknowledged: PositionSet) -> int:
        """A whole state; the bytes of its entries."""
        info = encode_info(mark_delete, acknowledged)
        parts = encode_state(info, compression=self._form.compression, entry_bytes=self._form.entry_bytes)
        kinds = [_STATE] if len(parts) == 1 else [_CHUNK] * (len(parts) - 1) + [_FOOTER]
        self._append(list(zip(parts, kinds, strict=True)), self._form.compression)
        self._base, self._deltas, self._delta_bytes = self._writer.entries - 1, 0, 0
        self._base_bytes = sum(len(part) for part in parts)
        return self._base_bytes

    def mark_referenced(self) -> None:
        """The metadata name this ledger: what is synced counts from here on."""
        if not self._is_referenced:
            self._is_referenced = True
            self._writer.acknowledge()

    def close(self) -> None:
        self._writer.close()

    def _append(self, parts: list[tuple[bytes, str]], compression: int) -> None:
        now = self._clock()
        stamp = BrokerStamp(max(now, self._last_ms()), 0)
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

    def _last_ms(self) -> int:
        stamps = self._writer.index.timestamps
        return int(stamps[-1]) if len(stamps) else 0


def recover_cursor_log(directory: Path, ledger_id: int, store_id: str, *, fence: bool = True) -> RecoveredState | None:
    """The newest state of a cursor's ledger; None when it holds none that is whole, and none was acknowledged.

    `fence`: a broker that still writes it must not reach the file any more. Raises Corrupt or DataLoss for damage
    below the acknowledged end.
    """
    path = data_path(directory, ledger_id)
    if fence and path.exists():
        disk.take_from_writer(path, index_path(directory, ledger_id))
    found = recover_segment(path, ledger_id, store_id=store_id, block_bytes=BLOCK_BYTES, first_row=0, describe=_traits)
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
    """Backward to the newest whole state, then forward over the deltas on it. What was `acknowledged` must hold."""
    for base in range(count - 1, -1, -1):
        last = entry(base)
        kind, compression = _kind_and_compression(last)
        if kind not in {_STATE, _FOOTER}:
            continue
        number = last.metadata.sequence_id
        try:
            state = state_ending_at(base, lambda at: _part(entry(at), kind, number, f"{where} entry {at}"), where)  # noqa: B023 — asked at once
            info = decode_info(decode_state(state, compression, where), where)
        except LedgerError as error:
            if base < acknowledged:
                raise Corrupt(
                    f"{where}: the state that ends at entry {base} is not whole, {acknowledged} entries were "
                    f"acknowledged: {error.message}"
                ) from error
            _log.error(
                "%s: the state that ends at entry %d is not whole, an older one is looked for: %s", where, base, error
            )
            continue
        return _with_deltas(info, base, count, entry, where, size)
    if acknowledged:
        raise Corrupt(f"{where}: none of its {acknowledged} acknowledged entries is a state of a cursor")
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
    """The payload of one entry of a state; raises Corrupt when it is another state's."""
    found, _ = _kind_and_compression(parsed)
    if found not in {kind, _CHUNK} or parsed.metadata.sequence_id != number:
        raise Corrupt(f"{where} is a {found} of state {parsed.metadata.sequence_id}, expected a part of state {number}")
    return parsed.payload


def _kind_and_compression(parsed: ParsedEntry) -> tuple[str, int]:
    """The kind of an entry, and the compression of the state it belongs to."""
    properties = {pair.key: pair.value for pair in parsed.metadata.properties}
    return properties.get(_KIND, ""), compression_number(properties.get(_COMPRESSION, NAMES[NONE]))


def _traits(entry: memoryview) -> EntryTraits:
    """What recovery must know: no entry here is a row, nor of a run."""
    parsed = parse_entry(entry, "an entry of a cursor")
    return EntryTraits(entry_rows(parsed.metadata), None, closes_run=False, stamp=parsed.stamp)
