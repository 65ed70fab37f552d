"""File system: the log's calls to the operating system for files, space and durability.

Rules
- A file is created once (`O_EXCL`), never through a symbolic link (`O_NOFOLLOW`), readable by its owner only (0600);
  directories are 0700.
- Written data are durable once `sync_data` has returned. A file's name is durable once `sync_directory` of its
  directory has returned.
- A full disk raises `Unavailable` with the path and the offset. Every other failure of the device stays an `OSError`,
  so that a caller can distinguish a failing device from a full disk.
- `write_all` writes every byte or raises.
- After `skip_syncs`, the disk is a cache of a bucket, which has the durable copy. Then no call waits for the device.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.location import bucket_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_COPY_BYTES = 1024 * 1024
IOV_MAX = os.sysconf("SC_IOV_MAX")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
# SYNC_FILE_RANGE_WRITE starts the transfer to the device. The next sync reports an error of the device.
_RANGE_WRITE = 2
# Only Linux has this call. Other systems cannot write a log, but a reader there imports this module.
_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
# FALLOC_FL_KEEP_SIZE reserves space behind the end of a file. `spread_extents` explains its use.
_FALLOCATE = getattr(ctypes.CDLL(None), "fallocate", None)
_KEEP_SIZE = 1
_FAR_OFFSET, _FAR_BLOCKS, _FAR_BYTES = 1 << 40, 4, 4096
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_HINT = "Free space on the store's disk; retry"
_CACHE_HINT = (
    "Retry: the broker deletes local copies of uploaded segments. If the disk stays full, free space on the store's "
    "disk, or set a smaller bucketCacheBytes and start the broker again"
)
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
        raise_if_full(error, f"{path} cannot be created", path)
        raise


def replace_file(path: Path, data: ReadableBuffer) -> None:
    """Replace a small file as a whole: readers see the old content or the new content. Durable on return."""
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = create_file(scratch)
    try:
        write_all(fd, [data], 0, scratch)
        os.fsync(fd)
    finally:
        os.close(fd)
    scratch.rename(path)
    sync_directory(path.parent)


def open_or_create(path: Path) -> int:
    """Open a small file to be written in place, and create it if it is missing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, FILE_MODE)


def open_file(path: Path, *, writable: bool = False) -> int:
    """Open an existing file. Raises NotFound naming it. The kernel refuses a symbolic link (ELOOP)."""
    try:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | _FLAGS)
    except FileNotFoundError:
        raise NotFound(f"{path} is missing", hint="Restore it, or check whether the store was moved") from None


def open_below(path: Path, depth: int) -> int:
    """Open an existing file for writing. The kernel refuses a link among the last `depth` parts of its path.

    Also refuses a link in the folder that contains these parts.
    """
    folder = -1
    try:
        for name in (str(path.parents[depth - 1]), *path.parts[-depth:-1]):
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=None if folder < 0 else folder)
            folder, outer = inner, folder
            if outer >= 0:
                os.close(outer)
        return os.open(path.name, os.O_RDWR | _FLAGS, dir_fd=folder)
    except FileNotFoundError:
        raise NotFound(f"{path} is missing", hint="Restore it, or check whether the store was moved") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise Refused(f"{path} leads through a link", hint="A store contains no links: remove it") from None
    finally:
        if folder >= 0:
            os.close(folder)


@contextmanager
def opened(path: Path, *, writable: bool = False) -> Iterator[int]:
    """Open a file as `open_file` does, and close it at the end."""
    fd = open_file(path, writable=writable)
    try:
        yield fd
    finally:
        os.close(fd)


