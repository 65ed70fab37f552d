"""Interface to the data objects of direct segments, which tasks of a sink put into the bucket of the store.

The package `offload` implements the interface. A *direct segment* is a segment whose data object (its bytes in the
bucket) a task has put before the commit of its batch. The object's key contains the id of the *attempt* (the upload)
and the id of the segment. A *run* is the entries of one batch in one ledger, and the *marker* is its last entry. The
*epoch* of a broker is a number that rises with each broker of the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.protocol.commits import BucketAccess, PartRun, StagedPart


class DirectKey(NamedTuple):
    """Key of a data object: the attempt that has put it, and the id of its segment."""

    attempt: uuid.UUID
    ledger_id: int


class FoundObject(NamedTuple):
    """Size of a data object, and the time at which it was put, in milliseconds since 1970."""

    size: int
    put_ms: int


class DirectObjects(Protocol):
    """Data objects of direct segments, in the folder of the store's segments. Any thread may call any method."""

    @property
    def access(self) -> BucketAccess:
        """The address of the objects, in the form that tasks use."""

    def metadata(self, extra: Mapping[str, str], epoch: int) -> dict[str, str]:
        """Return the user metadata of an object: `extra`, and the epoch of the broker that gives a task the key."""

    def head(self, key: DirectKey) -> FoundObject:
        """Return size and time of an object. Raises NotFound."""

    def copy(self, source: DirectKey, target: DirectKey, metadata: Mapping[str, str]) -> None:
        """Copy an object within the bucket. Raises NotFound."""

    def put(
        self, key: DirectKey, metadata: Mapping[str, str], run: PartRun, entries: Iterable[tuple[Buffer, int]]
    ) -> StagedPart:
        """Put an object with these entries and the marker of the run. Each entry comes with its number of rows."""

    def put_before(self, until_ms: int, kept: Collection[uuid.UUID]) -> Iterator[DirectKey]:
        """Yield the keys of objects and unfinished uploads that are older than a time, except attempts in `kept`.

        Only objects that a task has put are returned. Objects of offloads are left out.
        """
