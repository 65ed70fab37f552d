"""Goal: a block in shared memory has its own bytes or is gone, freed memory is recognized, and no block of a dead
broker remains. Method: directories as shared memory, a full file system, readers in processes.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks, SharedMemoryStorage
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.transport.mapped_block import HEAD_BYTES, SharedPlace, map_shared

BYTES = os.urandom(100_000)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedBlocks]:
    blocks = SharedBlocks.begin("store", 1, tmp_path)
    yield blocks
    blocks.close()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes file systems of a size."""
    mounted: list[Path] = []

    def make(size: str) -> Path:
        path = tmp_path / f"shm{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("file systems can be mounted by root only")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        gc.collect()
        subprocess.run(["umount", "-l", str(path)], check=True)


def put(shared: SharedBlocks, data: bytes = BYTES) -> SharedMemoryStorage:
    storage = shared.put(7, 3, pa.py_buffer(data))
    assert storage is not None
    return storage


def holder(place: SharedPlace) -> subprocess.Popen[str]:
    """A process that has mapped a block, and says so."""
    code = (
        "import sys\n"
        "from pyspark_ledger.ledger.transport.mapped_block import SharedPlace, map_shared\n"
        "frames = map_shared(SharedPlace(sys.argv[1], sys.argv[2]), 0, int(sys.argv[3]))\n"
        "print(len(frames), flush=True)\n"
        "sys.stdin.read()\n"
        "print(sum(frames.to_pybytes()), flush=True)\n"
    )
    command = [sys.executable, "-c", code, place.path, place.head, str(len(BYTES))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{len(BYTES)}\n"
    return process


def test_a_block_is_exactly_its_bytes(shared: SharedBlocks) -> None:
    storage = put(shared)
    assert bytes(storage.acquire().frames) == BYTES
    assert bytes(map_shared(storage.place, 5000, 60_000)) == BYTES[5000:65_000]
    assert put(shared).place.path != storage.place.path
    assert Path(storage.place.path).stat().st_size == HEAD_BYTES + len(BYTES)
    assert Path(storage.place.path).stat().st_mode & 0o777 == 0o600
    assert Path(storage.place.path).parent.stat().st_mode & 0o777 == 0o700


def test_another_block_of_the_name_is_gone_as_well_as_none(shared: SharedBlocks) -> None:
    storage, other = put(shared), put(shared, b"x" * len(BYTES))
    os.replace(other.place.path, storage.place.path)  # noqa: PTH105 — one call of the system is meant
    with pytest.raises(NotFound, match="does not contain the requested block"):
        map_shared(storage.place, 0, len(BYTES))
    with pytest.raises(NotFound):
        map_shared(other.place, 0, len(BYTES))
    third = put(shared)
    with pytest.raises(NotFound):
        map_shared(third.place, 0, len(BYTES) + 1)


def test_what_was_let_go_of_has_no_name_and_counts_until_nobody_has_it(shared: SharedBlocks) -> None:
    storage = put(shared)
    assert not storage.is_pinned()  # it is not evicted
    frames = map_shared(storage.place, 0, len(BYTES))
    part = frames.slice(10, 20)
    del frames
    storage.release()
    with pytest.raises(NotFound):
        map_shared(storage.place, 0, len(BYTES))
    gc.collect()
    assert storage.is_pinned()
    assert bytes(part) == BYTES[10:30]
    del part
    gc.collect()
    assert not storage.is_pinned()


def test_what_is_held_keeps_its_name(shared: SharedBlocks) -> None:
    storage = put(shared)
    held = storage.acquire()
    storage.release()
    assert storage.is_pinned()
    assert bytes(map_shared(storage.place, 0, len(BYTES))) == BYTES
    del held
    gc.collect()
    assert not storage.is_pinned()
    assert not Path(storage.place.path).exists()


def test_who_opened_a_block_and_comes_too_late_finds_it_gone(shared: SharedBlocks, tmp_path: Path) -> None:
    storage = put(shared)
    beside = tmp_path / "beside"
    os.link(storage.place.path, beside)  # as a reader that has it open and nothing more
    storage.release()
    assert beside.stat().st_size == 0
    with pytest.raises(NotFound):
        map_shared(storage.place._replace(path=str(beside)), 0, len(BYTES))
    beside.unlink()


@pytest.mark.parametrize("killed", [True, False])
def test_the_mapping_of_another_process_counts_until_it_is_gone_or_dead(shared: SharedBlocks, *, killed: bool) -> None:
    storage = put(shared)
    reader = holder(storage.place)
    storage.release()
    assert storage.is_pinned()
    if killed:
        reader.send_signal(signal.SIGKILL)
        reader.wait()
    else:
        assert reader.communicate()[0] == f"{sum(BYTES)}\n"
    assert not storage.is_pinned()


def test_where_memory_is_full_no_block_is_made_and_nobody_is_killed(tmpfs: Callable[[str], Path]) -> None:
    shared = SharedBlocks.begin("store", 1, tmpfs("64m"))
    data = pa.py_buffer(bytes(20 * 1024 * 1024))
    storages = [shared.put(1, number, data) for number in range(4)]
    assert [storage is not None for storage in storages] == [True, True, True, False]
    assert storages[0] is not None
    storages[0].release()
    assert shared.put(1, 4, data) is not None  # there is room again
    shared.close()


def test_where_there_is_no_shared_memory_there_are_no_blocks(tmp_path: Path) -> None:
    shared = SharedBlocks.begin("store", 1, tmp_path / "missing")
    assert not shared
    assert shared.put(7, 3, pa.py_buffer(BYTES)) is None
    shared.close()


def test_what_a_dead_broker_left_is_removed_and_a_living_one_keeps_its_own(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa\n"
        "from pathlib import Path\n"
        "from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks\n"
        "blocks = SharedBlocks.begin(sys.argv[1], 1, Path(sys.argv[2]))\n"
        "home = blocks.put(1, 0, pa.py_buffer(b'x' * 1000))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    brokers = [
        subprocess.Popen(
            [sys.executable, "-c", code, name, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("dead", "alive")
    ]
    for broker in brokers:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "ready\n"
    brokers[0].send_signal(signal.SIGKILL)
    brokers[0].wait()
    mine = SharedBlocks.begin("mine", 1, tmp_path)
    names = sorted(path.name.split("-")[2] for path in tmp_path.iterdir())
    assert names == ["alive", "mine"]
    brokers[1].communicate()
    mine.close()
    until = time.monotonic() + 60
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        SharedBlocks.begin("next", 2, tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_brokers_that_begin_and_end_at_the_same_time_all_have_their_memory(tmp_path: Path) -> None:
    """Each sweeps while the others make and remove their directories."""
    frames = pa.py_buffer(BYTES[:1000])

    def begin_and_end(number: int) -> None:
        for epoch in range(40):
            blocks = SharedBlocks.begin(f"store{number}", epoch, tmp_path)
            assert blocks
            for first in range(2):
                storage = blocks.put(1, first, frames)
                assert storage is not None
                assert bytes(storage.frames) == BYTES[:1000]
                storage.release()
            blocks.close()

    with ThreadPoolExecutor(6) as brokers:
        for done in [brokers.submit(begin_and_end, number) for number in range(6)]:
            done.result(60)
    assert not list(tmp_path.iterdir())


def test_the_next_broker_counts_what_is_mapped_and_frees_it(tmp_path: Path) -> None:
    dead = SharedBlocks.begin("store", 1, tmp_path)
    storages = [put(dead) for _ in range(3)]
    mine = [map_shared(storage.place, 0, len(BYTES)) for storage in storages[:2]]
    os.close(dead._lock)  # as the kernel does when it is killed
    blocks = SharedBlocks.begin("store", 2, tmp_path)
    assert [(storage.size, storage.is_pinned()) for storage in blocks.left] == [(len(BYTES), True)] * 2
    with pytest.raises(NotFound):
        map_shared(storages[0].place, 0, len(BYTES))
    assert bytes(mine[1]) == BYTES
    del mine[0]
    gc.collect()
    assert sorted(storage.is_pinned() for storage in blocks.left) == [False, True]
    del mine[0]
    gc.collect()
    assert not any(storage.is_pinned() for storage in blocks.left)
    blocks.close()


def test_a_broker_of_another_store_leaves_what_is_mapped_to_its_own(tmp_path: Path) -> None:
    dead = SharedBlocks.begin("store", 1, tmp_path)
    storages = [put(dead) for _ in range(3)]
    mine = [map_shared(storage.place, 0, len(BYTES)) for storage in storages[:2]]
    os.close(dead._lock)  # as the kernel does when it is killed
    other = SharedBlocks.begin("other", 1, tmp_path)
    assert not other.left
    assert not Path(storages[2].place.path).exists()
    blocks = SharedBlocks.begin("store", 2, tmp_path)
    assert [(storage.size, storage.is_pinned()) for storage in blocks.left] == [(len(BYTES), True)] * 2
    assert bytes(mine[1]) == BYTES
    del mine
    gc.collect()
    assert not any(storage.is_pinned() for storage in blocks.left)
    other.close()
    blocks.close()
    assert not list(tmp_path.iterdir())


def test_whether_a_block_is_in_somebodys_hands_can_be_asked(shared: SharedBlocks) -> None:
    storage = put(shared)
    assert not storage.is_referenced()
    frames = map_shared(storage.place, 0, 10)
    assert storage.is_referenced()
    del frames
    gc.collect()
    assert not storage.is_referenced()
    storage.release()
    assert not storage.is_referenced()


def test_nobody_is_turned_away_while_the_broker_asks(shared: SharedBlocks) -> None:
    storage = put(shared)
    asking = os.open(storage.place.path, os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as reading:
        found = reading.submit(map_shared, storage.place, 0, 10)
        while not _waits(storage.place.path):
            assert not found.done()
        os.close(asking)
        assert bytes(found.result(60)) == BYTES[:10]


def _waits(path: str) -> bool:
    """Whether this process has it open three times: the home, who asks, who wants to map it."""
    links = list[str]()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(fd.readlink()))
    return links.count(path) == 3
