"""Recovery of a segment whose writer died before the seal: finds the end of the sound entries, and removes the rest.

An entry is *sound* if all its bytes have the expected values. A *block* is a part of the file with whole entries.

    blocks … [ acknowledged entries | unacknowledged entries | torn bytes | zeros ]
                                    ^ stated in the sidecar  ^ found by the recovery

*Torn* bytes are an entry that a crash left incomplete. The *sidecar* is the file `<id>.index` beside the segment, with
one row for each entry and the acknowledged end. A *run* is the entries of one batch. Its last entry is the *marker*.

Rules
- `recover_segment` only reads. If an acknowledged entry is damaged, it raises `Corrupt` with file, offset, the expected
  and the found value.
- `seal_recovered` moves the bytes after the sound entries to `<id>.torn`. Both functions log the damage.
- A run at the end without its marker was not committed, so its entries are moved, too. If one of them is acknowledged,
  `recover_segment` raises `Corrupt`.
- Without a sidecar the acknowledged end is unknown. Then `recover_segment` raises `Corrupt` if a sound entry follows
  the damage, because a crash damages only the end of a file.
- A segment with `synced=False` was acknowledged without syncs. A loss of power can damage any part of it, and its
  sidecar is not used. Every entry is verified, and the segment ends before the first damage. The program's log states
  how many acknowledged entries are lost.
- Recovery compares all bytes that no checksum covers with their expected values: headers, padding, lengths, ids,
  stamps. A stamp precedes each entry: the time at which the broker wrote it, and the number of rows up to its end.
  Recovery verifies the checksum of each unacknowledged entry, because these entries determine the end of the log.
  Readers, and the verification of a store, verify the checksums of acknowledged entries.
- A recovered segment is sealed and never written again. After a crash, both steps can be repeated.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Unavailable
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.ledger.segment.index import (
    AcknowledgedEnd,
    EntryIndex,
    OpenSidecar,
    Rows,
    load_open,
    seal_in_place,
    write_sealed,
)
from pyspark_ledger.ledger.segment.scan import Describe, EntryTraits, Scan
from pyspark_ledger.ledger.segment.writer import SealedSegment, seal_data

__all__ = ["Describe", "EntryTraits", "RecoveredSegment", "recover_segment", "seal_recovered"]

_CHUNK_BYTES = 1024 * 1024
_STAMP_MAGIC = b"\x0e\x02"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """Sound part of an unsealed segment, and the size of the rest, which is moved to the `.torn` file.

    `torn_bytes` is the size of the rest. `torn_entries` is the number of whole entries in the rest, such as the entries
    of a run without a marker. `rows_in_sidecar` are the first rows of the index, which the sidecar has already. They
    are empty if the sidecar is unusable.
    """

    path: Path
    ledger_id: int
    store_id: str
    block_bytes: int
    index: EntryIndex
    acknowledged: int | None
    end_offset: int
    torn_bytes: int
    torn_entries: int
    damage: str
    rows_in_sidecar: Rows

    @property
    def entries(self) -> int:
        return self.index.count

    @property
    def row_end(self) -> int:
        """The number of rows of the managed ledger up to the last sound entry."""
        return self.index.row_end

    def acknowledged_part(self) -> RecoveredSegment:
        """Return the segment without its unacknowledged entries. Raises Unavailable if their start is unknown."""
        if self.acknowledged is None:
            raise Unavailable(f"{self.path} has no sidecar", hint="Restart the broker, which builds the file again")
        kept = self.index.rows()[: self.acknowledged]
        index = EntryIndex.of_rows(self.ledger_id, self.index.first_row, kept)
        end = index.end_offset(index.count - 1)
        return replace(
            self,
            index=index,
            end_offset=end,
            torn_bytes=self.end_offset + self.torn_bytes - end,
            torn_entries=self.entries + self.torn_entries - index.count,
            rows_in_sidecar=self.rows_in_sidecar[: index.count],
        )

    @property
    def torn_path(self) -> Path:
        """The file to which the torn bytes are moved."""
        return self.path.with_suffix(".torn")


def recover_segment(
    path: Path,
    ledger_id: int,
    *,
    store_id: str,
    block_bytes: int,
    first_row: int,
    describe: Describe,
    synced: bool = True,
    built: bool = False,
) -> RecoveredSegment:
    """Find the end of an unsealed segment. Changes nothing. Raises Corrupt or DataLoss.

    `built`: the file was built from the log of a store in a bucket, and has no sidecar.
    """
    found = None if built else _sidecar_of(path, ledger_id, block_bytes, first_row)
    acknowledged = found.acknowledged.entries if found else None
    sidecar = found if synced else None
    end = sidecar.acknowledged if sidecar else AcknowledgedEnd(0, HEADER_BYTES, first_row)
    try:
        fd = disk.open_file(path)
    except NotFound:
        raise DataLoss(
            f"{path} is missing; it had {end.entries if sidecar else 'an unknown number of'} acknowledged entries",
            hint="Restore the file from a copy of the store",
        ) from None
    try:
        with disk.mapping(fd) as data:
            scan = Scan(data, path, block_bytes, EntryIndex(ledger_id, first_row), describe, sidecar)
            scan.run()
            _require_acknowledged(scan, end)
            torn_end = _last_byte(fd, scan)
            if torn_end > scan.end and not scan.damage:
                scan.damage = f"{path} at {scan.end}: bytes that are not an entry, expected zeros"
            if synced and sidecar is None and torn_end > scan.end and not scan.closed:
                _require_nothing_beyond(scan)
    finally:
        os.close(fd)
    index, torn_entries = scan.index, 0
    if scan.run_start is not None:
        torn_entries = index.count - scan.run_start
        index = EntryIndex.of_rows(ledger_id, first_row, index.rows()[: scan.run_start])
        scan.damage = scan.damage or f"{path}: the run from entry {scan.run_start} has no marker"
    cut = index.end_offset(index.count - 1)
    torn_bytes = max(torn_end, scan.end) - cut
    if built and torn_bytes:
        raise Corrupt(
            f"{path} was built from the log and has {torn_bytes} bytes behind its entries at {cut}: {scan.damage}",
            hint="Objects of the log are damaged or lost",
        )
    if acknowledged is not None and index.count < acknowledged:
        _log.error(
            "%s: %d of %d acknowledged entries are lost; the ledger has no syncs (durability os): %s",
            path,
            acknowledged - index.count,
            acknowledged,
            scan.damage or "the file ends before them",
        )
    return RecoveredSegment(
        path,
        ledger_id,
        store_id,
        block_bytes,
        index,
        acknowledged,
        cut,
        torn_bytes,
        torn_entries,
        scan.damage,
        scan.trusted[: index.count],
    )


def seal_recovered(recovered: RecoveredSegment) -> SealedSegment:
    """Move the torn bytes to a `.torn` file, and seal the rest. Durable on return. May be repeated."""
    path, index = recovered.path, recovered.index
    with disk.opened(path, writable=True) as fd:
        if recovered.torn_bytes:
            _set_aside(fd, recovered)
        seal_data(fd, path, index, recovered.block_bytes)
    _seal_sidecar(recovered)
    return SealedSegment(index.count, index.size_bytes, recovered.end_offset, index.row_end)


def _seal_sidecar(recovered: RecoveredSegment) -> None:
    name, index = recovered.path.with_suffix(".index"), recovered.index
    if len(recovered.rows_in_sidecar):
        seal_in_place(name, index, recovered.rows_in_sidecar, recovered.end_offset)
        return
    write_sealed(
        name,
        index,
        store_id=recovered.store_id,
        block_bytes=recovered.block_bytes,
        file_bytes=recovered.end_offset,
    )


def _sidecar_of(path: Path, ledger_id: int, block_bytes: int, first_row: int) -> OpenSidecar | None:
    name = path.with_suffix(".index")
    try:
        sidecar = load_open(name, ledger_id)
    except (NotFound, Corrupt) as error:
        _log.warning("%s is recovered without its sidecar: %s", path, error)
        return None
    stated = (sidecar.block_bytes, sidecar.first_row)
    if stated != (block_bytes, first_row):
        raise Corrupt(
            f"{name}: states blocks of {stated[0]} bytes and first row {stated[1]}, "
            f"the metadata state {block_bytes} bytes and row {first_row}"
        )
    return sidecar


def _require_acknowledged(scan: Scan, end: AcknowledgedEnd) -> None:
    """Raise Corrupt unless every acknowledged entry is sound."""
    if scan.index.count < end.entries or 0 <= scan.damage_at < end.end_offset:
        why = scan.damage or f"{scan.path} at {scan.end}: zeros, expected entry {scan.index.count}"
        raise Corrupt(
            f"{why}; {end.entries} entries up to {end.end_offset} were acknowledged",
            hint="No file was changed. Restore the file from a copy",
        )
    last = end.entries - 1
    found = (scan.index.end_offset(last), int(scan.index.row_ends[last]) if end.entries else end.row_end)
    if found != (end.end_offset, end.row_end):
        raise Corrupt(
            f"{scan.path}: entry {last} ends at (offset, row) {found}, "
            f"the acknowledged end is {(end.end_offset, end.row_end)}"
        )
    if scan.run_start is not None and scan.run_start < end.entries:
        raise Corrupt(
            f"{scan.path}: the run from entry {scan.run_start} has no marker, {end.entries} entries were acknowledged"
        )


def _last_byte(fd: int, scan: Scan) -> int:
    """Return the offset after the last non-zero byte of the file, at least the end of the scan."""
    found = scan.end
    for start, end in disk.data_ranges(fd, scan.end, scan.size):
        for at in range(start, end, _CHUNK_BYTES):
            used = np.flatnonzero(np.frombuffer(scan.data[at : min(at + _CHUNK_BYTES, end)], dtype=np.uint8))
            if len(used):
                found = at + int(used[-1]) + 1
    return found


def _require_nothing_beyond(scan: Scan) -> None:
    """Raise Corrupt if a sound entry follows the damage."""
    start = scan.end // scan.block_bytes * scan.block_bytes
    while start < scan.size:
        data = bytes(scan.data[start : start + scan.block_bytes])
        at = data.find(_STAMP_MAGIC, max(scan.end - start, 0) + FRAME_BYTES)
        while at >= 0:
            length, entry_id = FRAME.unpack_from(data, at - FRAME_BYTES)
            if entry_id >= scan.index.count and length and _is_sound(memoryview(data)[at : at + length], length, scan):
                raise Corrupt(
                    f"{scan.damage}; the later entry {entry_id} at {start + at - FRAME_BYTES} is sound, "
                    f"and without a sidecar the acknowledged end is unknown",
                    hint="No file was changed. Restore the file or its sidecar from a copy",
                )
            at = data.find(_STAMP_MAGIC, at + 1)
        start += scan.block_bytes


def _is_sound(entry: memoryview, length: int, scan: Scan) -> bool:
    if len(entry) != length:
        return False
    try:
        scan.describe(entry)
    except Corrupt:
        return False
    return True


def _set_aside(fd: int, recovered: RecoveredSegment) -> None:
    """Copy the torn bytes to the `.torn` file, completely or not at all."""
    path = recovered.torn_path
    scratch = path.with_suffix(".torn.new")
    scratch.unlink(missing_ok=True)
    target = disk.create_file(scratch)
    try:
        for done in range(0, recovered.torn_bytes, _CHUNK_BYTES):
            piece = disk.read_exact(fd, min(_CHUNK_BYTES, recovered.torn_bytes - done), recovered.end_offset + done)
            disk.write_all(target, [piece], done, scratch)
        disk.sync_data(target)
    finally:
        os.close(target)
    scratch.rename(path)
    disk.sync_directory(path.parent)
    lost = (recovered.acknowledged or 0) > recovered.entries
    _log.warning(
        "%s: %d bytes after %d, with %d whole entries, %s; moved to %s (%s)",
        recovered.path,
        recovered.torn_bytes,
        recovered.end_offset,
        recovered.torn_entries,
        "are damaged" if lost else "were never acknowledged",
        path,
        recovered.damage,
    )
