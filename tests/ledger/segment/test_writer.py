"""Goal: what is acknowledged is in the file, the rest is nowhere. Method: blocks of 256 bytes, kill -9."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import AlreadyExists, Refused, Unavailable
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.segment.format import parse_header
from pyspark_ledger.ledger.segment.index import load_open
from pyspark_ledger.ledger.segment.writer import PREALLOCATE_BYTES_MIN, SegmentWriter, StampedEntry

if TYPE_CHECKING:
    from tests.rigs.segment import SegmentRig

MIB = 1024 * 1024


def stamped(size: int, row_end: int = 1) -> StampedEntry:
    return StampedEntry(BrokerStamp(1, row_end), size, (b"\x0e\x01" + bytes(size - 2),))


def test_blocks_are_filled_padded_and_numbered(rig: SegmentRig) -> None:
    rig.fill(9)
    sealed = rig.writer.seal()
    data = rig.data.read_bytes()
    assert len(data) == sealed.file_bytes
    starts = range(0, len(data), 256)
    headers = [parse_header(data[at:], "x") for at in starts]
    assert [header.block_bytes for header in headers[:-1]] == [256] * (len(headers) - 1)
    assert headers[-1].block_bytes == len(data) - starts[-1]
    firsts = [header.first_entry for header in headers]
    assert firsts == [int((rig.writer.index.offsets < at).sum()) for at in starts]
    assert sealed.size_bytes == sum(rig.writer.index.lengths)
    rig.verify(sealed)
    assert rig.originals() == rig.written


def test_an_entry_may_fill_its_block_to_the_last_byte(rig: SegmentRig) -> None:
    overhead = rig.writer.block_bytes - 128 - 12
    for count in (1, 2):
        rig.commit(rig.entry(b"x" * (overhead - 13 - 6 - 7 - 2), rows=1))
        assert rig.writer.end_offset <= 256 * count
    rig.verify(rig.writer.seal())


def test_nothing_is_visible_before_it_is_acknowledged(rig: SegmentRig) -> None:
    rig.write(rig.entry(b"a"), rig.entry(b"b"))
    assert (rig.writer.entries, rig.writer.index.count) == (2, 0)
    rig.writer.acknowledge()
    assert rig.writer.index.count == 0
    rig.writer.sync()
    rig.write(rig.entry(b"c"))
    with pytest.raises(Refused, match="3 entries cannot be acknowledged: 0 are acknowledged already, 2 are synced"):
        rig.writer.acknowledge(3)
    rig.writer.acknowledge(1)
    assert load_open(rig.sidecar, 7).acknowledged.entries == 1
    rig.writer.acknowledge()
    assert (rig.writer.acknowledged, rig.writer.entries) == (2, 3)
    assert load_open(rig.sidecar, 7).rows.tolist() == rig.writer.index.rows().tolist()


@pytest.mark.parametrize(("size", "durable", "begins"), [(300_000, True, 1), (300_000, False, 0), (3_000, True, 0)])
def test_the_device_begins_with_what_is_much_before_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, durable: bool, begins: int
) -> None:
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(disk, "begin_sync", lambda _, offset, length: begun.append((offset, length)))
    writer = SegmentWriter.create(tmp_path, 1, store_id="s", block_bytes=1 << 20, sync=durable)
    for row_end in (1, 2):
        start = writer.end_offset
        writer.write([stamped(size, row_end)])
        assert begun == [(start, writer.end_offset - start)] * begins
        begun.clear()
    writer.close()


def test_an_oversized_entry_is_refused_before_anything_is_written(rig: SegmentRig) -> None:
    rig.fill(2)
    before, end = rig.data.read_bytes(), rig.writer.end_offset
    assert rig.writer.fits(116)
    assert not rig.writer.fits(117)
    small, large = rig.entry(b"small"), rig.entry(b"x" * 100)
    with pytest.raises(
        Refused, match="entry 3 has 128 bytes with its stamp, at most 116 fit into a block of 256 bytes"
    ):
        rig.write(small, large)
    assert (rig.writer.entries, rig.writer.end_offset) == (2, end)
    assert rig.data.read_bytes() == before


def test_stamps_never_fall(rig: SegmentRig) -> None:
    rig.fill(3)
    with pytest.raises(Refused, match="entry 3 has stamp"):
        rig.writer.write([StampedEntry(BrokerStamp(0, 99), 1, (b"x",))])
    assert rig.writer.entries == 3


@pytest.mark.parametrize("keep", [0, 1, 4])
def test_what_is_truncated_leaves_no_byte(rig: SegmentRig, keep: int) -> None:
    rig.fill(2)
    rig.write(*(rig.entry(b"gone" * 15) for _ in range(6)))
    place = rig.writer._pending[keep]
    rig.writer.truncate_to(2 + keep)
    assert rig.writer.entries == 2 + keep
    end = rig.writer.end_offset
    assert end <= place.offset
    assert not any(rig.data.read_bytes()[end:])
    rig.stamp = BrokerStamp(rig.stamp.timestamp_ms, rig.writer._last.row_end)
    rig.commit(rig.entry(b"after"))
    rig.verify(rig.writer.seal())


def test_what_is_acknowledged_is_not_truncated(rig: SegmentRig) -> None:
    rig.fill(3)
    with pytest.raises(Refused, match="truncated to 2 entries: 3 are acknowledged"):
        rig.writer.truncate_to(2)


def test_a_seal_waits_for_the_last_acknowledgement(rig: SegmentRig) -> None:
    rig.write(rig.entry(b"a"))
    with pytest.raises(Refused, match="0 entries are acknowledged, 1 are written"):
        rig.writer.seal()
    rig.writer.truncate_to(0)
    assert rig.writer.seal().file_bytes == 128


def test_a_failed_write_leaves_nothing(rig: SegmentRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.fill(2)
    real, end = os.pwritev, rig.writer.end_offset

    def half(fd: int, buffers: list[bytes], offset: int) -> int:
        real(fd, buffers[:1], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", half)
        with pytest.raises(Unavailable, match=r"7\.ledger cannot be written at"):
            rig.write(rig.entry(b"lost" * 10))
    assert (rig.writer.entries, rig.writer.end_offset) == (2, end)
    assert not any(rig.data.read_bytes()[end:])
    rig.stamp = rig.writer._last
    rig.commit(rig.entry(b"later"))
    rig.verify(rig.writer.seal())


def test_after_a_failed_sync_only_the_acknowledged_part_is_sealed(
    rig: SegmentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.fill(2)
    rig.write(rig.entry(b"unsure"))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            rig.writer.sync()
    for call in (rig.writer.sync, rig.writer.acknowledge, lambda: rig.writer.write([stamped(20, 99)])):
        with pytest.raises(Unavailable, match=r"a sync failed.*Input/output error"):
            call()
    rig.writer.truncate_to(2)
    sealed = rig.writer.seal()
    assert sealed.entries == 2
    rig.verify(sealed)


def test_space_is_reserved_in_growing_steps_within_the_block(tmp_path: Path) -> None:
    writer = SegmentWriter.create(tmp_path, 1, store_id="s", block_bytes=5 * MIB, sync=False)
    sizes = [writer.path.stat().st_size]
    for _ in range(22):
        writer.write([stamped(MIB // 2)])
        sizes.append(writer.path.stat().st_size)
    assert sizes[0] == PREALLOCATE_BYTES_MIN
    assert sorted(set(sizes))[:3] == [MIB, 3 * MIB, 5 * MIB]
    assert all(size <= -(-writer.end_offset // (5 * MIB)) * 5 * MIB for size in sizes)
    writer.close()


def test_more_space_may_be_asked_for_at_once(tmp_path: Path) -> None:
    writer = SegmentWriter.create(tmp_path, 1, store_id="s", block_bytes=5 * MIB, preallocate_bytes=4 * MIB)
    assert writer.path.stat().st_size == 4 * MIB + 128
    writer.preallocate(99 * MIB)
    assert writer.path.stat().st_size == 5 * MIB
    writer.close()


@pytest.mark.parametrize("sync", [True, False])
def test_synced_files_that_grow_have_more_extents_until_their_seal(tmp_path: Path, *, sync: bool) -> None:
    """ext4 then keeps the extents out of the inode."""
    writer = SegmentWriter.create(tmp_path, 1, store_id="s", block_bytes=5 * MIB, sync=sync)

    def reserved_apart() -> bool:
        found = writer.path.stat()
        return found.st_blocks * 512 >= found.st_size + 4 * 4096

    assert not reserved_apart()
    writer.write([stamped(MIB // 2)] * 3)
    assert reserved_apart() == sync
    writer.sync()
    writer.acknowledge()
    writer.seal()
    found = writer.path.stat()
    assert found.st_blocks * 512 <= found.st_size + 2 * 4096, "the last block and the block of extents"


def test_files_are_private_and_never_replaced(rig: SegmentRig) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in (rig.data, rig.sidecar)} == {0o600}
    with pytest.raises(AlreadyExists, match=r"7\.ledger"):
        SegmentWriter.create(rig.directory, 7, store_id="s", block_bytes=256)


def test_a_failed_creation_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "7.index").touch()
    with pytest.raises(AlreadyExists, match=r"7\.index"):
        SegmentWriter.create(tmp_path, 7, store_id="s", block_bytes=256)
    with pytest.raises(Refused, match="block of 100 bytes"):
        SegmentWriter.create(tmp_path, 8, store_id="s", block_bytes=100)
    assert [path.name for path in tmp_path.iterdir()] == ["7.index"]


_VICTIM = """
import sys
from pathlib import Path
from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.segment.writer import SegmentWriter, StampedEntry
writer = SegmentWriter.create(Path(sys.argv[1]), 7, store_id="a-store", block_bytes=256, sync=False)
for number in range(10**9):
    writer.write([StampedEntry(BrokerStamp(number, number + 1), len(sys.argv[2]) // 2, (bytes.fromhex(sys.argv[2]),))])
    writer.sync()
    writer.acknowledge()
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 40, 333])
def test_the_acknowledged_end_survives_kill_9(rig: SegmentRig, tmp_path: Path, lines: int) -> None:
    rig.writer.close()
    rig.data.unlink()
    rig.sidecar.unlink()
    command = [sys.executable, "-c", _VICTIM, str(tmp_path), rig.entry(b"payload").hex()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as victim:
        assert victim.stdout is not None
        for _ in range(lines):
            seen = int(victim.stdout.readline())
        os.kill(victim.pid, signal.SIGKILL)
        seen = max([seen, *map(int, victim.stdout.read().split())])
    recovered = rig.recover()
    assert recovered.acknowledged is not None
    assert seen + 1 <= recovered.acknowledged <= recovered.entries <= seen + 3
