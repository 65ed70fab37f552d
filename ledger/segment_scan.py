"""One pass over the data of an unsealed segment: what is sound, where that ends, and why it ends there.

Rules
- Every byte before the end that is found was verified: header zeros, padding, lengths, ids, checksums,
  stamps, rows.
- The sidecar's rows only spare the parsing of acknowledged entries. Where rows and bytes disagree, the entry
  is parsed and the disagreement is named. The last acknowledged entry is always parsed: it may stand inside a
  run.
- The pass reads block by block into one buffer, once, and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ledger import disk
from ledger.checksum import crc32c
from ledger.entry import BrokerStamp, stamp_prefix
from ledger.errors import Corrupt
from ledger.segment_format import FRAME, FRAME_BYTES, HEADER_BYTES, BlockHeader, parse_header
from ledger.segment_index import EntryIndex, OpenSidecar, Rows, make_rows
from ledger.segment_reader import padding_fault

_PADDING_BIT = 0x80000000
_STAMP_MAGIC = b"\x0e\x02"
_CHECKSUM_MAGIC = b"\x0e\x01"


@dataclass(frozen=True, slots=True)
class EntryTraits:
    """What recovery must know of an entry: the rows it delivers, the run it is in or closes, its stamp."""

    rows: int
    txn: tuple[int, int] | None
    closes_run: bool
    stamp: BrokerStamp | None


Describe = Callable[[memoryview], EntryTraits]
"""Parses one whole entry, stamp included, verifies its checksum, or raises Corrupt. The view is lent."""


def checked_traits(entry: memoryview, describe: Describe, before: BrokerStamp) -> EntryTraits:
    """Describe an entry and compare its stamp, which its checksum does not cover; raises Corrupt."""
    traits = describe(entry)
    stamp = traits.stamp
    if stamp is None:
        raise Corrupt(f"entry begins with {bytes(entry[:2]).hex()}, expected broker metadata ({_STAMP_MAGIC.hex()})")
    prefix = stamp_prefix(stamp)
    if entry[: len(prefix)] != prefix:
        raise Corrupt(f"broker metadata is {bytes(entry[: len(prefix)]).hex()}, expected {prefix.hex()}")
    if stamp.timestamp_ms < before.timestamp_ms:
        raise Corrupt(
            f"broker timestamp {stamp.timestamp_ms} is before that of the entry before, {before.timestamp_ms}"
        )
    if stamp.row_end != before.row_end + traits.rows:
        raise Corrupt(f"entry of {traits.rows} rows after row {before.row_end} is stamped with row {stamp.row_end}")
    return traits


class Scan:
    """One pass over a file: `index` holds what is sound, `end` is where that ends, `damage` why."""

    def __init__(
        self,
        fd: int,
        path: Path,
        block_bytes: int,
        index: EntryIndex,
        describe: Describe,
        sidecar: OpenSidecar | None,
    ) -> None:
        self.path, self.index, self.describe = path, index, describe
        self.fd, self.size, self.block_bytes = fd, os.fstat(fd).st_size, block_bytes
        # Rows of acknowledged entries, but for the last of them, which is described: it may be inside a run.
        self.trusted: Rows = sidecar.rows[: sidecar.acknowledged.entries] if sidecar else _no_rows()
        self.stamp = BrokerStamp(0, index.first_row)
        self.end = HEADER_BYTES
        self.damage, self.damage_at = "", -1
        self.closed = False  # a seal, begun before, stated the end
        self.open_run: tuple[int, int] | None = None
        self.run_start: int | None = None

    def stop_at(self, offset: int, message: str) -> None:
        """Remember where and why the pass stops."""
        self.damage, self.damage_at = f"{self.path} at {offset}: {message}", offset

    def run(self) -> None:
        """Read block by block until one does not hold or does not exist."""
        buffer = memoryview(bytearray(min(self.block_bytes, max(self.size, HEADER_BYTES))))
        start = 0
        while start == 0 or start < self.size:
            view = buffer[: disk.read_into(self.fd, buffer, start)]
            if start and not any(view[:HEADER_BYTES]):
                return
            header = self._header(view, start)
            if header is None or not self._block(view, start, header):
                return
            start += self.block_bytes

    def _header(self, view: memoryview, start: int) -> BlockHeader | None:
        try:
            header = parse_header(view[:HEADER_BYTES], "block")
        except Corrupt as error:
            self.stop_at(start, error.message)
            return None
        if header.first_entry != self.index.count or header.block_bytes > self.block_bytes:
            self.stop_at(
                start,
                f"block of {header.block_bytes} bytes from entry {header.first_entry}, "
                f"expected one of {self.block_bytes} from entry {self.index.count}",
            )
            return None
        return header

    def _block(self, view: memoryview, start: int, header: BlockHeader) -> bool:
        """Take the entries of one block; says whether another may follow."""
        limit = min(header.block_bytes, len(view))
        first, before = self.index.count, (self.end, self.stamp, self.open_run, self.run_start)
        at = self._take_trusted(view, start, limit)
        at, whole = self._take_described(view, start, at, limit)
        if header.block_bytes == self.block_bytes or self.damage:
            return whole
        if at != header.block_bytes:  # a header is given its true length only when it is sealed
            self.end, self.stamp, self.open_run, self.run_start = before
            self.index = EntryIndex.of_rows(self.index.ledger_id, self.index.first_row, self.index.rows()[:first])
            self.stop_at(start, f"block states {header.block_bytes} bytes, its entries end at {at}")
            return False
        self.closed = True
        return False

    def _take_trusted(self, view: memoryview, start: int, limit: int) -> int:
        """Take acknowledged entries that rows and bytes agree on; returns the offset after them."""
        first = self.index.count
        rows = self.trusted[first : max(first, len(self.trusted) - 1)]
        rows = rows[: int(np.searchsorted(rows["offset"], start + limit))]
        rows = rows[: _agreeing(view, start, limit, rows, first)]
        taken, stamp = 0, self.stamp
        for offset, length, _, timestamp, row_end in rows.tolist():
            if timestamp < stamp.timestamp_ms or row_end < stamp.row_end:
                break
            begin = offset - start + FRAME_BYTES
            now = BrokerStamp(timestamp, row_end)
            if not _sums_up(view[begin : begin + length], now):
                break
            stamp, taken = now, taken + 1
        self._adopt(rows[:taken], stamp)
        return self.end - start if taken else HEADER_BYTES

    def _take_described(self, view: memoryview, start: int, at: int, limit: int) -> tuple[int, bool]:
        """Take entries one by one; returns where they end, and whether the block is whole behind them."""
        found: list[tuple[int, int, int, int]] = []
        number, stamp, whole = self.index.count, self.stamp, False
        while True:
            if limit - at < FRAME_BYTES:
                whole = self._is_padded(view, start, at, limit)
                break
            length, entry_id = FRAME.unpack_from(view, at)
            if length >= _PADDING_BIT:
                whole = self._is_padded(view, start, at, limit)
                break
            if not length:
                break
            begin = at + FRAME_BYTES
            if entry_id != number or length > limit - begin:
                self.stop_at(
                    start + at,
                    f"frame of entry {entry_id} with {length} bytes, "
                    f"expected entry {number} with at most {limit - begin} bytes",
                )
                break
            stamp_now = self._described(view[begin : begin + length], start + at, number, stamp)
            if stamp_now is None:
                break
            stamp = stamp_now
            found.append((start + at, length, stamp.timestamp_ms, stamp.row_end))
            at, number = begin + length, number + 1
        if found:
            columns = np.array(found, dtype=np.int64).T
            self._adopt(make_rows(columns[0], columns[1], columns[2], columns[3]), stamp)
        return at, whole

    def _described(self, entry: memoryview, offset: int, number: int, before: BrokerStamp) -> BrokerStamp | None:
        try:
            traits = checked_traits(entry, self.describe, before)
        except Corrupt as error:
            self.stop_at(offset, f"entry {number}: {error.message}")
            return None
        stamp = traits.stamp
        if stamp is not None and number < len(self.trusted):
            row = self.trusted[number]
            said = (int(row["offset"]), int(row["length"]), int(row["timestamp"]), int(row["row_end"]))
            here = (offset, len(entry), stamp.timestamp_ms, stamp.row_end)
            if said != here:
                self.stop_at(offset, f"entry {number} is (offset, length, time, row) {here}, the sidecar says {said}")
                return None
        self._follow_run(traits, number)
        return stamp

    def _follow_run(self, traits: EntryTraits, number: int) -> None:
        if self.open_run is None:
            if traits.txn is not None and not traits.closes_run:
                self.open_run, self.run_start = traits.txn, number
        elif traits.closes_run and traits.txn == self.open_run:
            self.open_run, self.run_start = None, None

    def _is_padded(self, view: memoryview, start: int, at: int, limit: int) -> bool:
        rest = view[at:limit]
        if rest and not any(rest):
            return False
        if fault := padding_fault(rest):
            self.stop_at(start + at, fault)
            return False
        return True

    def _adopt(self, rows: Rows, stamp: BrokerStamp) -> None:
        self.index.extend(rows)
        self.stamp = stamp
        self.end = self.index.end_offset(self.index.count - 1)


def _no_rows() -> Rows:
    nothing = np.empty(0, dtype=np.int64)
    return make_rows(nothing, nothing, nothing, nothing)


def _agreeing(view: memoryview, start: int, limit: int, rows: Rows, first: int) -> int:
    """How many leading rows lie one behind the other in this block, with frames that say the same."""
    if not len(rows):
        return 0
    offsets, lengths = rows["offset"] - start, rows["length"].astype(np.int64)
    expected = np.concatenate(([HEADER_BYTES], (offsets + FRAME_BYTES + lengths)[:-1]))
    sound = (offsets == expected) & (offsets + FRAME_BYTES + lengths <= limit)
    if not sound.all():
        offsets = offsets[: int(np.argmin(sound))]
    data = np.frombuffer(view, dtype=np.uint8)
    heads = data[offsets[:, None] + np.arange(FRAME_BYTES)].view(np.dtype([("length", ">u4"), ("entry", ">i8")]))[:, 0]
    count = len(offsets)
    same = (heads["length"] == lengths[:count]) & (heads["entry"] == np.arange(first, first + count))
    return count if same.all() else int(np.argmin(same))


def _sums_up(entry: memoryview, stamp: BrokerStamp) -> bool:
    """Whether an entry has this stamp, and the checksum that it states."""
    prefix = stamp_prefix(stamp)
    at = len(prefix)
    if entry[:at] != prefix or entry[at : at + 2] != _CHECKSUM_MAGIC:
        return False
    stated = int.from_bytes(entry[at + 2 : at + 6], "big")
    return crc32c(entry[at + 6 :]) == stated