def hold(fd: int) -> None:
    """Lock a file for writing by this process until `fd` is closed or the process ends.

    Raises BlockingIOError if another process has the lock.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_from_writer(path: Path, beside: Path) -> bool:
    """Replace two files by copies if another process still has them open for writing.

    Returns whether another process had them open.

    The writer of both files has the lock of the first (`hold`). The writer may be suspended or slow, and write later.
    Such a write reaches only the old files, which have no name after the call. The copies are durable on return. The
    file `beside` may be missing.
    """
    with opened(path) as source:
        try:
            hold(source)
        except BlockingIOError:
            # The locked file is replaced last. After an earlier crash its lock is still taken, and all steps are
            # repeated.
            with suppress(NotFound), opened(beside) as second:
                _replace_by_copy(second, beside)
            sync_directory(path.parent)
            _replace_by_copy(source, path)
        else:
            return False
    sync_directory(path.parent)
    return True


def make_directory(path: Path) -> None:
    """Create a private directory. An existing directory stays unchanged. Nobody else can write to new parents."""
    for parent in reversed(path.parents):
        with suppress(FileExistsError, PermissionError, IsADirectoryError):
            if not parent.exists():
                parent.mkdir(mode=0o755)  # not the mode of `parents=True`, with which umask 000 lets everybody write
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def preallocate(fd: int, offset: int, length: int, path: Path | None = None) -> None:
    """Reserve space for a file, which grows to `offset + length`. New bytes read as zeros.

    Raises Unavailable if the disk is full.
    """
    if length <= 0:
        return
    try:
        os.posix_fallocate(fd, offset, length)
    except OSError as error:
        raise_if_full(error, f"{path or f'file {fd}'} cannot grow to {offset + length} bytes", path)
        raise


def spread_extents(fd: int) -> None:
    """Reserve four separate blocks far behind the end of a file, which keeps its length. A truncation releases them.

    Reason: the file system ext4 stores the places of a file's data as *extents*, ranges of blocks of the disk. The
    file's own record, its inode, has room for four extents. More extents need a block of their own. If a file has four,
    a sync of reserved space allocates this block and frees it again. If the disk is mounted with the option `discard`,
    each sync then waits until the disk has erased the freed block. With four more extents the block stays. The call is
    a hint, and reports no error.
    """
    if _FALLOCATE is None:
        return
    for number in range(_FAR_BLOCKS):
        offset = _FAR_OFFSET + 2 * number * _FAR_BYTES
        _FALLOCATE(fd, _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(_FAR_BYTES))


_skips_syncs = False


def skip_syncs() -> None:
    """Turn all syncs of this process into calls that do nothing. Called by the broker of a store in a bucket."""
    global _skips_syncs  # noqa: PLW0603 — a process serves one store, so the syncs of all its files are skipped or none
    _skips_syncs = True


def sync_data(fd: int) -> None:
    """Wait until all written data, and the file's length, are on the device."""
    if not _skips_syncs:
        os.fdatasync(fd)


def sync_result(fd: int) -> OSError | None:
    """Sync a file on the calling thread. Return the error, or None. Any error counts as a failed sync."""
    try:
        sync_data(fd)
    except OSError as error:
        return error
    except Exception as error:  # noqa: BLE001 — returned to the owner of the file
        return OSError(errno.EIO, f"the result of the sync is unknown: {error!r}")
    return None


def begin_sync(fd: int, offset: int = 0, length: int = 0) -> None:
    """Ask the kernel to start the transfer of a range of a file to the device, by default of the whole file.

    The call is a hint: it does not wait, nothing is durable after it, and it reports no error.
    """
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, ctypes.c_int64(offset), ctypes.c_int64(length), _RANGE_WRITE)


def sync_directory(path: Path) -> None:
    """Make created, renamed and deleted names of a directory durable."""
    if _skips_syncs:
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_names_above(path: Path) -> None:
    """Make the names of a directory and of its parents durable. Another process may have created a parent just before.

    Stops at the mount point, because a mounted directory existed before. Skips a directory that this user cannot read.
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
    """Write all buffers one after another from `offset`. Return the number of bytes.

    A caller that knows the total `length` passes it, which saves the sum over the buffers.
    """
    start = offset
    try:
        if length >= 0 and len(buffers) <= IOV_MAX:
            return _write_batch(fd, buffers, offset, length) - start
        for first in range(0, len(buffers), IOV_MAX):
            batch = buffers[first : first + IOV_MAX]
            offset = _write_batch(fd, batch, offset, sum(memoryview(buffer).nbytes for buffer in batch))
    except OSError as error:
        raise_if_full(error, f"{path or f'file {fd}'} cannot be written at {offset}", path)
        raise
    return offset - start


def read_exact(fd: int, length: int, offset: int) -> bytes:
    """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
    data = os.pread(fd, length, offset)  # one read returns all bytes, except at the end of the file or after a signal
    while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
        data += more
    return data


