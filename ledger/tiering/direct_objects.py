"""Interface to the data objects of direct segments, which tasks of a sink put into the bucket of the store.

The package `offload` implements the interface. A *direct segment* is a segment whose data object was put before its
commit (`ledger.metadata.offload_records`). A key has the id of an attempt (one upload) and the id of the segment. A
*run* is the entries of one batch in one ledger, and the *marker* its last entry. The *epoch* of a broker is a number
that rises with each broker of the store.
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
        """Return the user metadata of an object. `epoch` is the epoch of the broker that gives the key to the task."""

    def head(self, key: DirectKey) -> FoundObject:
        """Return size and time of an object. Raises NotFound."""

    def copy(self, source: DirectKey, target: DirectKey, metadata: Mapping[str, str]) -> None:
        """Copy an object within the bucket. Raises NotFound."""

    def put(
        self, key: DirectKey, metadata: Mapping[str, str], run: PartRun, entries: Iterable[tuple[Buffer, int]]
    ) -> StagedPart:
        """Put an object with these entries, each with its number of rows, and with the marker of the run."""

    def put_before(self, until_ms: int, kept: Collection[uuid.UUID]) -> Iterator[DirectKey]:
        """Yield the keys of objects and unfinished uploads that are older than a time, except attempts in `kept`.

        Only objects that a task has put are returned, no objects of an offload.
        """
