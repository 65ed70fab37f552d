"""Goal: a mapped block is its bytes and no others, mapped only while it is used, and every failure names the file.
Method: small files, offsets around the page, the process's own maps.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Unavailable
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.transport import mapped_block
from pyspark_ledger.ledger.transport.mapped_block import map_block

PAGE = mmap.ALLOCATIONGRANULARITY


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "7.ledger"
    path.write_bytes(os.urandom(3 * PAGE + 100))
    return path


def block(path: Path, offset: int, length: int) -> SegmentBlock:
    return SegmentBlock(7, 0, 1, path, offset, length)


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 1), (128, 50), (PAGE - 1, 2), (PAGE, PAGE), (PAGE + 1, 2 * PAGE), (3 * PAGE, 100), (3 * PAGE + 99, 1)],
)
def test_a_block_is_exactly_its_bytes(data: Path, offset: int, length: int) -> None:
    assert bytes(map_block(block(data, offset, length))) == data.read_bytes()[offset : offset + length]


def test_a_block_that_is_not_wholly_in_its_file_is_never_mapped(data: Path) -> None:
    with pytest.raises(Corrupt, match=rf"{data} has {3 * PAGE + 100} bytes, .* end at byte {3 * PAGE + 101}"):
        map_block(block(data, 3 * PAGE, 101))


def test_a_file_that_is_gone_or_a_link_is_an_error_naming_it(data: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=str(tmp_path / "8.ledger")):
        map_block(block(tmp_path / "8.ledger", 0, 1))
    link = tmp_path / "9.ledger"
    link.symlink_to(data)
    with pytest.raises(Exception, match=str(link)):
        map_block(block(link, 0, 1))


def test_the_mapping_lives_as_long_as_a_slice_of_it_and_keeps_no_file_open(data: Path) -> None:
    def mapped() -> bool:
        return str(data) in Path("/proc/self/maps").read_text()

    def opened() -> list[str]:
        files = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
        return [file for file in files if file.startswith(str(data))]

    with data.open("rb"):
        assert opened(), "an open file is seen"
    buffer = map_block(block(data, 10, 200))
    part = buffer.slice(50, 10)
    wanted = data.read_bytes()[60:70]
    del buffer
    data.unlink()
    gc.collect()
    assert bytes(part) == wanted
    assert mapped()
    del part
    gc.collect()
    assert not mapped()
    assert not opened()


def test_pages_that_the_disk_fails_are_an_error_and_an_old_kernel_is_not(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No disk fails on demand: the system's answer is put in its place."""

    def answering(code: int) -> object:
        class Libc:
            @staticmethod
            def madvise(*_: int) -> int:
                mapped_block.ctypes.set_errno(code)
                return -1

        return Libc

    monkeypatch.setattr(mapped_block, "_libc", answering(errno.EFAULT))
    with pytest.raises(Unavailable, match=rf"{data}: bytes 10 to 20 cannot be read: Bad address"):
        map_block(block(data, 10, 10))
    monkeypatch.setattr(mapped_block, "_libc", answering(errno.EINVAL))
    assert bytes(map_block(block(data, 10, 10))) == data.read_bytes()[10:20]
