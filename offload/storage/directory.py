"""Objects in a directory: for tests, small set-ups, and what was downloaded from a bucket.

    <directory>/<key>               the object's bytes
    <directory>/<key>.meta.json     its user metadata and size, written first; absent means no metadata
    <directory>/.uploads/<id>/      an upload: `key.json`, and each part under its number

Rules: a name appears by a rename after the bytes were synced, so an object is whole or not there. A listing leaves out
hidden names and metadata files. An object without its metadata file is one without metadata; such a file without its
object is no object. A conditional put holds a lock on the directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, NotFound, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.offload.storage.object_store import (
    PART_BYTES_MIN,
    PARTS_MAX,
    FetchedObject,
    ListedObject,
    ObjectHead,
    PartSource,
    Upload,
    UploadedPart,
    require_key,
    require_metadata,
)

_SIDECAR = ".meta.json"
_UPLOADS = ".uploads"
_PIECE = 1024 * 1024


class ObjectSidecar(msgspec.Struct, frozen=True):
    """What stands beside an object; the names are those of the files that Pulsar's own objects are kept with."""

    key: str = ""
    size: int = -1
    etag: str = ""
    userMetadata: dict[str, str] = {}  # noqa: N815 — see the docstring


_STATED = msgspec.json.Decoder(ObjectSidecar)


