"""Set-up for tests of segments: tiny entries whose payload is three bytes (rows and run), and a writer of small
blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.segment.recovery import EntryTraits, RecoveredSegment, recover_segment
from pyspark_ledger.ledger.segment.verification import load_or_rebuild_index, verify_segment
from pyspark_ledger.ledger.segment.writer import SealedSegment, SegmentWriter, StampedEntry

BLOCK = 256


def entry(payload: bytes, *, rows: int = 1, txn: int = 0, closes: bool = False) -> bytes:
    body = (3).to_bytes(4, "big") + bytes((rows, txn, closes)) + payload
    return b"\x0e\x01" + google_crc32c.value(body).to_bytes(4, "big") + body


def describe(view: memoryview) -> EntryTraits:
    """Verify the checksum of `entry`, and return its three bytes. A stamp before the entry is skipped."""
    data = bytes(view)
    stamp = None
    if data[:2] == b"\x0e\x02":
        size = int.from_bytes(data[2:6], "big")
        stamp = _stamp(data[6 : 6 + size])
        data = data[6 + size :]
    if data[:2] != b"\x0e\x01" or len(data) < 13:
        raise Corrupt(f"entry begins with {data[:2].hex()}, expected 0e01")
    found, stated = google_crc32c.value(data[6:]), int.from_bytes(data[2:6], "big")
    if found != stated:
        raise Corrupt(f"CRC32C is {found:#010x}, stated {stated:#010x}")
    rows, txn, closes = data[10:13]
    return EntryTraits(rows, (0, txn) if txn else None, bool(closes), stamp)


def _stamp(body: bytes) -> BrokerStamp:
    fields = {1: 0, 2: -1}
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        fields[tag >> 3], at = _varint(body, at)
    return BrokerStamp(fields[1], fields[2] + 1)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body):
        value |= (body[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if body[at - 1] < 128:
            break
    return value, at


class SegmentRig:
    """Segment 7 with blocks of 256 bytes, in a new directory. `written` has the entries without stamps."""

    entry = staticmethod(entry)
    describe = staticmethod(describe)
    block_bytes = BLOCK

    def __init__(self, directory: Path, first_row: int = 0) -> None:
        self.directory = directory
        self.first_row = first_row
        self.writer = SegmentWriter.create(directory, 7, store_id="a-store", block_bytes=BLOCK, first_row=first_row)
        self.data = directory / "7.ledger"
        self.sidecar = directory / "7.index"
        self.torn = directory / "7.torn"
        self.stamp = BrokerStamp(1_700_000_000_000, first_row)
        self.written: list[bytes] = []

    def write(self, *entries: bytes) -> None:
        """Write entries that are not acknowledged: the acknowledged end stays before them."""
        stamped = []
        for data in entries:
            self.stamp = BrokerStamp(self.stamp.timestamp_ms + 1, self.stamp.row_end + data[10])
            stamped.append(StampedEntry(self.stamp, len(data), (data[:6], memoryview(data)[6:])))
        self.writer.write(stamped)
        self.written += entries

    def commit(self, *entries: bytes) -> None:
        self.write(*entries)
        self.writer.sync()
        self.writer.acknowledge()

    def fill(self, entries: int) -> None:
        """Write acknowledged entries of different lengths into several blocks."""
        for number in range(entries):
            self.commit(entry(b"payload" * (number % 4) + b"\xff", rows=number % 3))

    def originals(self) -> list[bytes]:
        """Return the entries in the data file at the offsets of the writer's index, without stamps."""
        data, index = self.data.read_bytes(), self.writer.index
        return [unstamped(data[index.offsets[i] + 12 :][: index.lengths[i]]) for i in range(index.count)]

    def recover(self) -> RecoveredSegment:
        return recover_segment(
            self.data,
            7,
            store_id="a-store",
            block_bytes=BLOCK,
            first_row=self.first_row,
            describe=describe,
        )

    def verify(self, sealed: SealedSegment) -> None:
        """Verify the sealed segment and its sidecar."""
        index = load_or_rebuild_index(
            self.data,
            7,
            store_id="a-store",
            entries=sealed.entries,
            file_bytes=sealed.file_bytes,
            first_row=self.first_row,
            block_bytes=BLOCK,
            describe=describe,
        )
        verify_segment(
            self.data,
            7,
            entries=sealed.entries,
            file_bytes=sealed.file_bytes,
            first_row=self.first_row,
            describe=describe,
            index=index,
        )


def unstamped(stored: bytes) -> bytes:
    size = int.from_bytes(stored[2:6], "big")
    return stored[6 + size :]


@pytest.fixture
def rig(tmp_path: Path) -> SegmentRig:
    return SegmentRig(tmp_path)


@pytest.fixture
def make_rig(tmp_path: Path) -> Callable[..., SegmentRig]:
    def make(name: str, first_row: int = 0) -> SegmentRig:
        directory = tmp_path / name
        directory.mkdir()
        return SegmentRig(directory, first_row)

    return make
