"""Small store with every kind of file, and its answers to all reads, for tests that damage a file.

The store has the files that a kill of the broker leaves. Among them are a write-ahead log, an open segment and the log
of a cursor. The objects of its offloaded segments are in a directory beside the store.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from pyspark_ledger.ledger.message.entry import is_marker
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.actions import CreateLedger, GetSchema, RegisterSchema
from pyspark_ledger.ledger.protocol.commits import CommitRun, StagedPart
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, DescribeCursor, NextDelivery, OpenCursor
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, OffloadPrefix
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.entry import entry, parsed

NOW = 1_700_000_000_000
BLOCK = 512
SETTINGS = Settings.of({"managedLedgerOffloadDeletionLagMs": 3_600_000})


class _Choice(OffloaderChoice):
    def __init__(self, copies: ObjectStoreOffloader) -> None:
        super().__init__(lambda _: copies, SETTINGS)

    def has_target(self) -> bool:
        return True


@contextmanager
def opened(home: Path, now: int = NOW, *, create: bool = False) -> Iterator[Store]:
    """Yield the store in the folder `home` as a broker opens it. `home` contains `store` and `bucket`."""
    copies = ObjectStoreOffloader(str(home / "bucket"), S3Options(), window_bytes=1024, cache_bytes=8192)
    try:
        store = Store.open(
            home / "store",
            settings=SETTINGS,
            clock=lambda: now,
            create=create,
            take_over=None if create else OwnerChange.BROKER,
            offloader=_Choice(copies),
        )
        try:
            yield store
        finally:
            store.close()
    finally:
        copies.close()


def make(home: Path, left: Path) -> StagedPart:
    """Make a store in `home`, and in `left` a copy of its files while it is open. Return a staged part of it."""
    with opened(home, create=True) as store:
        _fill(store)
    with opened(home, NOW + 4_000_000) as store:
        store.upkeep.round()  # deletes the local copies of offloaded segments
    with opened(home, NOW + 4_000_000) as store:
        part = _use(store)
        BrokerRecord("grpc+unix:///nowhere", 1, store.epoch, store.store_id).write(store.path)
        # Without SQLite's shared memory, which is made anew when a file is opened, and without the lock.
        shutil.copytree(home, left, ignore=shutil.ignore_patterns("*-shm", "lock"))
    return part


def _fill(store: Store) -> None:
    for name, deduplication in (("log", False), ("once", True)):
        store.create_ledger(
            CreateLedger(name, block_bytes=BLOCK, max_entries_per_ledger=3, deduplication=deduplication)
        )
    for number in range(7):
        _append(store, "log", number)
        _append(store, "once", number)
    store.register_schema(RegisterSchema("log", b'{"type":"STRING"}'))
    store.policies.change(ChangePolicy("log", values={"retentionTimeInMinutes": -1}))
    store.offloads.offload(OffloadPrefix("log", Position(2, 0)))
    store.offloads.round()


def _use(store: Store) -> StagedPart:
    _append(store, "log", 7)
    for cursor in ("own", "inline"):
        store.cursors.open(OpenCursor("log", cursor, EARLIEST))
    snapshot = store.ledger("log").snapshot
    first, last = snapshot.segments[0].ledger_id, snapshot.segments[-1].ledger_id
    store.cursors.acknowledge("log", "own", [acknowledge_batch(*np.array([[first, last], [1, 0], [-1, -1]]))])
    store.deliveries.next(NextDelivery("log", "own", 0, Position(first, 0), snapshot.end, explicit=False))
    store.commits.commit(CommitRun("once", "query", 1, 7, 1, [_staged(store, 1)]))
    part = _staged(store, 2)
    _append(store, "once", 8)
    return part


def _staged(store: Store, batch: int) -> StagedPart:
    place = store.commits.open_part("query", batch)
    with PartWriter.to_file(place) as part:
        for number in range(2):
            part.write([entry(b"staged %d" % number, run=batch, producer_name="task", sequence_id=number)], 1)
        return part.close()


def _append(store: Store, name: str, number: int) -> None:
    store.ledger(name).append([entry(b"payload %d" % number * 4, sequence_id=number)]).result()


def answers(home: Path, staged: StagedPart) -> dict[str, object]:
    """Return all answers of the store after a commit of the staged part. Every byte of the entries is checked."""
    found: dict[str, object] = {}
    with opened(home, NOW + 4_000_000) as store:
        store.commits.commit(CommitRun("once", "query", 2, 7, 2, [staged]))
        for name in store.names():
            log = store.ledger(name)
            described = store.describe(name)
            found[f"{name} described"] = (described.start, described.end, described.rows, described.properties)
            found[f"{name} segments"] = [
                (part.ledger_id, part.entries, part.rows, part.size_bytes) for part in described.segments
            ]
            found[f"{name} entries"] = list(_entries(store, name))
            found[f"{name} schema"] = store.get_schema(GetSchema(name)).arrow_schema
            found[f"{name} policy"] = store.policies.change(ChangePolicy(name)).effective
            found[f"{name} committed"] = log.committed_batch("query")
            for cursor in described.cursors:
                state = store.cursors.describe(DescribeCursor(name, cursor))
                everything = PositionRange(described.start, described.end)
                holes = store.cursors.acked_ranges(AskAckedRanges(name, cursor, everything, whole=True)).info
                found[f"{name} {cursor}"] = (msgspec.structs.replace(state, cursor_ledger=0), holes)
                found[f"{name} {cursor} delivered"] = store.deliveries._records.newest(log.name, cursor)
    return found


def _entries(store: Store, name: str) -> Iterator[tuple[str, bytes]]:
    for block in store.ledger(name).blocks(PositionRange(EARLIEST, LATEST), 300):
        for position, found in parsed(block):
            yield position, (b"marker" if is_marker(found.metadata) else b"") + bytes(found.payload)
