"""Bytes of a segment file (`ledger.segment.format`) for a staged part, made one entry after the other.

In a segment file, each entry has a stamp before it: the time at which the broker stored the entry, and its row number.
The writer of the part does not know these numbers. So it writes a placeholder of fixed length instead. The last entry
is the marker, which ends the part's run (the entries of one batch).

Rule: while entries are added, the header of the open block has the maximum length of a block. At the end, `last_header`
returns the header with the real length.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.run_marker import RunId, RunSummary, encode_marker
from pyspark_ledger.ledger.protocol.commits import PartRun
from pyspark_ledger.ledger.segment.format import (
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    BlockHeader,
    entry_bytes_max,
    pack_header,
    padding,
)


class SegmentLayout:
    """Layout of one segment. `length` is the number of bytes up to now, `block_start` the offset of the open block."""

    def __init__(self, block_bytes: int, stamp: bytes, where: str) -> None:
        """`where` names the part in errors."""
        self._block_bytes = block_bytes
        self._stamp = stamp
        self._where = where
        self._block_first = 0
        self.length = self.block_start = self.entries = 0

    def add(self, entry: Sequence[Buffer], size: int) -> list[Buffer]:
        """Return the bytes that an entry of `size` bytes adds: frame, stamp and entry, in a new block if necessary."""
        size += len(self._stamp)
        if size > entry_bytes_max(self._block_bytes):
            raise Refused(
                f"{self._where}: an entry of {size} bytes does not fit into a block of {self._block_bytes} bytes"
            )
        buffers: list[Buffer] = [FRAME.pack(size, self.entries), self._stamp, *entry]
        size += FRAME_BYTES
        block_end = self.block_start + self._block_bytes
        if not self.length or self.length + size > block_end:
            rest = block_end - self.length if self.length else 0
            self.block_start, self._block_first = self.length + rest, self.entries
            header = pack_header(BlockHeader(self._block_bytes, self.entries))
            buffers = [*padding(rest), header, *buffers]
            size += rest + HEADER_BYTES
        self.length += size
        self.entries += 1
        return buffers

    def last_header(self) -> bytes:
        """Return the header of the last block, which ends with the last entry."""
        return pack_header(BlockHeader(self.length - self.block_start, self._block_first))


def marker_of(run: PartRun, entries: int, rows: int) -> bytes:
    """Return the marker that ends a part with these entries and rows."""
    summary = RunSummary(run.query, run.batch, entries, rows)
    return encode_marker(RunId(run.txn_most, run.txn_least), summary, run.publish_ms)
