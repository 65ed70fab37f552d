"""Upload of one file to one object, with retries: in one request, or in parallel parts with resumption.

Rules
- A file of one part is put in one request. Reason: an upload in parts needs five more requests.
- The kernel sends the bytes from a mapping of the file. They are not copied to this process's memory.
- A part that fails with Unavailable is retried with growing pauses.
- An unfinished upload of the same key is resumed. A part is reused if its number and size are right. This is safe,
  because all uploads with this key are of the same sealed file.
- The object becomes visible when all bytes are uploaded. Then its length is compared with the file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.objects.object_store import ObjectStore, Upload, UploadedPart
from pyspark_ledger.ledger.objects.retry import retry
from pyspark_ledger.ledger.tiering.offloader import OffloadCallbacks

# A file with at most this number of parts is put in one request.
_PARTS_PUT_WHOLE = 1


class FilePart(NamedTuple):
    """Part `number` of an upload: bytes `[offset, offset + size)` of the file."""

    number: int
    offset: int
    size: int


def upload_file(
    store: ObjectStore,
    key: str,
    metadata: Mapping[str, str],
    path: Path,
    parts: Sequence[FilePart],
    *,
    threads: int,
    callbacks: OffloadCallbacks,
) -> None:
    """Upload a file as one object. Returns at once if the object exists with the file's length.

    Raises Unavailable if all retries failed, Refused if the upload was cancelled, Corrupt if the object's length
    differs from the file's.
    """
    size = sum(part.size for part in parts)
    if _is_uploaded(store, key, size):
        callbacks.progress(size)
        return
    with disk.opened(path) as fd, disk.mapping(fd) as data:
        if len(parts) <= _PARTS_PUT_WHOLE:
            _require_wanted(store, key, callbacks)
            retry(lambda: store.put(key, [data[:size]], metadata))
            callbacks.progress(size)
        else:
            _upload_parts(store, key, metadata, data, parts, threads=threads, callbacks=callbacks)
    found = retry(lambda: store.head(key)).size
    if found != size:
        raise Corrupt(f"{store.address}/{key} has {found} bytes, {path} has {size}")


def _upload_parts(
    store: ObjectStore,
    key: str,
    metadata: Mapping[str, str],
    data: memoryview,
    parts: Sequence[FilePart],
    *,
    threads: int,
    callbacks: OffloadCallbacks,
) -> None:
    """Upload the parts in parallel, and complete the object. Parts of an earlier attempt are reused."""
    upload, existing = _resume_or_begin(store, key, metadata)
    by_number = {part.number: part for part in existing}
    uploaded = {
        part.number: existing_part
        for part in parts
        if (existing_part := by_number.get(part.number)) and existing_part.size == part.size
    }
    callbacks.progress(sum(part.size for part in uploaded.values()))
    with ThreadPoolExecutor(threads, thread_name_prefix="upload") as pool:
        remaining = [part for part in parts if part.number not in uploaded]
        in_flight: dict[Future[UploadedPart], FilePart] = {}
        try:
            while remaining or in_flight:
                _require_wanted(store, key, callbacks)
                while remaining and len(in_flight) < threads:
                    part = remaining.pop(0)
                    in_flight[pool.submit(_put, store, upload, part, data)] = part
                done, _ = wait(in_flight, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    uploaded[in_flight.pop(future).number] = future.result()
                callbacks.progress(sum(part.size for part in uploaded.values()))
        finally:
            for future in in_flight:
                future.cancel()
    ordered = [uploaded[number] for number in sorted(uploaded)]
    retry(lambda: store.complete(upload, ordered))
    # If the reply to the start of an upload was lost, a second upload was begun. Abort the unused upload.
    for leftover in retry(lambda: list(store.uploads(key))):
        if leftover.key == key:
            retry(lambda leftover=leftover: store.abort(leftover))  # type: ignore[misc]


def _require_wanted(store: ObjectStore, key: str, callbacks: OffloadCallbacks) -> None:
    if callbacks.cancelled():
        raise Refused(f"the upload of {store.address}/{key} was cancelled")


def _put(store: ObjectStore, upload: Upload, part: FilePart, data: memoryview) -> UploadedPart:
    content = data[part.offset : part.offset + part.size]
    return retry(lambda: store.put_part(upload, part.number, [content], part.size))


def _is_uploaded(store: ObjectStore, key: str, size: int) -> bool:
    try:
        return retry(lambda: store.head(key)).size == size
    except NotFound:
        return False


def _resume_or_begin(store: ObjectStore, key: str, metadata: Mapping[str, str]) -> tuple[Upload, list[UploadedPart]]:
    """Return an unfinished upload of this key with its parts. If there is none, begin a new upload."""
    for upload in retry(lambda: list(store.uploads(key))):
        if upload.key == key:
            return upload, retry(lambda upload=upload: store.parts(upload))  # type: ignore[misc]
    return retry(lambda: store.begin_upload(key, metadata)), []
