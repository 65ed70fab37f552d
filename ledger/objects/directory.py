"""Object store in a local directory: for tests, small installations, and copies of a bucket.

    <directory>/<key>               the object's bytes
    <directory>/<key>.meta.json     the object's user metadata and size, written before the object
    <directory>/.uploads/<id>/      a multipart upload: `key.json`, and each part under its number

Rules
- An object is written to a scratch file, synced, and then renamed. So an incomplete object is never visible.
- A listing skips hidden names and metadata files.
- An object without a metadata file has no user metadata. A metadata file without an object is ignored.
- While `put` and `complete` rename an object, they hold an exclusive lock on the directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, NotFound, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.objects.object_store import (
    PART_BYTES_MIN,
    PARTS_MAX,
    BegunUpload,
    FetchedObject,
    ListedObject,
    ObjectHead,
    Upload,
    UploadedPart,
    require_key,
    require_metadata,
)

_SIDECAR = ".meta.json"
_UPLOADS = ".uploads"
_PIECE = 1024 * 1024


class ObjectSidecar(msgspec.Struct, frozen=True):
    """Content of a metadata file. Fields are named as in the metadata files of Pulsar's filesystem offloader."""

    key: str = ""
    size: int = -1
    etag: str = ""
    userMetadata: dict[str, str] = {}  # noqa: N815 — see the docstring


_SIDECAR_DECODER = msgspec.json.Decoder(ObjectSidecar)


