"""Interface to object storage, in Pulsar's format PIP-17. The package `offload` implements it, and the store calls it.

In the code, `ledger_id` is the id of a segment, as in Pulsar. A *data object* has the bytes of a segment. An *index
object* states where the entries are in the data object. A *direct segment* is a segment whose data object a Spark task
has put. An *attempt* is one upload of a segment, identified by a UUID. A *driver* is the location of its objects. A
*frame* is an entry with its length and id.

    offload(ledger, attempt, extra metadata)       copies a sealed segment, completely or not at all
    put_indexes(ledger, attempt, extra metadata)   puts the index objects of a direct segment
    read_offloaded(segment id, attempt, driver)    returns a reader of the copy
    delete_offloaded(segment id, attempt, driver)  deletes all objects of an attempt; may be repeated
    orphans(store id, kept, until)                 lists the attempts of a store whose objects no record needs

Rules
- An offloader does not change the store's metadata. If it gets the same attempt again, it uses the existing objects.
- Any thread may call any method. Without a configured bucket, every use raises Refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.reader import StoredObject
from pyspark_ledger.ledger.tiering.direct_objects import DirectObjects
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment

_HINT = "Set managedLedgerOffloadBucket: in conf/broker.toml, or with `ledger settings set`"


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """Sealed segment to offload. `size_bytes` is the total size of its entries, `file_bytes` the length of its file.

    `schemas` are the payload schemas of its messages: JSON with all versions, or an empty text. `direct` is set for a
    direct segment (`ledger.tiering.direct_segment`), which has no local file.
    """

    name: str
    ledger_id: int
    entries: int
    size_bytes: int
    file_bytes: int
    block_bytes: int
    created_ms: int
    path: Path
    index: Callable[[], EntryIndex]
    schemas: str = ""
    direct: DirectSegment | None = None


class OffloadCallbacks(NamedTuple):
    """Callbacks of a running offload. `progress` gets the uploaded bytes. `cancelled` returns whether to stop."""

    progress: Callable[[int], None]
    cancelled: Callable[[], bool]


class OrphanedAttempt(NamedTuple):
    """Attempt that has objects in the bucket, and that no record needs."""

    ledger_id: int
    attempt: uuid.UUID


NO_CALLBACKS = OffloadCallbacks(lambda _: None, lambda: False)


class OffloadedReader(Protocol):
    """Reader of a segment in object storage. It fetches entries on demand."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def data_bytes(self) -> int:
        """The size of the data object, as its index states it."""

    def index(self, first_row: int, entries: int) -> EntryIndex:
        """Return the index of the entries. Raises Corrupt if the object has another number of entries."""

    def read(self, first_entry: int, entries: int, *, alone: bool = False) -> pa.Buffer:
        """Return exactly the frames of consecutive entries.

        Without `alone`, later entries may be prefetched, because most readers are sequential.
        """

    def close(self) -> None:
        """Release prefetched data."""


class LedgerOffloader(Protocol):
    """Offloader: copies sealed segments to object storage, and reads and deletes the copies."""

    @property
    def driver(self) -> Driver:
        """The location of the objects of new offloads."""

    @property
    def direct(self) -> DirectObjects | None:
        """The data objects of direct segments. None if this offloader has no object storage."""

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,
        extra_metadata: Mapping[str, str],
        callbacks: OffloadCallbacks = NO_CALLBACKS,
    ) -> None:
        """Copy a segment and check the copy. Raises Unavailable if a retry may succeed, and another error otherwise."""

    def put_indexes(self, segment: LocalSegment, attempt: OffloadAttempt, extra_metadata: Mapping[str, str]) -> None:
        """Put the entry index and the block index of a direct segment. May be repeated.

        Raises Unavailable if a retry may succeed, and another error otherwise.
        """

    def read_offloaded(
        self, ledger_id: int, attempt: uuid.UUID, driver: Driver, direct: DirectSegment | None = None
    ) -> OffloadedReader:
        """Return a reader. If an object is missing, the first read raises the error."""

    def stored_object(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> StoredObject | None:
        """Return the data object, for readers that fetch its bytes themselves; None if they cannot."""

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        """Delete all objects of an attempt. May be repeated. Raises Refused for objects of a copy's original."""

    def orphans(self, store_id: str, kept: Callable[[], Collection[uuid.UUID]], until_ms: int) -> list[OrphanedAttempt]:
        """Return the attempts of a store that have objects in the current bucket, except the attempts in `kept`.

        `kept` is called after the listing. An object that a Spark task has put counts only if it is older than
        `until_ms`. Reason: a batch may still commit a younger object.
        """

    def close(self) -> None:
        """Release threads and connections."""


class NoOffloader:
    """Offloader without a bucket. Every use raises Refused."""

    @property
    def driver(self) -> Driver:
        raise _refused("segments cannot be offloaded")

    @property
    def direct(self) -> DirectObjects | None:
        return None

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,  # noqa: ARG002 — the names are those of the interface
        extra_metadata: Mapping[str, str],  # noqa: ARG002 — as above
        callbacks: OffloadCallbacks = NO_CALLBACKS,  # noqa: ARG002 — as above
    ) -> None:
        raise _refused(f"segment {ledger.ledger_id} cannot be offloaded")

    def put_indexes(
        self,
        segment: LocalSegment,
        attempt: OffloadAttempt,
        extra_metadata: Mapping[str, str],  # noqa: ARG002 — as above
    ) -> None:
        raise _refused(f"the index objects of segment {segment.ledger_id} cannot be put at {attempt.driver.name}")

    def read_offloaded(
        self,
        ledger_id: int,
        attempt: uuid.UUID,
        driver: Driver,
        direct: DirectSegment | None = None,  # noqa: ARG002 — as above
    ) -> OffloadedReader:
        raise _refused(f"segment {ledger_id} was offloaded to {driver.name} as {attempt} and cannot be read")

    def stored_object(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> StoredObject | None:  # noqa: ARG002 — as above
        return None

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        raise _refused(f"segment {ledger_id} was offloaded to {driver.name} as {attempt} and cannot be deleted there")

    def orphans(
        self,
        store_id: str,  # noqa: ARG002 — as above
        kept: Callable[[], Collection[uuid.UUID]],  # noqa: ARG002 — as above
        until_ms: int,  # noqa: ARG002 — as above
    ) -> list[OrphanedAttempt]:
        raise _refused("object storage cannot be listed")

    def close(self) -> None:
        """Do nothing."""


def _refused(what: str) -> Refused:
    return Refused(f"{what}: no offloader is configured", hint=_HINT)
