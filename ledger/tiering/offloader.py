"""Interface to object storage (PIP-17), which this package uses and the package `offload` implements.

    offload(ledger, attempt, extra metadata)      copy a sealed segment, whole or not at all
    read_offloaded(ledger id, attempt, driver)    a handle to the copy
    delete_offloaded(ledger id, attempt, driver)  delete all objects of an attempt; may be repeated
    delete_orphans(store id, kept)                delete objects of a store that a listing finds and no record names

Rules
- An offloader changes no metadata. It may get the same attempt again, and then uses the existing objects.
- Any thread may call any method. Without a configured target every use is Refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.metadata.offload_records import Driver
from pyspark_ledger.ledger.segment.index import EntryIndex

_HINT = "Set managedLedgerOffloadBucket: in conf/broker.toml, or with `ledger settings set`"


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """Sealed segment on the local disk. `size_bytes` is the sum of its entries, `file_bytes` the length of its file.

    `schemas` are the payload schemas of its messages, as JSON with all versions; empty without any.
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


class OffloadCallbacks(NamedTuple):
    """Callbacks of a running offload: uploaded bytes, and whether the offload is cancelled."""

    progress: Callable[[int], None]
    cancelled: Callable[[], bool]


NO_CALLBACKS = OffloadCallbacks(lambda _: None, lambda: False)


class OffloadedReader(Protocol):
    """Reader of a segment in object storage. It fetches on demand."""

    @property
    def ledger_id(self) -> int: ...

    def index(self, first_row: int, entries: int) -> EntryIndex:
        """Return the index of the data object. Raises Corrupt if the number of entries differs."""

    def read(self, first_entry: int, entries: int, *, alone: bool = False) -> pa.Buffer:
        """Return exactly the frames of consecutive entries.

        More may be fetched, for sequential readers; not with `alone`.
        """

    def close(self) -> None:
        """Release prefetched data."""


class LedgerOffloader(Protocol):
    """Store of sealed segments elsewhere."""

    @property
    def driver(self) -> Driver:
        """Target of further offloads."""

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,
        extra_metadata: Mapping[str, str],
        callbacks: OffloadCallbacks = NO_CALLBACKS,
    ) -> None:
        """Copy a segment and check the copy. Raises Unavailable if a retry may succeed, else another error."""

    def read_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> OffloadedReader:
        """Return a handle. A missing object is detected by the first read."""

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        """Delete all objects of an attempt. May be repeated."""

    def delete_orphans(self, store_id: str, kept: Collection[uuid.UUID]) -> int:
        """Delete the objects of a store whose attempts are not in `kept`, at the present target. Return how many."""

    def close(self) -> None:
        """Release threads and connections."""


class NoOffloader:
    """Offloader without a target: every use is refused."""

    @property
    def driver(self) -> Driver:
        raise _refused("there is nowhere to offload to")

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,  # noqa: ARG002 — the names are those of the interface
        extra_metadata: Mapping[str, str],  # noqa: ARG002 — as above
        callbacks: OffloadCallbacks = NO_CALLBACKS,  # noqa: ARG002 — as above
    ) -> None:
        raise _refused(f"ledger {ledger.ledger_id} cannot be offloaded")

    def read_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> OffloadedReader:
        raise _refused(f"ledger {ledger_id} was offloaded to {driver.name} as {attempt} and cannot be read")

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        raise _refused(f"ledger {ledger_id} was offloaded to {driver.name} as {attempt} and cannot be deleted there")

    def delete_orphans(self, store_id: str, kept: Collection[uuid.UUID]) -> int:  # noqa: ARG002 — as above
        raise _refused("no object storage can be looked through")

    def close(self) -> None:
        """Do nothing."""


def _refused(what: str) -> Refused:
    return Refused(f"{what}: no offloader is configured", hint=_HINT)