def read_into(fd: int, target: memoryview, offset: int) -> int:
    """Fill `target` from `offset`.

    Return the number of bytes read, smaller than `target` only at the end of the file.
    """
    done = 0
    while done < len(target):
        got = os.preadv(fd, [target[done:]], offset + done)
        if not got:
            break
        done += got
    return done


def mapped(fd: int) -> memoryview:
    """Map a whole file into memory, for reading, until its last view is released. The file must not shrink before."""
    size = os.fstat(fd).st_size
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


@contextmanager
def mapping(fd: int) -> Iterator[memoryview]:
    """Map a file as `mapped` does, and unmap it at the end. It stays mapped if a raised error refers to its bytes."""
    view = mapped(fd)
    file_map = view.obj
    try:
        yield view
    finally:
        with suppress(BufferError):
            view.release()
            if isinstance(file_map, mmap.mmap):
                file_map.close()


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of `[start, end)` that can contain data.

    Skips holes: space that is reserved and never written.
    """
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data up to the end of the file
                raise
            return
        stop = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        if start < stop:
            yield start, stop
        start = stop


def raise_if_full(error: OSError, what: str, path: Path | None = None) -> None:
    """Raise Unavailable if `error` is a full disk or an exceeded disk quota; return for any other error."""
    if error.errno in _FULL:
        is_cache = path is not None and any(map(bucket_of, path.parents))
        raise Unavailable(f"{what}: {error.strerror}", hint=_CACHE_HINT if is_cache else _FULL_HINT) from error


def require_suitable(directory: Path, *, mounts: str | None = None) -> None:
    """Refuse a directory whose file system cannot keep a store's guarantees.

    A network file system is refused by its type, because another machine performs its locks and syncs. Any other file
    system is tested with a probe file. The probe reserves space, syncs the file and its directory, and takes an
    exclusive lock. `mounts` replaces the text of /proc/mounts.
    """
    text = Path("/proc/mounts").read_text(encoding="utf-8") if mounts is None else mounts
    point, kind = mount_of(directory.resolve(), text)
    if kind in NETWORK_TYPES:
        raise Refused(f"{directory} lies on {point}, a network file system ({kind})", hint=_LOCAL_HINT)
    try:
        _probe(directory)
    except OSError as error:
        raise_if_full(error, f"{directory} cannot keep a store")
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
    """Write `wanted` bytes, at most `IOV_MAX` buffers. Return the offset after the last byte."""
    written = os.pwritev(fd, batch, offset)
    offset += written
    while written < wanted:
        batch = _after(batch, written)
        wanted -= written
        written = os.pwritev(fd, batch, offset)
        if not written:
            raise OSError(errno.EIO, f"pwritev wrote 0 of {wanted} bytes at {offset}")
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
    """Return the deepest mount point that contains `path`, and its type. A later mount hides an earlier one."""
    found, kind = "/", "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")  # the kernel writes a space as \040
        if path.is_relative_to(point) and len(point) >= len(found):
            found, kind = point, fields[2]
    return found, kind


def _probe(directory: Path) -> None:
    """Try the operations that a store relies on. Raises OSError if an operation fails.

    On a file system that cannot reserve space, `posix_fallocate` writes zeros instead and succeeds.
    """
    path = directory / f".probe-{os.getpid()}-{id(directory):x}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, FILE_MODE)
    try:
        os.posix_fallocate(fd, 0, 4096)
        os.pwrite(fd, b"probe", 0)
        os.fdatasync(fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_locked(path):
            raise OSError(errno.ENOLCK, "a second lock was granted beside an exclusive lock")
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
