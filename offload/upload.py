"""One file of parts into one object: several at once, each again when it fails, none twice that is there already.

Rules
- Bytes go from the file to the connection as they are read; memory is bounded by the connections.
- A part that fails for now is put again, with growing pauses. An upload of the same key that was begun before is gone
  on with: parts of the right size and number are kept, because the key names one attempt over one sealed file.
- Nothing is visible before all parts are there and the object has the length of the file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple, TypeVar

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.tiering.offloader import OffloadCallbacks
from pyspark_ledger.offload.storage.object_store import ObjectStore, Upload, UploadedPart

_ATTEMPTS = 4
_PAUSE_MS, _PAUSE_MS_MAX = 200, 10_000
T = TypeVar("T")


class FilePart(NamedTuple):
    """Bytes `[offset, offset + size)` of a file as part `number`."""

    number: int
    offset: int
    size: int


class FileRange(io.RawIOBase):
    """A part of an open file as a stream. The position is its own, so that many may share the file."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        super().__init__()
        self._fd = fd
        self._offset = offset
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """It is: a part may have to be sent again."""
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = min(max(start + offset, 0), self._size)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = self._size - self._at
        data = os.pread(self._fd, left if size is None or size < 0 else min(size, left), self._offset + self._at)
        self._at += len(data)
        return data


def upload_file(
    store: ObjectStore,
    key: str,
    metadata: Mapping[str, str],
    path: Path,
    parts: Sequence[FilePart],
    *,
    threads: int,
    told: OffloadCallbacks,
) -> None:
    """Put a whole file as one object; raises Unavailable when that fails for now."""
    size = sum(part.size for part in parts)
    if _is_there(store, key, size):
        told.progress(size)
        return
    upload, there = _begun(store, key, metadata)
    kept = {part.number: part for part in there}
    put = {part.number: one for part in parts if (one := kept.get(part.number)) and one.size == part.size}
    told.progress(sum(part.size for part in put.values()))
    with disk.opened(path) as fd, ThreadPoolExecutor(threads, thread_name_prefix="upload") as pool:
        left = [part for part in parts if part.number not in put]
        waiting: dict[Future[UploadedPart], FilePart] = {}
        try:
            while left or waiting:
                if told.cancelled():
                    raise Refused(f"the upload of {store.address}/{key} was told to stop")
                while left and len(waiting) < threads:
                    part = left.pop(0)
                    waiting[pool.submit(_put, store, upload, part, fd)] = part
                done, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    put[waiting.pop(future).number] = future.result()
                told.progress(sum(part.size for part in put.values()))
        finally:
            for future in waiting:
                future.cancel()
    listed = [put[number] for number in sorted(put)]
    retry(lambda: store.complete(upload, listed))
    for other in retry(lambda: list(store.uploads(key))):  # begun by a request whose answer was lost
        if other.key == key:
            retry(lambda other=other: store.abort(other))  # type: ignore[misc]
    found = retry(lambda: store.head(key)).size
    if found != size:
        raise Corrupt(f"{store.address}/{key} has {found} bytes, {path} has {size}")


def retry(action: Callable[[], T]) -> T:
    """Do it, and some more times while it fails for now, with growing pauses."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return action()
        except Unavailable:
            pause(min(_PAUSE_MS << attempt, _PAUSE_MS_MAX))
    return action()


def _put(store: ObjectStore, upload: Upload, part: FilePart, fd: int) -> UploadedPart:
    return retry(lambda: store.put_part(upload, part.number, FileRange(fd, part.offset, part.size), part.size))


def _is_there(store: ObjectStore, key: str, size: int) -> bool:
    try:
        return retry(lambda: store.head(key)).size == size
    except NotFound:
        return False


def _begun(store: ObjectStore, key: str, metadata: Mapping[str, str]) -> tuple[Upload, list[UploadedPart]]:
    """The upload of this key that somebody began, with its parts, or a new one."""
    for upload in retry(lambda: list(store.uploads(key))):
        if upload.key == key:
            return upload, retry(lambda upload=upload: store.parts(upload))  # type: ignore[misc]
    return retry(lambda: store.begin_upload(key, metadata)), []