class DirectoryStore:
    """Object store in one directory. The first write creates the directory."""

    def __init__(self, directory: Path, *, part_bytes_min: int = PART_BYTES_MIN) -> None:
        self._directory = directory
        self._durable_folders: set[Path] = set()  # folders whose parent directories this process has synced
        self._part_bytes_min = part_bytes_min

    @property
    def address(self) -> str:
        return self._directory.as_uri()

    def put(
        self,
        key: str,
        data: bytes | Sequence[Buffer],
        metadata: Mapping[str, str] | None = None,
        *,
        only_new: bool = False,
        if_match: str = "",
    ) -> str:
        path, found = self._path(key), require_metadata(metadata, key)
        digest = hashlib.md5(usedforsecurity=False)
        with self._scratch() as scratch:
            size = _write_file(scratch, _digested(_pieces(data), digest.update))
            etag = digest.hexdigest()
            with self._exclusive_lock():
                self._require_condition(path, key, only_new=only_new, if_match=if_match)
                self._rename_into_place(scratch, path, ObjectSidecar(key, size, etag, found))
        return etag

    def get(self, key: str, most: int) -> FetchedObject:
        head = self.head(key)
        if head.size > most:
            raise Refused(f"{self.address}/{key} has {head.size} bytes, at most {most} were expected")
        return FetchedObject(bytes(memoryview(self.get_range(key, 0, head.size))), head)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        with self._opened(key) as fd:
            data = disk.read_exact(fd, length, start)
            if len(data) != length:
                size = os.fstat(fd).st_size
                raise Corrupt(
                    f"{self.address}/{key} has {size} bytes, bytes {start} to {start + length} were requested"
                )
        return data

    def head(self, key: str) -> ObjectHead:
        with self._shared_lock(), self._opened(key) as fd:
            status, sidecar = os.fstat(fd), self._sidecar(key)
        if sidecar.size not in (-1, status.st_size):
            raise Corrupt(f"{self.address}/{key} has {status.st_size} bytes, its metadata say {sidecar.size}")
        etag = sidecar.etag or f"{status.st_mtime_ns:x}-{status.st_size:x}"
        modified_ms = status.st_mtime_ns // 1_000_000
        return ObjectHead(key, status.st_size, etag.strip('"'), sidecar.userMetadata, modified_ms=modified_ms)

    def objects(self, prefix: str = "", *, after: str = "") -> Iterator[ListedObject]:
        found: list[str] = []
        for folder, folders, names in os.walk(self._directory, onerror=_require_gone):
            folders[:] = [name for name in folders if not name.startswith(".")]
            base = os.path.relpath(folder, self._directory)
            keys = [name if base == "." else f"{base}/{name}" for name in names if _is_object(name)]
            found += [key for key in keys if key.startswith(prefix) and key > after]
        for key in sorted(found):
            try:
                status = (self._directory / key).stat()
            except OSError as error:
                _require_gone(error)
                continue
            yield ListedObject(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. The metadata file of an object is deleted after the object."""
        for key in keys:
            path = self._path(key)
            path.unlink(missing_ok=True)
            _sidecar_of(path).unlink(missing_ok=True)

    def begin_upload(self, key: str, metadata: Mapping[str, str] | None = None) -> Upload:
        self._path(key)
        upload = Upload(key, new_id())
        folder = self._uploads / upload.upload_id
        disk.make_directory(folder)
        sidecar = ObjectSidecar(key, userMetadata=require_metadata(metadata, key))
        _write_file(folder / "key.json", [msgspec.json.encode(sidecar)])
        return upload

    def put_part(self, upload: Upload, number: int, data: bytes | Sequence[Buffer], size: int) -> UploadedPart:
        if not 1 <= number <= PARTS_MAX:
            raise Refused(f"part {number} of {upload.key!r} is outside 1 to {PARTS_MAX}")
        folder = self._upload(upload)
        digest, written = hashlib.md5(usedforsecurity=False), 0
        with self._scratch() as scratch:
            with scratch.open("xb") as file:
                for piece in _pieces(data):
                    digest.update(piece)
                    written += file.write(piece)
            if written != size:
                raise Refused(f"part {number} of {upload.key!r} has {written} bytes, {size} were announced")
            scratch.rename(folder / f"{number:05}-{digest.hexdigest()}")
        return UploadedPart(number, digest.hexdigest(), size)

    def parts(self, upload: Upload) -> list[UploadedPart]:
        found: dict[int, tuple[int, UploadedPart]] = {}
        for path in self._upload(upload).glob("[0-9]*-*"):
            number, _, etag = path.name.partition("-")
            status = path.stat()
            part = (status.st_mtime_ns, UploadedPart(int(number), etag, status.st_size))
            found[int(number)] = max(part, found.get(int(number), part))
        return [found[number][1] for number in sorted(found)]

    def complete(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        path = self._path(upload.key)
        folder = self._uploads / upload.upload_id
        if not folder.exists() and path.exists() and path.stat().st_size == sum(part.size for part in parts):
            return  # completed by an earlier call
        folder = self._upload(upload)
        self._require_parts(upload, parts)
        sidecar = _SIDECAR_DECODER.decode((folder / "key.json").read_bytes())
        size, etags = sum(part.size for part in parts), "".join(part.etag for part in parts)
        etag = f"{hashlib.md5(bytes.fromhex(etags), usedforsecurity=False).hexdigest()}-{len(parts)}"
        files = [folder / f"{part.number:05}-{part.etag}" for part in parts]
        with self._scratch() as scratch:
            _write_file(scratch, (piece for file in files for piece in _file_pieces(file)))
            with self._exclusive_lock():
                self._rename_into_place(scratch, path, ObjectSidecar(upload.key, size, etag, sidecar.userMetadata))
        shutil.rmtree(folder)

    def abort(self, upload: Upload) -> None:
        shutil.rmtree(self._uploads / upload.upload_id, ignore_errors=True)

    def copy(self, source: str, key: str, metadata: Mapping[str, str] | None = None) -> None:
        with self._opened(source) as fd, disk.mapping(fd) as data:
            self.put(key, [data], metadata)

    def uploads(self, prefix: str = "") -> Iterator[Upload]:
        return (found.upload for found in self.begun_uploads(prefix))

    def begun_uploads(self, prefix: str = "") -> Iterator[BegunUpload]:
        if not self._uploads.is_dir():
            return
        for folder in sorted(self._uploads.iterdir()):
            with suppress(FileNotFoundError, NotADirectoryError):
                sidecar = _SIDECAR_DECODER.decode((folder / "key.json").read_bytes())
                if sidecar.key.startswith(prefix):
                    begun_ms = (folder / "key.json").stat().st_mtime_ns // 1_000_000
                    yield BegunUpload(Upload(sidecar.key, folder.name), begun_ms)

    def close(self) -> None:
        """Do nothing, because the store has no connection."""

    @property
    def _uploads(self) -> Path:
        return self._directory / _UPLOADS

    def _path(self, key: str) -> Path:
        if any(part.startswith(".") for part in require_key(key).split("/")) or key.endswith(_SIDECAR):
            raise Refused(f"object key {key!r} cannot be stored in a directory: it is hidden or ends with {_SIDECAR!r}")
        return self._directory / key

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Yield the path of a scratch file. It is deleted at the end of the context, unless the caller renamed it."""
        disk.make_directory(self._uploads)
        scratch = self._uploads / f".{new_id()}"
        try:
            yield scratch
        finally:
            scratch.unlink(missing_ok=True)

    def _upload(self, upload: Upload) -> Path:
        folder = self._uploads / upload.upload_id
        if not folder.is_dir():
            raise NotFound(f"{self.address} has no upload {upload.upload_id} of {upload.key!r}")
        return folder

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"there is no object {self.address}/{key}") from None
        try:
            yield fd
        except IsADirectoryError:
            raise NotFound(f"there is no object {self.address}/{key}") from None
        finally:
            os.close(fd)

    def _sidecar(self, key: str) -> ObjectSidecar:
        path = _sidecar_of(self._path(key))
        try:
            return _SIDECAR_DECODER.decode(path.read_bytes())
        except FileNotFoundError:
            return ObjectSidecar()
        except JSON_FAULTS as wrong:
            raise Corrupt(f"{path}: {json_fault(wrong)}") from wrong

    @contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        disk.make_directory(self._uploads)
        fd = disk.open_or_create(self._uploads / ".lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # the lock belongs to this open file, so it excludes other threads too
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _shared_lock(self) -> Iterator[None]:
        """Hold a shared lock, so that no object is replaced. A read-only directory needs no lock: it has no writer."""
        try:
            fd = os.open(self._uploads / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            yield
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def _require_condition(self, path: Path, key: str, *, only_new: bool, if_match: str) -> None:
        if only_new and path.exists():
            raise AlreadyExists(f"{self.address}/{key} exists already")
        if if_match:
            found = self._sidecar(key).etag if path.exists() else "none"
            if found != if_match:
                raise AlreadyExists(f"{self.address}/{key} has etag {found}, {if_match} was expected")

    def _rename_into_place(self, scratch: Path, path: Path, sidecar: ObjectSidecar) -> None:
        disk.make_directory(path.parent)
        with self._scratch() as sidecar_scratch:
            _write_file(sidecar_scratch, [msgspec.json.encode(sidecar)])
            sidecar_scratch.rename(_sidecar_of(path))
        scratch.rename(path)
        disk.sync_directory(path.parent)
        if path.parent not in self._durable_folders:
            # Once for each folder, because another process or upload may have created the folder without syncing it.
            disk.sync_names_above(path.parent)
            self._durable_folders.add(path.parent)

    def _require_parts(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        existing = {(part.number, part.etag): part.size for part in self.parts(upload)}
        for before, part in zip((None, *parts), parts, strict=False):
            if existing.get((part.number, part.etag)) != part.size:
                raise Refused(f"upload {upload.upload_id} of {upload.key!r} has no part {part}")
            if before is not None and (before.number >= part.number or before.size < self._part_bytes_min):
                raise Refused(
                    f"parts {before} and {part} of {upload.key!r}: numbers must rise, and all parts except the last "
                    f"must have at least {self._part_bytes_min} bytes"
                )
        if not parts:
            raise Refused(f"upload {upload.upload_id} of {upload.key!r} cannot be completed without a part")


def _is_object(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(_SIDECAR)


def _require_gone(error: OSError) -> None:
    """Ignore an error of a listing if its path was deleted meanwhile. Raise Refused for any other error.

    Reason: a listing must not silently leave out objects.
    """
    if not isinstance(error, FileNotFoundError):
        raise Refused(
            f"{error.filename} cannot be listed: {error.strerror}",
            hint="Give a directory that contains only objects, and allow this user to read all of it",
        ) from error


def _sidecar_of(path: Path) -> Path:
    return path.with_name(path.name + _SIDECAR)


def _pieces(data: bytes | Sequence[Buffer]) -> list[memoryview]:
    buffers: Sequence[Buffer] = [data] if isinstance(data, bytes) else data
    return [memoryview(buffer).cast("B") for buffer in buffers]


def _file_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _digested(
    pieces: Iterable[bytes | memoryview], update: Callable[[bytes | memoryview], object]
) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        update(piece)
        yield piece


def _write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> int:
    """Create a file with these bytes and fsync it. Return their number."""
    fd = disk.create_file(path)
    try:
        offset = 0
        for piece in pieces:
            offset += disk.write_all(fd, [piece], offset, path)
        disk.sync_data(fd)
    finally:
        os.close(fd)
    return offset
