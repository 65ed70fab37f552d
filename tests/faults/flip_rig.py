"""A small store with every kind of file, and what it answers; shared by the tests that damage it.

The store is left as a SIGKILL leaves it: with a write-ahead log, an open segment and a cursor's own ledger. Its objects
lie in a directory beside it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from ledger.acknowledged_rows import acknowledge_batch
from ledger.broker.discovery import BrokerRecord
from ledger.cache.mapped_block import read_block
from ledger.cursor_calls import AskHoles, NameCursor, OpenCursor
from ledger.delivery_calls import NextDelivery
from ledger.entry import encode_entry, is_marker, parse_entry
from ledger.life_calls import ChangePolicy
from ledger.offload_calls import OffloadPrefix
from ledger.offloader_choice import OffloaderChoice
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from ledger.proto.pulsar_messages_pb2 import MessageMetadata
from ledger.protocol import CreateLedger, GetSchema, RegisterSchema
from ledger.run_calls import CommitRun, StagedPart
from ledger.segment_reader import iter_frames
from ledger.settings import Settings
from ledger.staging import PartFile
from ledger.store import Store
from offload.ledger_copies import LedgerCopies
from offload.s3_options import S3Options

NOW = 1_700_000_000_000
BLOCK = 512
SETTINGS = Settings.of({"managedLedgerOffloadDeletionLagMs": 3_600_000})


class _Choice(OffloaderChoice):
    def __init__(self, copies: LedgerCopies) -> None:
        super().__init__(lambda _: copies, SETTINGS)

    def has_target(self) -> bool:
        return True


@contextmanager
def opened(home: Path, now: int = NOW, *, create: bool = False) -> Iterator[Store]:
    """The store of a home as a broker opens it; `home` holds `store` and `bucket`."""
    copies = LedgerCopies(str(home / "bucket"), S3Options(), window_bytes=1024, cache_bytes=8192)
    try:
        store = Store.open(
            home / "store",
            settings=SETTINGS,
            clock=lambda: now,
            create=create,
            take_over=not create,
            offloader=_Choice(copies),
        )
        try:
            yield store
        finally:
            store.close()
    finally:
        copies.close()


def make(home: Path, left: Path) -> StagedPart:
    """A store in `home`, and in `left` the files that it had while it was in use; a part that was staged in it."""
    with opened(home, create=True) as store:
        _fill(store)
    with opened(home, NOW + 4_000_000) as store:
        store.upkeep.round()  # the local copy of what is offloaded goes
    with opened(home, NOW + 4_000_000) as store:
        part = _use(store)
        BrokerRecord("grpc+unix:///nowhere", 1, store.epoch, store.store_id).write(store.path)
        # Not SQLite's shared memory, which each opening makes anew, and no lock that nobody holds.
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
    store.register_schema(RegisterSchema("log", b"a schema"))
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
    store.commit(CommitRun("once", "query", 1, 7, 1, [_staged(store, 1)]))
    part = _staged(store, 2)
    _append(store, "once", 8)
    return part


def _staged(store: Store, batch: int) -> StagedPart:
    place = store.open_part("query", batch)
    with PartFile(place) as part:
        for number in range(2):
            metadata = MessageMetadata(producer_name="task", sequence_id=number, publish_time=1)
            metadata.txnid_most_bits, metadata.txnid_least_bits = 7, batch
            part.write(encode_entry(metadata, b"staged %d" % number), 1)
        return part.close()


def _append(store: Store, name: str, number: int) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    store.ledger(name).append([b"".join(encode_entry(metadata, b"payload %d" % number * 4))]).result()


def answers(home: Path, staged: StagedPart) -> dict[str, object]:
    """All that the store answers, every byte of an entry checked, after what was staged is committed."""
    found: dict[str, object] = {}
    with opened(home, NOW + 4_000_000) as store:
        store.commit(CommitRun("once", "query", 2, 7, 2, [staged]))
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
                state = store.cursors.describe(NameCursor(name, cursor))
                everything = PositionRange(described.start, described.end)
                holes = store.cursors.holes(AskHoles(name, cursor, everything, whole=True)).info
                found[f"{name} {cursor}"] = (msgspec.structs.replace(state, cursor_ledger=0), holes)
                found[f"{name} {cursor} delivered"] = store.deliveries._records.newest(log.name, cursor)
    return found


def _entries(store: Store, name: str) -> Iterator[tuple[int, int, bytes]]:
    for block in store.ledger(name).blocks(PositionRange(EARLIEST, LATEST), 300):
        for entry_id, frame in iter_frames(read_block(block), block.ledger_id, block.first_entry, block.entries):
            parsed = parse_entry(frame, f"{block.path} entry {entry_id}")
            kind = b"marker" if is_marker(parsed.metadata) else b""
            yield block.ledger_id, entry_id, kind + bytes(parsed.payload)