class DirectoryStore:
    """One directory of objects; made by the first write."""

    def __init__(self, directory: Path, *, part_bytes_min: int = PART_BYTES_MIN) -> None:
        self._directory = directory
        self._reached: set[Path] = set()  # folders to which the way is durable
        self._part_bytes_min = part_bytes_min

    @property
    def address(self) -> str:
        return self._directory.as_uri()

    def put(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str] | None = None,
        *,
        only_new: bool = False,
        if_match: str = "",
    ) -> str:
        path, found = self._path(key), require_metadata(metadata, key)
        with self._locked():
            self._require(path, key, only_new=only_new, if_match=if_match)
            etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            with self._scratch() as scratch:
                _write_file(scratch, [data])
                self._publish(scratch, path, ObjectSidecar(key, len(data), etag, found))
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
                    f"{self.address}/{key} has {size} bytes, bytes {start} to {start + length} were asked for"
                )
        return data

    def head(self, key: str) -> ObjectHead:
        with self._undisturbed(), self._opened(key) as fd:
            status, stated = os.fstat(fd), self._sidecar(key)
        if stated.size not in (-1, status.st_size):
            raise Corrupt(f"{self.address}/{key} has {status.st_size} bytes, its metadata say {stated.size}")
        etag = stated.etag or f"{status.st_mtime_ns:x}-{status.st_size:x}"
        return ObjectHead(key, status.st_size, etag.strip('"'), stated.userMetadata)

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
        """Delete objects; the metadata go last."""
        for key in keys:
            path = self._path(key)
            path.unlink(missing_ok=True)
            _sidecar_of(path).unlink(missing_ok=True)

    def begin_upload(self, key: str, metadata: Mapping[str, str] | None = None) -> Upload:
        self._path(key)
        upload = Upload(key, new_id())
        folder = self._uploads / upload.upload_id
        disk.make_directory(folder)
        stated = ObjectSidecar(key, userMetadata=require_metadata(metadata, key))
        _write_file(folder / "key.json", [msgspec.json.encode(stated)])
        return upload

    def put_part(self, upload: Upload, number: int, data: bytes | PartSource, size: int) -> UploadedPart:
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
        """The parts that are there; of one that was put twice, the later."""
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
            return  # completed before, the answer was lost
        folder = self._upload(upload)
        self._require_parts(upload, parts)
        stated = _STATED.decode((folder / "key.json").read_bytes())
        size, etags = sum(part.size for part in parts), "".join(part.etag for part in parts)
        etag = f"{hashlib.md5(bytes.fromhex(etags), usedforsecurity=False).hexdigest()}-{len(parts)}"
        files = [folder / f"{part.number:05}-{part.etag}" for part in parts]
        with self._scratch() as scratch:
            _write_file(scratch, (piece for file in files for piece in _file_pieces(file)))
            with self._locked():
                self._publish(scratch, path, ObjectSidecar(upload.key, size, etag, stated.userMetadata))
        shutil.rmtree(folder)

    def abort(self, upload: Upload) -> None:
        shutil.rmtree(self._uploads / upload.upload_id, ignore_errors=True)

    def uploads(self, prefix: str = "") -> Iterator[Upload]:
        if not self._uploads.is_dir():
            return
        for folder in sorted(self._uploads.iterdir()):
            with suppress(FileNotFoundError, NotADirectoryError):
                stated = _STATED.decode((folder / "key.json").read_bytes())
                if stated.key.startswith(prefix):
                    yield Upload(stated.key, folder.name)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _uploads(self) -> Path:
        return self._directory / _UPLOADS

    def _path(self, key: str) -> Path:
        if any(part.startswith(".") for part in require_key(key).split("/")) or key.endswith(_SIDECAR):
            raise Refused(f"object key {key!r} cannot be kept in a directory: it is hidden or ends with {_SIDECAR!r}")
        return self._directory / key

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A name for a file that is renamed when it is whole; what is there of one that is not goes."""
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
            return _STATED.decode(path.read_bytes())
        except FileNotFoundError:
            return ObjectSidecar()
        except JSON_FAULTS as wrong:
            raise Corrupt(f"{path}: {json_fault(wrong)}") from wrong

    @contextmanager
    def _locked(self) -> Iterator[None]:
        disk.make_directory(self._uploads)
        fd = disk.open_or_create(self._uploads / ".lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # of this description: it keeps other threads out, too
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """While nobody replaces an object. A directory that is only read has no lock, and nobody to lock out."""
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

    def _require(self, path: Path, key: str, *, only_new: bool, if_match: str) -> None:
        if only_new and path.exists():
            raise AlreadyExists(f"{self.address}/{key} exists already")
        if if_match:
            found = self._sidecar(key).etag if path.exists() else "none"
            if found != if_match:
                raise AlreadyExists(f"{self.address}/{key} has etag {found}, {if_match} was expected")

    def _publish(self, scratch: Path, path: Path, stated: ObjectSidecar) -> None:
        disk.make_directory(path.parent)
        with self._scratch() as beside:
            _write_file(beside, [msgspec.json.encode(stated)])
            beside.rename(_sidecar_of(path))
        scratch.rename(path)
        disk.sync_directory(path.parent)
        if path.parent not in self._reached:
            # Once for each folder: who made it, an upload or another process, and how far that came, is not known.
            disk.sync_names_above(path.parent)
            self._reached.add(path.parent)

    def _require_parts(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        there = {(part.number, part.etag): part.size for part in self.parts(upload)}
        for before, part in zip((None, *parts), parts, strict=False):
            if there.get((part.number, part.etag)) != part.size:
                raise Refused(f"upload {upload.upload_id} of {upload.key!r} has no part {part}")
            if before is not None and (before.number >= part.number or before.size < self._part_bytes_min):
                raise Refused(
                    f"parts {before} and {part} of {upload.key!r}: numbers must rise, and all but the last have at "
                    f"least {self._part_bytes_min} bytes"
                )
        if not parts:
            raise Refused(f"upload {upload.upload_id} of {upload.key!r} was to be completed without a part")


def _is_object(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(_SIDECAR)


def _require_gone(error: OSError) -> None:
    """Raise Refused unless what could not be listed is gone: a listing never leaves out objects in silence."""
    if not isinstance(error, FileNotFoundError):
        raise Refused(
            f"{error.filename} cannot be listed: {error.strerror}",
            hint="Give a directory that holds objects only, and let this user read all of it",
        ) from error


def _sidecar_of(path: Path) -> Path:
    return path.with_name(path.name + _SIDECAR)


def _pieces(data: bytes | PartSource) -> Iterator[bytes]:
    if isinstance(data, bytes):
        yield data
        return
    while piece := data.read(_PIECE):
        yield piece


def _file_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _write_file(path: Path, pieces: Iterable[bytes]) -> None:
    """A new file with these bytes, synced."""
    fd = disk.create_file(path)
    try:
        offset = 0
        for piece in pieces:
            offset += disk.write_all(fd, [piece], offset, path)
        disk.sync_data(fd)
    finally:
        os.close(fd)
