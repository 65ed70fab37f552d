"""The seam to object storage: PIP-17's interface, which this package uses and another one implements.

    offload(ledger, attempt, extra metadata)      copy a sealed ledger, whole or not at all
    read_offloaded(ledger id, attempt, driver)    a handle to what was copied
    delete_offloaded(ledger id, attempt, driver)  delete whatever there is of an attempt; may be repeated
    delete_orphans(store id, kept)                delete what a listing finds of a store and no record states

Rules: an offloader changes no metadata. It may be given the same attempt again, and makes of it what is there already.
Any thread may call any method. Where none is configured every use is Refused.
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
    """A sealed ledger as it lies here. `size_bytes` is the sum of its entries, `file_bytes` the length of its file.

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
    """How an offload is told of while it runs: bytes that are there, and whether it is to stop."""

    progress: Callable[[int], None]
    cancelled: Callable[[], bool]


NO_CALLBACKS = OffloadCallbacks(lambda _: None, lambda: False)


class OffloadedReader(Protocol):
    """A ledger in object storage, as one reads it. Nothing is fetched before it is asked for."""

    @property
    def ledger_id(self) -> int: ...

    def index(self, first_row: int, entries: int) -> EntryIndex:
        """Where its entries are in the data object; raises Corrupt unless there are so many."""

    def read(self, first_entry: int, entries: int, *, alone: bool = False) -> pa.Buffer:
        """The frames of consecutive entries, nothing before, between and behind them.

        More may be fetched, for who reads on; not with `alone`.
        """

    def close(self) -> None:
        """Let go of what was read ahead."""


class LedgerOffloader(Protocol):
    """Whatever keeps sealed ledgers elsewhere."""

    @property
    def driver(self) -> Driver:
        """Where it puts what it is given from now on."""

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,
        extra_metadata: Mapping[str, str],
        told: OffloadCallbacks = NO_CALLBACKS,
    ) -> None:
        """Copy a ledger and check the copy. Raises what went wrong, Unavailable when it may be tried again."""

    def read_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> OffloadedReader:
        """A handle; an object that is missing is found missing when it is read."""

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        """Delete whatever there is of an attempt; may be repeated."""

    def delete_orphans(self, store_id: str, kept: Collection[uuid.UUID]) -> int:
        """Delete the objects of a store whose attempts are none of these, where `driver` says; how many."""

    def close(self) -> None:
        """Let go of threads and connections."""


class NoOffloader:
    """What there is while nobody has said where to: every use is refused."""

    @property
    def driver(self) -> Driver:
        raise _refused("there is nowhere to offload to")

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,  # noqa: ARG002 — the names are those of the interface
        extra_metadata: Mapping[str, str],  # noqa: ARG002 — as above
        told: OffloadCallbacks = NO_CALLBACKS,  # noqa: ARG002 — as above
    ) -> None:
        raise _refused(f"ledger {ledger.ledger_id} cannot be offloaded")

    def read_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> OffloadedReader:
        raise _refused(f"ledger {ledger_id} was offloaded to {driver.name} as {attempt} and cannot be read")

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        raise _refused(f"ledger {ledger_id} was offloaded to {driver.name} as {attempt} and cannot be deleted there")

    def delete_orphans(self, store_id: str, kept: Collection[uuid.UUID]) -> int:  # noqa: ARG002 — as above
        raise _refused("no object storage can be looked through")

    def close(self) -> None:
        """Nothing is held."""


def _refused(what: str) -> Refused:
    return Refused(f"{what}: no offloader is configured", hint=_HINT)
