"""File system: the only module that calls the operating system for files, space and durability.

Rules
- A file is created once (`O_EXCL`), never through a symbolic link (`O_NOFOLLOW`), readable by its owner only (0600);
  directories are 0700.
- Data may be acknowledged after `sync_data` returned. A name is durable after `sync_directory` of its folder.
- A full disk is `Unavailable` with the path and the sizes. Every other failure of the device stays an `OSError`, so
  that a caller can tell a bad file from a full disk.
- `write_all` returns after the last byte or raises.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused, Unavailable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_COPY_BYTES = 1024 * 1024
IOV_MAX = os.sysconf("SC_IOV_MAX")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE; it consumes no error of the device, which the next sync must report
# Linux has it. Elsewhere the log cannot be written, but what only reads must be able to import this.
_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# fmt: off
NETWORK_TYPES = frozenset((
    "afs", "ceph", "cifs", "davfs", "dbfs", "gcsfuse", "glusterfs", "goofys", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "s3fs", "smb2", "smb3", "smbfs", "sshfs",
    "fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.cephfs", "fuse.curlftpfs", "fuse.dbfs",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.mountpoint-s3",
    "fuse.rclone", "fuse.s3fs", "fuse.s3ql", "fuse.sshfs",
))
# fmt: on
_LOCAL_HINT = (
    "Keep the store on a local disk (ext4, xfs, btrfs, overlay) of the broker's host and reach it from "
    "elsewhere through `ledger serve`"
)


def create_file(path: Path) -> int:
    """Create an empty file for reading and writing. Raises AlreadyExists if the name is taken."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, FILE_MODE)
    except FileExistsError:
        raise AlreadyExists(f"{path} exists already", hint="A segment's name is never reused") from None
    except OSError as error:
        raise_if_full(error, f"{path} cannot be created")
        raise


def open_or_create(path: Path) -> int:
    """Open a small file to be written in place, and create it if it is missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, FILE_MODE)


def open_file(path: Path, *, writable: bool = False) -> int:
    """Open an existing file. Raises NotFound naming it. The kernel refuses a symbolic link (ELOOP)."""
    try:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | _FLAGS)
    except FileNotFoundError:
        raise NotFound(f"{path} is not there", hint="Restore it, or look whether the store was moved") from None


@contextmanager
def opened(path: Path, *, writable: bool = False) -> Iterator[int]:
    """Open a file as `open_file`, and close it at the end."""
    fd = open_file(path, writable=writable)
    try:
        yield fd
    finally:
        os.close(fd)


def hold(fd: int) -> None:
    """Lock a file as being written by this process while `fd` is open; the kernel releases the lock with the process.

    Raises BlockingIOError if another process writes it.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_from_writer(path: Path, beside: Path) -> bool:
    """Take the files of these names away from another writer. Return whether there could have been one.

    A writer locks the first file and writes both. A live writer, suspended or slow, keeps its files, which then have no
    names. The names go to copies, which are durable on return. The second file may be missing.
    """
    with opened(path) as source:
        try:
            hold(source)
        except BlockingIOError:
            # The locked file last: after a crash before that, all of this is repeated.
            with suppress(NotFound), opened(beside) as second:
                _replace_by_copy(second, beside)
            sync_directory(path.parent)
            _replace_by_copy(source, path)
        else:
            return False
    sync_directory(path.parent)
    return True


def make_directory(path: Path) -> None:
    """Create a private directory. An existing one is unchanged."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def preallocate(fd: int, offset: int, length: int, path: Path | None = None) -> None:
    """Reserve space, which reads as zeros. Raises Unavailable if there is none. The file grows."""
    if length <= 0:
        return
    try:
        os.posix_fallocate(fd, offset, length)
    except OSError as error:
        raise_if_full(error, f"{path or f'file {fd}'} cannot grow to {offset + length} bytes")
        raise


def sync_data(fd: int) -> None:
    """Return when all written data, and the metadata to find it, are on the device."""
    os.fdatasync(fd)


def begin_sync(fd: int, offset: int = 0, length: int = 0) -> None:
    """Make the kernel start write-back of a file's pages, by default of all; returns without waiting for them.

    This is a hint: it promises nothing and reports no error.
    """
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, ctypes.c_int64(offset), ctypes.c_int64(length), _RANGE_WRITE)


def sync_directory(path: Path) -> None:
    """Make created, renamed and deleted names of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_names_above(path: Path) -> None:
    """Make the path to a directory durable, because it is unknown which process created its parents, and when.

    Ends at the mount point: another file system existed before. A directory that may not be read is left out.
    """
    device = path.stat().st_dev
    for folder in path.parents:
        if folder.stat().st_dev != device:
            break
        with suppress(PermissionError):
            sync_directory(folder)


