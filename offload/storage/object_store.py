"""Object storage, as narrow as the rest of this package needs it: parts, a conditional put, ranged reads, a listing.

Rules
- A key is a flat name inside the address of the store, which may itself be a prefix of a bucket; no key begins or ends
  with a slash or has an empty part, `.` or `..`.
- User metadata are texts by name; names come back in lower case, as S3 gives them.
- An upload is invisible until `complete`, and whole from then on. Parts may be put in any order, by any thread, twice.
- Errors are those of `ledger.errors`: NotFound (key, bucket or upload), AlreadyExists (a condition was not met),
  Unauthenticated (credentials), Refused (the store will never do it), Corrupt (a range that the object does not have),
  Unavailable (worth trying again; of a conditional put: whether it was done is not known).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused

KEY_BYTES_MAX = 1024
METADATA_BYTES_MAX = 2048
PART_BYTES_MIN = 5 * 1024 * 1024
"""What S3 takes of any part but the last."""
PARTS_MAX = 10_000


class ListedObject(NamedTuple):
    """One line of a listing."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What is known of an object without its bytes."""

    key: str
    size: int
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)


class FetchedObject(NamedTuple):
    """A whole small object and what is known of it."""

    data: bytes
    head: ObjectHead


class Upload(NamedTuple):
    """An object that is being put in parts: a value that survives a restart."""

    key: str
    upload_id: str


class UploadedPart(NamedTuple):
    """One part of an upload, numbered from 1."""

    number: int
    etag: str
    size: int


class PartSource(Protocol):
    """The bytes of a part as a stream, which is read from its beginning again when it has to be sent again."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, empty at the end."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def tell(self) -> int: ...


class ObjectStore(Protocol):
    """One bucket or directory. Any thread may call any method; what pickles is configuration."""

    @property
    def address(self) -> str:
        """`s3://bucket[/prefix]` or `file:///path`."""

    def put(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str] | None = None,
        *,
        only_new: bool = False,
        if_match: str = "",
    ) -> str:
        """Write a whole object in one step; its etag. With a condition: AlreadyExists where it is not met."""

    def get(self, key: str, most: int) -> FetchedObject:
        """A whole object of at most `most` bytes; a larger one is Refused before its bytes are fetched."""

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Exactly the bytes `[start, start + length)`; Corrupt where the object ends before."""

    def head(self, key: str) -> ObjectHead:
        """What is known of an object; raises NotFound."""

    def objects(self, prefix: str = "", *, after: str = "") -> Iterator[ListedObject]:
        """The objects whose keys begin with `prefix` and come after `after`, in the order of their keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is gone already is no error."""

    def begin_upload(self, key: str, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin an object in parts."""

    def put_part(self, upload: Upload, number: int, data: bytes | PartSource, size: int) -> UploadedPart:
        """Put one part, from 1 to `PARTS_MAX`: bytes, or a stream that can be read again from its beginning."""

    def parts(self, upload: Upload) -> list[UploadedPart]:
        """The parts that are there, by number; raises NotFound when the upload is over."""

    def complete(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        """Make the object of exactly these parts, in their order. May be repeated after a lost answer."""

    def abort(self, upload: Upload) -> None:
        """Throw an upload away with its parts; one that is over already is no error."""

    def uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Uploads that are neither completed nor thrown away."""

    def close(self) -> None:
        """Let go of connections."""


def require_key(key: str) -> str:
    """The key; raises Refused for one that some store could not keep apart from others."""
    if not key or len(key.encode()) > KEY_BYTES_MAX or any(part in ("", ".", "..") for part in key.split("/")):
        raise Refused(f"object key {key[:80]!r} is none: 1 to {KEY_BYTES_MAX} bytes, no part empty, '.' or '..'")
    if any(ord(char) < 32 or ord(char) == 127 for char in key):
        raise Refused(f"object key {key[:80]!r} has a control character")
    return key


def require_metadata(metadata: Mapping[str, str] | None, key: str) -> dict[str, str]:
    """User metadata as every store keeps them: names in lower case, visible ASCII, 2 KiB in all."""
    found = {name.lower(): value for name, value in (metadata or {}).items()}
    if len(found) != len(metadata or {}):
        raise Refused(f"metadata of {key!r} have names that differ only in case: {sorted(metadata or {})}")
    for text in (*found, *found.values()):
        if not text.isascii() or not text.isprintable():
            raise Refused(f"metadata of {key!r} are not printable ASCII: {text[:80]!r}")
    size = sum(len(name) + len(value) for name, value in found.items())
    if size > METADATA_BYTES_MAX:
        raise Refused(f"metadata of {key!r} have {size} bytes, S3 keeps {METADATA_BYTES_MAX}")
    return found
