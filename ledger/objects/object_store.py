"""Interface of object storage: multipart uploads, conditional put, ranged reads and listing.

Rules
- A key is a name below the store's address, which may be a prefix of a bucket. A key has no leading or trailing slash
  and no part that is empty, `.` or `..`.
- User metadata are pairs of a name and a text. Names are returned in lower case, as by S3.
- A multipart upload makes its object visible only at `complete`, as a whole.
- Any thread may upload a part, in any order, and more than once.

Errors (`ledger.errors`)
- NotFound: the key, bucket or upload does not exist. AlreadyExists: the condition of a put is not met.
- Unauthenticated: credentials are missing or refused. Refused: a retry cannot succeed.
- Corrupt: the object does not have the requested range.
- Unavailable: a retry may succeed. If a put raises Unavailable, it is unknown whether the object was written.
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
"""S3's minimum size of every part except the last."""
PARTS_MAX = 10_000


class ListedObject(NamedTuple):
    """Object in a listing. `modified_ms` is the time of its last change, in milliseconds since 1970."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """Size, etag and user metadata of an object.

    `version` is the object's version in a bucket that keeps old versions, otherwise empty. `encryption` is S3's name of
    the method, such as `AES256`, or empty. `modified_ms` is the time of the last change, in milliseconds since 1970.
    """

    key: str
    size: int
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    encryption: str = ""
    modified_ms: int = 0


class FetchedObject(NamedTuple):
    """Bytes and head of an object that was fetched as a whole."""

    data: bytes
    head: ObjectHead


class Upload(NamedTuple):
    """Multipart upload that is not completed. The value stays valid after a restart of the process."""

    key: str
    upload_id: str


class BegunUpload(NamedTuple):
    """Unfinished upload in a listing, and the time of its start in milliseconds since 1970."""

    upload: Upload
    begun_ms: int


class UploadedPart(NamedTuple):
    """Uploaded part. `number` counts from 1."""

    number: int
    etag: str
    size: int


class ObjectStore(Protocol):
    """Bucket or directory of objects. Thread-safe. Only its configuration is pickled."""

    @property
    def address(self) -> str:
        """`s3://bucket[/prefix]` or `file:///path`."""

    def put(
        self,
        key: str,
        data: bytes | Sequence[Buffer],
        metadata: Mapping[str, str] | None = None,
        *,
        only_new: bool = False,
        if_match: str = "",
    ) -> str:
        """Write an object in one request, from bytes or from several buffers. Return the etag, an id of its bytes.

        Raises AlreadyExists if the condition is not met.
        """

    def get(self, key: str, most: int) -> FetchedObject:
        """Return a whole object. If it has more than `most` bytes, raises Refused without fetching them."""

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Return exactly the bytes `[start, start + length)`. Raises Corrupt if the object is shorter."""

    def head(self, key: str) -> ObjectHead:
        """Return size, etag and user metadata of an object. Raises NotFound."""

    def objects(self, prefix: str = "", *, after: str = "") -> Iterator[ListedObject]:
        """Yield the objects whose keys start with `prefix` and are greater than `after`, in the order of keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. Missing objects are ignored."""

    def begin_upload(self, key: str, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin a multipart upload."""

    def put_part(self, upload: Upload, number: int, data: bytes | Sequence[Buffer], size: int) -> UploadedPart:
        """Upload part `number` (1 to `PARTS_MAX`) from bytes or from several buffers."""

    def parts(self, upload: Upload) -> list[UploadedPart]:
        """Return the uploaded parts by number, the later one of a number. Raises NotFound if the upload has ended."""

    def complete(self, upload: Upload, parts: Sequence[UploadedPart]) -> None:
        """Create the object from exactly these parts, in order. If the reply was lost, the call can be repeated."""

    def abort(self, upload: Upload) -> None:
        """Abort an upload and delete its parts. A completed or aborted upload is ignored."""

    def copy(self, source: str, key: str, metadata: Mapping[str, str] | None = None) -> None:
        """Copy an object within the store. The bytes do not pass through this process. Raises NotFound."""

    def uploads(self, prefix: str = "") -> Iterator[Upload]:
        """Yield the uploads that are neither completed nor aborted and whose keys start with `prefix`."""

    def begun_uploads(self, prefix: str = "") -> Iterator[BegunUpload]:
        """Yield the same uploads as `uploads`, each with the time of its start."""

    def close(self) -> None:
        """Close the connections."""


def require_key(key: str) -> str:
    """Return the key. Raises Refused for a key that a store could read as another key, such as `a//b`."""
    if not key or len(key.encode()) > KEY_BYTES_MAX or any(part in ("", ".", "..") for part in key.split("/")):
        raise Refused(
            f"object key {key[:80]!r} is invalid: expected 1 to {KEY_BYTES_MAX} bytes, no part empty, '.' or '..'"
        )
    if any(ord(char) < 32 or ord(char) == 127 for char in key):
        raise Refused(f"object key {key[:80]!r} has a control character")
    return key


def require_metadata(metadata: Mapping[str, str] | None, key: str) -> dict[str, str]:
    """Return the user metadata with names in lower case.

    Raises Refused unless names and values are printable ASCII of at most 2 KiB in total.
    """
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
