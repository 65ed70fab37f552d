"""Scan of the data of an unsealed segment: the sound entries, their end, and the reason for it.

Rules
- Of an acknowledged entry with a row in the sidecar, all bytes without a checksum are compared: header zeros, padding,
  length, id, stamp. Its reader verifies the checksum, as in every sealed segment.
- Every other entry is parsed and its checksum verified: an unacknowledged one, and one without a sound row. If row and
  bytes disagree, that is reported. The last acknowledged entry is parsed too, because it may be inside a run.
- The scan passes once through a mapping of the file, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import BrokerStamp, stamp_prefix
from pyspark_ledger.ledger.segment.entry_heads import agreeing
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES, HEADER_BYTES, BlockHeader, parse_header
from pyspark_ledger.ledger.segment.index import NO_ROWS, EntryIndex, OpenSidecar, Rows, make_rows
from pyspark_ledger.ledger.segment.reader import padding_fault

_PADDING_BIT = 0x80000000
_STAMP_MAGIC = b"\x0e\x02"


@dataclass(frozen=True, slots=True)
class EntryTraits:
    """Properties of an entry for recovery: its rows, the run that it is in or closes, its stamp."""

    rows: int
    txn: tuple[int, int] | None
    closes_run: bool
    stamp: BrokerStamp | None


Describe = Callable[[memoryview], EntryTraits]
"""Parses one whole entry, stamp included, verifies its checksum, or raises Corrupt. The view is lent."""


def checked_traits(entry: memoryview, describe: Describe, before: BrokerStamp) -> EntryTraits:
    """Describe an entry and compare its stamp, which its checksum does not cover. Raises Corrupt."""
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
    """Pass over a file: `index` has the sound entries, `end` is their end, `damage` the reason."""

    def __init__(
        self,
        data: memoryview,
        path: Path,
        block_bytes: int,
        index: EntryIndex,
        describe: Describe,
        sidecar: OpenSidecar | None,
    ) -> None:
        self.path, self.index, self.describe = path, index, describe
        self.data, self.size, self.block_bytes = data, len(data), block_bytes
        # Rows of acknowledged entries without the last one, which is described because it may be inside a run.
        self.trusted: Rows = sidecar.rows if sidecar else NO_ROWS
        index.reserve(len(self.trusted))
        self.stamp = BrokerStamp(0, index.first_row)
        self.end = HEADER_BYTES
        self.damage, self.damage_at = "", -1
        self.closed = False  # an interrupted seal stated the end
        self.open_run: tuple[int, int] | None = None
        self.run_start: int | None = None

    def stop_at(self, offset: int, message: str) -> None:
        self.damage, self.damage_at = f"{self.path} at {offset}: {message}", offset

    def run(self) -> None:
        """Scan block after block until one is unsound or missing."""
        start = 0
        while start == 0 or start < self.size:
            head = self.data[start : start + HEADER_BYTES]
            if start and not any(head):
                return
            header = self._header(head, start)
            if header is None or not self._block(start, header):
                return
            start += self.block_bytes

    def _header(self, head: memoryview, start: int) -> BlockHeader | None:
        try:
            header = parse_header(head, "block")
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

    def _block(self, start: int, header: BlockHeader) -> bool:
        """Take the entries of one block. Return whether another block may follow."""
        view = self.data[start : start + self.block_bytes]
        limit = min(header.block_bytes, len(view))
        first, before = self.index.count, (self.end, self.stamp, self.open_run, self.run_start)
        at = self._take_trusted(start, limit)
        at, whole = self._take_described(view, start, at, limit)
        if header.block_bytes == self.block_bytes or self.damage:
            return whole
        if at != header.block_bytes:  # the seal writes the true length into the header
            self.end, self.stamp, self.open_run, self.run_start = before
            self.index = EntryIndex.of_rows(self.index.ledger_id, self.index.first_row, self.index.rows()[:first])
            self.stop_at(start, f"block states {header.block_bytes} bytes, its entries end at {at}")
            return False
        self.closed = True
        return False

    def _take_trusted(self, start: int, limit: int) -> int:
        """Take acknowledged entries whose rows and heads agree. Return the offset after them."""
        first = self.index.count
        rows = self.trusted[first : max(first, len(self.trusted) - 1)]
        rows = rows[: int(np.searchsorted(rows["offset"], start + limit))]
        rows = rows[: agreeing(self.data, start, start + limit, rows, first, self.stamp)]
        if not len(rows):
            return HEADER_BYTES
        self._adopt(rows, BrokerStamp(int(rows[-1]["timestamp"]), int(rows[-1]["row_end"])))
        return self.end - start

    def _take_described(self, view: memoryview, start: int, at: int, limit: int) -> tuple[int, bool]:
        """Take entries one by one. Return their end, and whether the block is whole after them."""
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
