"""Writer of one open segment: writes entries into blocks, and moves the end up to which readers may read.

    write        writes frames to the file                       readers do not see them
    sync         makes them durable                              all frames written before its start
    acknowledge  writes the sidecar and extends the index        only synced frames; readers see them
    seal         writes the last header and the final sidecar    the file never changes again

A frame is an entry with its length and id. A stamp precedes the entry: the time at which the broker wrote it, and the
number of rows up to its end. The sidecar is the file `<id>.index`, with the place of each entry.

Invariants
- The kernel gets the callers' buffers without a copy. The frame's header and the stamp are written before each entry.
- A refused or failed `write` leaves the segment and the file unchanged.
- Only zeros follow the last written frame, because `truncate_to` erases the data on disk.
- After a failed sync, the segment accepts no write, sync or acknowledgement, because the device may have dropped data.
  The acknowledged part can still be sealed.
- One thread writes, while another thread may be inside `sync`.
- The file is locked (`disk.hold`) until it is closed, so that recovery detects a live writer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.message.entry import BrokerStamp, stamp_prefix
from pyspark_ledger.ledger.segment.format import (
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    BlockHeader,
    entry_bytes_max,
    pack_header,
    padding,
    require_block_bytes,
)
from pyspark_ledger.ledger.segment.index import AcknowledgedEnd, EntryIndex, EntryPlace, IndexFile

PREALLOCATE_BYTES_MIN = 1024 * 1024
# After a write of this size, the transfer to the disk starts at once, without a sync. Reason: another thread may still
# sync the previous write. For a smaller write, the system call costs more than it saves.
_WRITE_BACK_BYTES_MIN = 256 * 1024


class StampedEntry(NamedTuple):
    """Entry of `size` bytes as the producer sent it, in buffers, and the stamp that the broker writes before it."""

    stamp: BrokerStamp
    size: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class UnsyncedRange:
    """Bytes `[offset, end)` of a file that a sync covers.

    The first range of a file begins with the header of the first block.
    """

    ledger_id: int
    fd: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """Metadata of a sealed segment. `size_bytes` is the sum of the entries' bytes."""

    entries: int
    size_bytes: int
    file_bytes: int
    row_end: int


def data_path(directory: Path, ledger_id: int) -> Path:
    return directory / f"{ledger_id}.ledger"


def index_path(directory: Path, ledger_id: int) -> Path:
    return directory / f"{ledger_id}.index"


class SegmentDurability(Protocol):
    """Place where the entries of segments become durable: the disk of their files, or the bucket of the store."""

    in_bucket: bool
    """Whether the next broker builds the file of an open segment from a bucket, and appends to it."""

    def sync(self, writer: SegmentWriter) -> None:
        """Make all written entries durable, between `begin_sync` and `end_sync` of the writer."""


class LocalDisk:
    """The disk of the files. A sync of the file makes its entries durable."""

    in_bucket = False

    def sync(self, writer: SegmentWriter) -> None:
        """Sync the file. Raises OSError if the device fails."""
        fd = writer.begin_sync()
        try:
            if fd >= 0:
                disk.sync_data(fd)
        except OSError as error:
            writer.end_sync(error)
            raise
        writer.end_sync(None)


LOCAL_DISK = LocalDisk()