def write_all(
    fd: int, buffers: Sequence[ReadableBuffer], offset: int, path: Path | None = None, length: int = -1
) -> int:
    """Write buffers one after another from `offset`. Return the bytes written, which are all of them.

    A known total `length` saves the inspection of each buffer.
    """
    start = offset
    try:
        if length >= 0 and len(buffers) <= IOV_MAX:
            return _write_batch(fd, buffers, offset, length) - start
        for first in range(0, len(buffers), IOV_MAX):
            batch = buffers[first : first + IOV_MAX]
            offset = _write_batch(fd, batch, offset, sum(memoryview(buffer).nbytes for buffer in batch))
    except OSError as error:
        raise_if_full(error, f"{path or f'file {fd}'} cannot be written at {offset}")
        raise
    return offset - start


def read_exact(fd: int, length: int, offset: int) -> bytes:
    """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
    target = bytearray(length)
    return bytes(memoryview(target)[: read_into(fd, memoryview(target), offset)])


def read_into(fd: int, target: memoryview, offset: int) -> int:
    """Fill `target` from `offset`. Return the bytes read, fewer than requested only at the end of the file."""
    done = 0
    while done < len(target):
        got = os.preadv(fd, [target[done:]], offset + done)
        if not got:
            break
        done += got
    return done


def mapped(fd: int) -> memoryview:
    """Map a whole file for reading, until its last view is released. The file must not shrink meanwhile."""
    size = os.fstat(fd).st_size
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


@contextmanager
def mapping(fd: int) -> Iterator[memoryview]:
    """Map a file as `mapped`, and unmap it at the end, unless a raised error references a part of it."""
    view = mapped(fd)
    held = view.obj
    try:
        yield view
    finally:
        with suppress(BufferError):
            view.release()
            if isinstance(held, mmap.mmap):
                held.close()


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of `[start, end)` that may contain data. Known holes of preallocated space are left out."""
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # only holes up to the end
                raise
            return
        stop = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        if start < stop:
            yield start, stop
        start = stop


def raise_if_full(error: OSError, what: str) -> None:
    """Raise Unavailable for "no space left"; return for any other error."""
    if error.errno in _FULL:
        raise Unavailable(f"{what}: {error.strerror}", hint="Free space on the store's disk; retry") from error


def require_suitable(directory: Path, *, mounts: str | None = None) -> None:
    """Refuse a directory whose file system cannot keep a store's guarantees.

    Network file systems are refused by type, because another machine does their locks and syncs. Other file systems are
    tried: space can be reserved, data synced, a lock excludes, a directory can be synced. `mounts` replaces the text of
    /proc/mounts.
    """
    text = Path("/proc/mounts").read_text(encoding="utf-8") if mounts is None else mounts
    point, kind = mount_of(directory.resolve(), text)
    if kind in NETWORK_TYPES:
        raise Refused(f"{directory} lies on {point}, a network file system ({kind})", hint=_LOCAL_HINT)
    try:
        _probe(directory)
    except OSError as error:
        raise_if_full(error, f"{directory} cannot take a store")
        raise Refused(f"{directory} on {point} ({kind}) cannot keep a store: {error}", hint=_LOCAL_HINT) from error


def _replace_by_copy(source: int, path: Path) -> None:
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    target = create_file(scratch)
    try:
        offset = 0
        while piece := os.pread(source, _COPY_BYTES, offset):
            offset += write_all(target, [piece], offset, scratch)
        os.fsync(target)
    finally:
        os.close(target)
    scratch.rename(path)


def _write_batch(fd: int, batch: Sequence[ReadableBuffer], offset: int, wanted: int) -> int:
    written = os.pwritev(fd, batch, offset)
    offset += written
    while written < wanted:
        batch = _after(batch, written)
        wanted -= written
        written = os.pwritev(fd, batch, offset)
        if not written:
            raise OSError(errno.EIO, f"wrote nothing of {wanted} bytes at {offset}")
        offset += written
    return offset


def _after(buffers: Sequence[ReadableBuffer], skip: int) -> list[memoryview]:
    """Return the rest of `buffers` after their first `skip` bytes."""
    left: list[memoryview] = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if skip < view.nbytes:
            left.append(view[skip:])
        skip = max(0, skip - view.nbytes)
    return left


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """Return the deepest mount point that contains `path`, and its type. A later mount covers an earlier one."""
    found, kind = "/", "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")  # a space is written \040
        if path.is_relative_to(point) and len(point) >= len(found):
            found, kind = point, fields[2]
    return found, kind


def _probe(directory: Path) -> None:
    """Try the operations that a store relies on. If the file system cannot reserve space, the C library writes it
    instead.
    """
    path = directory / f".probe-{os.getpid()}-{id(directory):x}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, FILE_MODE)
    try:
        os.posix_fallocate(fd, 0, 4096)
        os.pwrite(fd, b"probe", 0)
        os.fdatasync(fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_locked(path):
            raise OSError(errno.ENOLCK, "a second lock was granted beside an exclusive one")
        sync_directory(directory)
    finally:
        path.unlink()
        os.close(fd)


def _is_locked(path: Path) -> bool:
    second = os.open(path, os.O_RDWR | _FLAGS)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(second)
    return False
