"""Scan of the data of an unsealed segment: its sound entries, their end, and the damage at that end.

An entry is *sound* if all its bytes have the expected values. The *sidecar* is the file beside the segment with one row
for each acknowledged entry. A *run* is the entries that one batch adds to a ledger; the last of them is its *marker*. A
*stamp* precedes each entry: the time at which the broker wrote the entry, and the number of rows up to its end. A
*wide* stamp has a fixed length.

Rules
- For an acknowledged entry with a sound row in the sidecar, the scan compares the bytes that no checksum covers:
  headers, padding, length, id, stamp. They must agree with the row and the format. The reader of the entry verifies
  the checksum, as in every sealed segment.
- The scan parses every other entry and verifies its checksum. If the entry disagrees with its row in the sidecar, the
  scan stops there. The last acknowledged entry is also parsed. Reason: it may belong to a run without a marker, and
  only the entry itself names its run.
- The scan reads a mapping of the file once, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import WIDE_STAMP_BYTES, BrokerStamp, stamp_prefix, wide_stamp
from pyspark_ledger.ledger.segment.entry_heads import agreeing
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES, HEADER_BYTES, BlockHeader, parse_header
from pyspark_ledger.ledger.segment.index import NO_ROWS, EntryIndex, OpenSidecar, Rows, make_rows
from pyspark_ledger.ledger.segment.reader import padding_fault

_PADDING_BIT = 0x80000000
_STAMP_MAGIC = b"\x0e\x02"


@dataclass(frozen=True, slots=True)
class EntryTraits:
    """Properties of an entry for recovery: its rows, the run to which it belongs or which it closes, its stamp.

    `txn` is the id of the run.
    """

    rows: int
    txn: tuple[int, int] | None
    closes_run: bool
    stamp: BrokerStamp | None


Describe = Callable[[memoryview], EntryTraits]
"""Parses one entry with its stamp, and verifies its checksum. Raises Corrupt. Must not keep the view."""


def checked_traits(entry: memoryview, describe: Describe, before: BrokerStamp) -> EntryTraits:
    """Parse an entry and compare its stamp, which the checksum does not cover, with the stamp `before`.

    Raises Corrupt.
    """
    traits = describe(entry)
    stamp = traits.stamp
    if stamp is None:
        raise Corrupt(f"entry begins with {bytes(entry[:2]).hex()}, expected a stamp ({_STAMP_MAGIC.hex()})")
    prefix = stamp_prefix(stamp)
    if entry[: len(prefix)] != prefix and not _is_wide(entry, stamp):
        raise Corrupt(f"stamp is {bytes(entry[: len(prefix)]).hex()}, expected {prefix.hex()}")
    if stamp.timestamp_ms < before.timestamp_ms:
        raise Corrupt(
            f"broker timestamp {stamp.timestamp_ms} is earlier than {before.timestamp_ms} of the previous entry"
        )
    if stamp.row_end != before.row_end + traits.rows:
        raise Corrupt(
            f"entry of {traits.rows} rows has last row {stamp.row_end} in its stamp, "
            f"expected {before.row_end + traits.rows}"
        )
    return traits


def _is_wide(entry: memoryview, stamp: BrokerStamp) -> bool:
    """Return whether an entry begins with the wide form of a stamp."""
    return stamp.row_end > 0 and entry[:WIDE_STAMP_BYTES] == wide_stamp(stamp)


class Scan:
    """Scan of one file. `index` has the sound entries, `end` is their end, `damage` describes the damage after it."""

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
        # Rows of acknowledged entries. The last entry is parsed nevertheless, because it may be inside a run.
        self.trusted: Rows = sidecar.rows if sidecar else NO_ROWS
        index.reserve(len(self.trusted))
        self.stamp = BrokerStamp(0, index.first_row)
        self.end = HEADER_BYTES
        self.damage, self.damage_at = "", -1
        self.closed = False  # true if an interrupted seal has written the block's true length into its header
        self.open_run: tuple[int, int] | None = None
        self.run_start: int | None = None

    def stop_at(self, offset: int, message: str) -> None:
        self.damage, self.damage_at = f"{self.path} at {offset}: {message}", offset

    def run(self) -> None:
        """Scan block after block, up to the end of the file or the first damage."""
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
                f"block of {header.block_bytes} bytes with first entry {header.first_entry}, "
                f"expected {self.block_bytes} bytes and entry {self.index.count}",
            )
            return None
        return header

    def _block(self, start: int, header: BlockHeader) -> bool:
        """Add the sound entries of one block to the index. Return whether another block may follow."""
        view = self.data[start : start + self.block_bytes]
        limit = min(header.block_bytes, len(view))
        first, before = self.index.count, (self.end, self.stamp, self.open_run, self.run_start)
        at = self._take_trusted(start, limit)
        at, complete = self._take_parsed(view, start, at, limit)
        if header.block_bytes == self.block_bytes or self.damage:
            return complete
        if at != header.block_bytes:  # the seal writes the true length into the header
            self.end, self.stamp, self.open_run, self.run_start = before
            self.index = EntryIndex.of_rows(self.index.ledger_id, self.index.first_row, self.index.rows()[:first])
            self.stop_at(start, f"block states {header.block_bytes} bytes, its entries end at {at}")
            return False
        self.closed = True
        return False

    def _take_trusted(self, start: int, limit: int) -> int:
        """Add the acknowledged entries whose first bytes agree with their rows in the sidecar.

        Return the offset after them in the block.
        """
        first = self.index.count
        rows = self.trusted[first : max(first, len(self.trusted) - 1)]
        rows = rows[: int(np.searchsorted(rows["offset"], start + limit))]
        rows = rows[: agreeing(self.data, start, start + limit, rows, first, self.stamp)]
        if not len(rows):
            return HEADER_BYTES
        self._adopt(rows, BrokerStamp(int(rows[-1]["timestamp"]), int(rows[-1]["row_end"])))
        return self.end - start

    def _take_parsed(self, view: memoryview, start: int, at: int, limit: int) -> tuple[int, bool]:
        """Parse entries one by one and add them. Return their end, and whether the block is complete with padding."""
        found: list[tuple[int, int, int, int]] = []
        number, stamp, complete = self.index.count, self.stamp, False
        while True:
            if limit - at < FRAME_BYTES:
                complete = self._is_padded(view, start, at, limit)
                break
            length, entry_id = FRAME.unpack_from(view, at)
            if length >= _PADDING_BIT:
                complete = self._is_padded(view, start, at, limit)
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
            next_stamp = self._parse(view[begin : begin + length], start + at, number, stamp)
            if next_stamp is None:
                break
            stamp = next_stamp
            found.append((start + at, length, stamp.timestamp_ms, stamp.row_end))
            at, number = begin + length, number + 1
        if found:
            columns = np.array(found, dtype=np.int64).T
            self._adopt(make_rows(columns[0], columns[1], columns[2], columns[3]), stamp)
        return at, complete

    def _parse(self, entry: memoryview, offset: int, number: int, before: BrokerStamp) -> BrokerStamp | None:
        """Return the stamp of a sound entry. Record the damage and return None otherwise."""
        try:
            traits = checked_traits(entry, self.describe, before)
        except Corrupt as error:
            self.stop_at(offset, f"entry {number}: {error.message}")
            return None
        stamp = traits.stamp
        if stamp is not None and number < len(self.trusted):
            row = self.trusted[number]
            stated = (int(row["offset"]), int(row["length"]), int(row["timestamp"]), int(row["row_end"]))
            found = (offset, len(entry), stamp.timestamp_ms, stamp.row_end)
            if stated != found:
                message = f"entry {number} is (offset, length, time, row) {found}, the sidecar states {stated}"
                self.stop_at(offset, message)
                return None
        self._follow_run(traits, number)
        return stamp

    def _follow_run(self, traits: EntryTraits, number: int) -> None:
        """Record the start or the end of a run."""
        if self.open_run is None:
            if traits.txn is not None and not traits.closes_run:
                self.open_run, self.run_start = traits.txn, number
        elif traits.closes_run and traits.txn == self.open_run:
            self.open_run, self.run_start = None, None

    def _is_padded(self, view: memoryview, start: int, at: int, limit: int) -> bool:
        """Return whether only padding follows in the block. Record other bytes except zeros as damage."""
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


def require_entries(data: memoryview, path: Path, block_bytes: int, first_row: int, describe: Describe) -> None:
    """Raise Corrupt unless `data` has only sound, whole entries. `data` is the beginning of a segment file."""
    scan = Scan(data, path, block_bytes, EntryIndex(0, first_row), describe, None)
    scan.run()
    if scan.damage or scan.end != len(data):
        raise Corrupt(scan.damage or f"{path}: its entries end at {scan.end}, expected {len(data)}")
