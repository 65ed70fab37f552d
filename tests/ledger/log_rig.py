"""Shared by the tests of a log's life: a store whose clock is moved by hand, and tiny ledgers in it."""

from __future__ import annotations

from pathlib import Path

from ledger.cursor_calls import CursorState, MarkDelete, NameCursor, OpenCursor
from ledger.entry import encode_entry, is_marker, parse_entry
from ledger.life_calls import ChangePolicy
from ledger.managed_ledger import ManagedLedger
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from ledger.proto.pulsar_messages_pb2 import MessageMetadata
from ledger.protocol import CreateLedger
from ledger.segment_reader import iter_frames
from ledger.settings import Settings
from ledger.store import Store

BLOCK = 512
NOW = 1_700_000_000_000
MINUTE = 60_000


def entry(payload: bytes, *, rows: int = 1, run: int = 0) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if rows != 1:
        metadata.num_messages_in_batch = rows
    if run:
        metadata.txnid_most_bits, metadata.txnid_least_bits = 7, run
    return b"".join(encode_entry(metadata, payload))


class LogRig:
    """A store and its clock, `now` in ms. Nothing here runs by a timer: rounds are made by hand."""

    def __init__(self, path: Path, **settings: int) -> None:
        self.path = path
        self.now = NOW
        self.settings = Settings.of(settings)
        self.store = self._open()

    def _open(self, *, take_over: bool = False) -> Store:
        return Store.open(self.path, settings=self.settings, clock=lambda: self.now, create=True, take_over=take_over)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def crash(self) -> Store:
        """The store as another broker opens it after this one died; the dead one is answered."""
        dead, self.store = self.store, self._open(take_over=True)
        return dead

    def log(self, name: str = "log", entries: int = 3) -> ManagedLedger:
        request = CreateLedger(name, exist_ok=True, block_bytes=BLOCK, max_entries_per_ledger=entries)
        return self.store.create_ledger(request)

    def append(self, *payloads: bytes, name: str = "log", entries: int = 3) -> list[Position]:
        """Entries one by one, so that a ledger is full after exactly so many."""
        log = self.log(name, entries)
        return [log.append([entry(payload)]).result() for payload in payloads]

    def policy(self, scope: str = "log", *, namespace: bool = False, **values: int) -> dict[str, int]:
        return self.store.policies.change(ChangePolicy(scope, namespace, values)).effective

    def retain(self, minutes: int, mb: int, scope: str = "log", *, namespace: bool = False) -> None:
        self.policy(scope, namespace=namespace, retentionTimeInMinutes=minutes, retentionSizeInMB=mb)

    def cursor(self, name: str, start: Position = EARLIEST, log: str = "log") -> CursorState:
        return self.store.cursors.open(OpenCursor(log, name, start))

    def acknowledge(self, name: str, to: Position, floor: Position | None = None, log: str = "log") -> None:
        self.store.cursors.mark_delete(MarkDelete(log, name, to, floor))

    def left_of(self, name: str, log: str = "log") -> CursorState:
        return self.store.cursors.describe(NameCursor(log, name))

    def ids(self, name: str = "log") -> list[int]:
        return [part.ledger_id for part in self.store.ledger(name).snapshot.segments]

    def files(self) -> set[str]:
        return {path.name for path in (self.path / "ledgers").iterdir()}

    def contents(self, name: str = "log", start: Position = EARLIEST, end: Position = LATEST) -> list[bytes]:
        return contents(self.store.ledger(name), start, end)


def contents(log: ManagedLedger, start: Position = EARLIEST, end: Position = LATEST) -> list[bytes]:
    """The payloads that a reader gets, every byte checked; markers are left out."""
    found = []
    for block in log.blocks(PositionRange(start, end), 300):
        data = block.path.read_bytes()[block.offset : block.offset + block.length]
        for entry_id, frame in iter_frames(data, block.ledger_id, block.first_entry, block.entries):
            parsed = parse_entry(frame, f"{block.ledger_id}:{entry_id}")
            if not is_marker(parsed.metadata):
                found.append(bytes(parsed.payload))
    return found