class SegmentWriter:
    """Open segment. Any thread may read `index`."""

    def __init__(
        self,
        directory: Path,
        fd: int,
        file: IndexFile,
        index: EntryIndex,
        block_bytes: int,
        *,
        sync: bool,
        durability: SegmentDurability,
    ) -> None:
        self.path = data_path(directory, index.ledger_id)
        self.ledger_id = index.ledger_id
        self.index = index
        self.block_bytes = block_bytes
        self._fd = fd
        self._file = file
        self._sync = sync
        self._durability = durability
        self._uses_device = sync and not durability.in_bucket
        self._syncing_end = self._synced_end = 0
        self._pending: list[EntryPlace] = []
        self._written = self._syncing = self._synced = 0
        self._end = HEADER_BYTES
        self._last = BrokerStamp(0, index.first_row)
        self._reserved = 0
        self._step = min(PREALLOCATE_BYTES_MIN, block_bytes)
        self._failed: OSError | None = None
        self.created_ms = self._age_from = 0
        self.size = self.acknowledged_size = 0
        """Bytes of all written entries without their stamps, and of the acknowledged entries with their stamps."""
        self.given_up = False
        """Whether no entry may be added, because an earlier write or sync has failed."""

    @classmethod
    def create(
        cls,
        directory: Path,
        ledger_id: int,
        *,
        store_id: str,
        block_bytes: int,
        first_row: int = 0,
        preallocate_bytes: int = 0,
        sync: bool = True,
        durability: SegmentDurability = LOCAL_DISK,
        owner: str = "",
    ) -> SegmentWriter:
        """Create an empty segment, durable on return. After a failure no file is left.

        `owner` is the incarnation of the managed ledger: the id of this creation of the ledger. The owner shows to
        which ledger a file belongs if the metadata do not list it.
        """
        require_block_bytes(block_bytes)
        index = EntryIndex(ledger_id, first_row)
        fd = disk.create_file(data_path(directory, ledger_id))
        try:
            disk.hold(fd)
            file = IndexFile.create(
                index_path(directory, ledger_id),
                ledger_id,
                store_id=store_id,
                block_bytes=block_bytes,
                first_row=first_row,
                owner=owner,
            )
        except BaseException:
            os.close(fd)
            data_path(directory, ledger_id).unlink()
            raise
        writer = cls(directory, fd, file, index, block_bytes, sync=sync, durability=durability)
        try:
            writer.preallocate(preallocate_bytes)
            writer._write([pack_header(BlockHeader(block_bytes, 0))], 0, HEADER_BYTES)
            disk.sync_data(fd)
            disk.sync_directory(directory)
        except BaseException:
            writer.close()
            writer.path.unlink()
            file.path.unlink()
            raise
        return writer

    @property
    def entries(self) -> int:
        """The number of written entries, acknowledged or not. The next entry gets this id."""
        return self._written

    @property
    def acknowledged(self) -> int:
        """The number of entries that readers may see."""
        return self.index.count

    @property
    def failed(self) -> bool:
        """Whether a sync of this file has failed. Then the segment accepts no more writes."""
        return self._failed is not None

    @property
    def end_offset(self) -> int:
        """File offset after the last written frame."""
        return self._end

    def set_created(self, created_ms: int) -> None:
        """Set the time from which `age` counts."""
        self.created_ms = self._age_from = created_ms

    def age(self, now_ms: int) -> int:
        """Return the age in ms, never negative. Any thread may call this.

        If the clock is set back, the age starts again at 0.
        """
        self._age_from = min(self._age_from, now_ms)
        return now_ms - self._age_from

    def fits(self, entry_bytes: int) -> bool:
        """Return whether an entry of this size, with its stamp, fits into a block."""
        return entry_bytes <= entry_bytes_max(self.block_bytes)

    def preallocate(self, length: int) -> None:
        """Reserve space for the next `length` bytes, up to the end of the open block."""
        block_end = self._block_start() + self.block_bytes
        self._reserve(min(self._end + length, block_end))

    def write(self, entries: Sequence[StampedEntry]) -> int:
        """Write entries with consecutive ids. Return the first id. The entries are neither durable nor visible yet."""
        self._require_sound()
        first = self.entries
        buffers, places, end = self._lay_out(entries, first)
        if not places:
            return first
        try:
            self._write(buffers, self._end, end)
        except BaseException:
            self._erase_from(self._end)
            raise
        self._end = end
        self._last = BrokerStamp(places[-1].timestamp_ms, places[-1].row_end)
        self._pending += places
        self._written += len(places)
        self.size += sum([entry.size for entry in entries])
        return first

    @classmethod
    def continued(
        cls,
        fd: int,
        file: IndexFile,
        index: EntryIndex,
        block_bytes: int,
        directory: Path,
        durability: SegmentDurability,
    ) -> SegmentWriter:
        """Return the writer of a segment whose entries are all durable in a bucket (`ledger.segment.continuation`)."""
        writer = cls(directory, fd, file, index, block_bytes, sync=True, durability=durability)
        writer._written = writer._syncing = writer._synced = index.count
        writer._end = writer._synced_end = writer._reserved = index.end_offset(index.count - 1)
        writer._last = writer._acknowledged_stamp()
        writer.size = writer.acknowledged_size = index.size_bytes
        return writer

    def sync(self) -> None:
        """Make all written entries durable. Raises OSError if the device fails. Never repeats a failed sync."""
        self._durability.sync(self)

    def begin_sync(self, entries: int = -1, end_offset: int = -1) -> int:
        """Return the file descriptor, which the caller then syncs itself. Returns -1 for a segment without syncs.

        The sync covers the first `entries` entries, which end at `end_offset`. By default it covers all entries.
        """
        self._require_sound()
        self._syncing, self._syncing_end = (self.entries, self._end) if entries < 0 else (entries, end_offset)
        return self._fd if self._sync else -1

    def written(self) -> UnsyncedRange:
        """Return the bytes of all written entries that are not durable yet."""
        return UnsyncedRange(self.ledger_id, self._fd, self._synced_end, self._end)

    def unsynced(self) -> UnsyncedRange:
        """Return the bytes that the current sync makes durable. `begin_sync` has started this sync."""
        return UnsyncedRange(self.ledger_id, self._fd, self._synced_end, self._syncing_end)

    def end_sync(self, error: OSError | None) -> None:
        """Record the result of the sync that `begin_sync` started. After an error, `failed` is true."""
        if error is not None:
            self._failed = error
        else:
            self._synced, self._synced_end = self._syncing, self._syncing_end

    def acknowledge(self, entries: int | None = None) -> None:
        """Make the first `entries` entries visible, by default all synced entries."""
        self._require_sound()
        entries = self._synced if entries is None else entries
        count = self.index.count
        if not count <= entries <= self._synced:
            raise Refused(
                f"{self.path}: {entries} entries cannot be acknowledged: {count} are acknowledged already, "
                f"{self._synced} are synced"
            )
        if entries == count:
            return
        places = self._pending[: entries - count]
        self._file.append(places)
        self._file.acknowledge(AcknowledgedEnd(entries, _end_of(places[-1]), places[-1].row_end))
        self.index.append(places)
        del self._pending[: len(places)]
        self.acknowledged_size += sum([place.length for place in places])

    def forget_unacknowledged(self) -> None:
        """Truncate the file after its last acknowledged entry."""
        self.truncate_to(self.index.count)

    def truncate_to(self, entries: int) -> None:
        """Keep only the first `entries` entries. Raises Refused if a removed entry is acknowledged."""
        count = self.index.count
        if not count <= entries <= self.entries:
            raise Refused(
                f"{self.path}: cannot be truncated to {entries} entries: {count} are acknowledged, {self.entries} are "
                "written"
            )
        keep = self._pending[: entries - count]
        end = _end_of(keep[-1]) if keep else self.index.end_offset(count - 1)
        self._erase_from(end)
        self._pending = keep
        self._written = entries
        self._synced, self._synced_end = min(self._synced, entries), min(self._synced_end, end)
        self._end = end
        self._last = BrokerStamp(keep[-1].timestamp_ms, keep[-1].row_end) if keep else self._acknowledged_stamp()

    def seal(self) -> SealedSegment:
        """Write the last block's length, remove reserved space, and write the index. Durable on return."""
        if self._pending:
            raise Refused(
                f"{self.path}: {self.index.count} entries are acknowledged, {self.entries} are written",
                hint="Acknowledge or truncate before sealing",
            )
        seal_data(self._fd, self.path, self.index, self.block_bytes)
        self._file.seal(self.index, self._end)
        self.close()
        return SealedSegment(self.index.count, self.index.size_bytes, self._end, self.index.row_end)

    def close(self) -> None:
        """Close both files without writing."""
        self._file.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lay_out(self, entries: Sequence[StampedEntry], first: int) -> tuple[list[Buffer], list[EntryPlace], int]:
        """Return the buffers to write, the places of the entries, and the new end. Changes nothing."""
        buffers: list[Buffer] = []
        places: list[EntryPlace] = []
        end, block_end, block_bytes = self._end, self._block_start() + self.block_bytes, self.block_bytes
        last, most = self._last, entry_bytes_max(block_bytes)
        for number, (stamp, entry_size, entry_buffers) in enumerate(entries, first):
            prefix = stamp_prefix(stamp)
            size = len(prefix) + entry_size
            if size > most or stamp.timestamp_ms < last.timestamp_ms or stamp.row_end < last.row_end:
                raise self._not_storable(number, size, stamp, last)
            if end + FRAME_BYTES + size > block_end:
                buffers += padding(block_end - end)
                buffers.append(pack_header(BlockHeader(block_bytes, number)))
                end, block_end = block_end + HEADER_BYTES, block_end + block_bytes
            buffers.append(FRAME.pack(size, number) + prefix)
            buffers += entry_buffers
            last = stamp
            places.append(EntryPlace(end, size, last.timestamp_ms, last.row_end))
            end += FRAME_BYTES + size
        return buffers, places, end

    def _not_storable(self, number: int, size: int, stamp: BrokerStamp, last: BrokerStamp) -> Refused:
        if not self.fits(size):
            return Refused(
                f"{self.path}: entry {number} has {size} bytes with its stamp, at most "
                f"{entry_bytes_max(self.block_bytes)} fit into a block of {self.block_bytes} bytes",
                hint="Send smaller entries, or create the ledger with larger blocks",
            )
        return Refused(f"{self.path}: entry {number} has stamp {stamp}, lower than {last} of the entry before it")

    def _require_sound(self) -> None:
        if self._failed is not None:
            raise Unavailable(
                f"{self.path}: a sync failed: {self._failed}",
                hint="Seal this segment and write to a new segment",
            )

    def _write(self, buffers: Sequence[Buffer], offset: int, end: int) -> None:
        self._reserve(end)
        disk.write_all(self._fd, buffers, offset, self.path, end - offset)
        if self._uses_device and end - offset >= _WRITE_BACK_BYTES_MIN:
            disk.begin_sync(self._fd, offset, end - offset)

    def _reserve(self, upto: int) -> None:
        """Reserve space up to `upto` or further, at most to the end of its block. Each step is twice the previous."""
        if upto <= self._reserved:
            return
        block_end = -(-upto // self.block_bytes) * self.block_bytes
        goal = min(max(upto, self._reserved + self._step), block_end)
        disk.preallocate(self._fd, self._reserved, goal - self._reserved, self.path)
        if self._reserved and self._uses_device:
            disk.spread_extents(self._fd)
        self._reserved = goal
        self._step = min(2 * self._step, self.block_bytes)

    def _erase_from(self, end: int) -> None:
        """Truncate the file to `end`, durably. A failure marks the file as failed."""
        try:
            os.ftruncate(self._fd, end)
            disk.sync_data(self._fd)
        except OSError as error:
            self._failed = error
            raise
        self._reserved = end

    def _block_start(self) -> int:
        return (self._end - 1) // self.block_bytes * self.block_bytes

    def _acknowledged_stamp(self) -> BrokerStamp:
        count = self.index.count
        return BrokerStamp(int(self.index.timestamps[count - 1]) if count else 0, self.index.row_end)


def seal_data(fd: int, path: Path, index: EntryIndex, block_bytes: int) -> None:
    """Write the real length into the last block's header, and truncate the file after the last entry. Syncs both."""
    end = index.end_offset(index.count - 1)
    start = (end - 1) // block_bytes * block_bytes
    first = int(np.searchsorted(index.offsets, start))
    disk.write_all(fd, [pack_header(BlockHeader(end - start, first))], start, path)
    disk.sync_data(fd)
    os.ftruncate(fd, end)
    disk.sync_data(fd)


def _end_of(place: EntryPlace) -> int:
    return place.offset + FRAME_BYTES + place.length
