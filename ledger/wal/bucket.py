"""Bucket of a store: the interface through which the log sends requests, and the names of the store's objects.

`pyspark_ledger.offload.storage` implements the interface. This package does not import the implementation. The *epoch*
in the name of an object is a number that each new broker of the store raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from pyspark_ledger.ledger.checksum import Buffer

MANIFEST = "manifest"
LOG_PREFIX = "wal/"
SNAPSHOT_PREFIX = "snapshot/"
SECRET_PREFIX = "secret/"  # noqa: S105 — a name, not a secret


class Listed(Protocol):
    """Object in the result of a list request."""

    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def modified_ms(self) -> int: ...


class FetchedHead(Protocol):
    """Size, etag, version and encryption of an object. If the server states no version or encryption, it is empty."""

    @property
    def size(self) -> int: ...
    @property
    def etag(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def encryption(self) -> str: ...


class Fetched(Protocol):
    """Bytes and head of an object."""

    @property
    def data(self) -> bytes: ...
    @property
    def head(self) -> FetchedHead: ...


class Bucket(Protocol):
    """Objects below one address. Thread-safe.

    Raises NotFound for a missing object, and AlreadyExists if the condition of a put is not met. Raises Unauthenticated
    or Refused if a repetition cannot help. After Unavailable, it is unknown whether the server carried out the request.
    """

    @property
    def address(self) -> str: ...

    def put(self, key: str, data: bytes | Sequence[Buffer], *, only_new: bool = False, if_match: str = "") -> str:
        """Write an object in one request, and return its etag, S3's id of the object's content.

        `data` is the content: bytes, or several buffers in order. With a condition, the implementation sends the
        request only once.
        """

    def get(self, key: str, most: int) -> Fetched:
        """Return an object. Raises an error if the object has more than `most` bytes."""

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Return exactly the bytes `[start, start + length)`."""

    def objects(self, prefix: str = "", *, after: str = "") -> Iterator[Listed]:
        """Yield the objects whose keys start with `prefix` and are greater than `after`, in the order of the keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. A missing object is no error."""


def log_key(number: int) -> str:
    return f"{LOG_PREFIX}{number:020d}"


def number_of(key: str) -> int:
    """Return the number in the key of a log object."""
    return int(key.removeprefix(LOG_PREFIX))


def snapshot_key(number: int, epoch: int, nonce: str) -> str:
    return f"{SNAPSHOT_PREFIX}{number:020d}-{epoch:020d}-{nonce}"


def secret_key(epoch: int, nonce: str) -> str:
    return f"{SECRET_PREFIX}{epoch:020d}-{nonce}"


def epoch_of(key: str) -> int:
    """Return the epoch in the key of a snapshot or a secret."""
    parts = key.rpartition("/")[2].split("-")
    return int(parts[1] if key.startswith(SNAPSHOT_PREFIX) else parts[0])
