"""The disk without the project: the base of durable appends.

`raw_append` is the base loop: a preallocated file, one pwrite and one fdatasync for each group of bytes.

Page cache distorts measurements on a virtual machine whose host reclaims free memory. If a page was free for a second,
its next use is a page fault of the host. It takes ten times as long as the write. Chance decides which loop has the
page faults. Therefore the benchmark uses and frees the memory that a timed loop will write, before the loop
(`warm_memory`). After the loop, it drops the pages of the loop's files (`drop_page_cache`). So neither loop waits for
the host.

Run by itself, this module compares the loop with itself. A ratio far from 1.0 means that other benchmarks of the disk
are unreliable on this machine.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import compare

GROUPS = {"64KiB": (64 * 1024, 200), "1MiB": (1024 * 1024, 40), "8MiB": (8 * 1024 * 1024, 8)}
_PATTERN_BYTES = 1024 * 1024


def bench_dir() -> Path:
    """Return the directory of measured files: `BENCH_DIR`, else `build/`. A killed run leaves no files elsewhere."""
    path = Path(os.environ.get("BENCH_DIR", "build"))
    path.mkdir(exist_ok=True)
    return path


def warm_memory(size: int) -> None:
    """Use `size` bytes of memory once and free them, so the kernel has free pages that the host has backed."""
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def drop_page_cache(directory: Path) -> None:
    """Drop the page cache of all files under a directory, except pages that are not synced."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def raw_append(directory: Path, sizes: Sequence[int]) -> float:
    """Return the seconds to append groups of these sizes, each synced before the next. Excludes making the file."""
    path = directory / f"raw-{time.monotonic_ns()}"
    data = memoryview(os.urandom(_PATTERN_BYTES) * -(-max(sizes) // _PATTERN_BYTES))
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, sum(sizes))
        os.fsync(descriptor)
        warm_memory(sum(sizes))
        start = time.perf_counter()
        end = 0
        for size in sizes:
            written = os.pwrite(descriptor, data[:size], end)
            if written != size:
                message = f"{path}: {written} of {size} bytes written at {end}; is the disk full?"
                raise OSError(message)
            os.fdatasync(descriptor)
            end += size
        return time.perf_counter() - start
    finally:
        os.close(descriptor)
        path.unlink()


def main() -> None:
    """Compare the loop with itself, for each size of group."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        directory = Path(name)
        for label, (size, count) in GROUPS.items():
            sizes = [size] * count

            def loop(sizes: Sequence[int] = sizes) -> float:
                return raw_append(directory, sizes)

            compare(f"raw_disk_{label}", loop, loop, work_bytes=sum(sizes))


if __name__ == "__main__":
    main()
