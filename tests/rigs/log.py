"""Set-up for tests of segments, retention and cursors: a store with small segments and a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.message.entry import is_marker
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import CursorState, DescribeCursor, MarkDelete, OpenCursor
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry, parsed

BLOCK = 512
NOW = 1_700_000_000_000
MINUTE = 60_000


class LogRig:
    """Store and its clock, `now` in ms. No background task runs by itself: the test calls it."""

    def __init__(self, path: Path, **settings: int) -> None:
        self.path = path
        self.now = NOW
        self.settings = Settings.of(settings)
        self.store = self._open()

    def _open(self, *, take_over: bool = False) -> Store:
        return Store.open(
            self.path,
            settings=self.settings,
            clock=lambda: self.now,
            create=True,
            take_over=OwnerChange.BROKER if take_over else None,
        )

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def crash(self) -> Store:
        """Open the store as another broker after a kill of this one. Return the store of the killed broker."""
        dead, self.store = self.store, self._open(take_over=True)
        return dead

    def log(self, name: str = "log", entries: int = 3) -> ManagedLedger:
        request = CreateLedger(name, exist_ok=True, block_bytes=BLOCK, max_entries_per_ledger=entries)
        return self.store.create_ledger(request)

    def append(self, *payloads: bytes, name: str = "log", entries: int = 3) -> list[Position]:
        """Append entries one by one, so that a segment is full after exactly `entries` entries."""
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
        return self.store.cursors.describe(DescribeCursor(log, name))

    def ids(self, name: str = "log") -> list[int]:
        return [part.ledger_id for part in self.store.ledger(name).snapshot.segments]

    def files(self) -> set[str]:
        return {path.name for path in (self.path / "ledgers").iterdir()}

    def contents(self, name: str = "log", start: Position = EARLIEST, end: Position = LATEST) -> list[bytes]:
        return contents(self.store.ledger(name), start, end)


def open_files() -> int:
    """Count the open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def rig(store_path: Path) -> Iterator[LogRig]:
    rig = LogRig(store_path)
    yield rig
    rig.store.close()


def contents(log: ManagedLedger, start: Position = EARLIEST, end: Position = LATEST) -> list[bytes]:
    """Return the payloads that a reader gets, without markers. Every byte is checked."""
    entries = (entry for block in log.blocks(PositionRange(start, end), 300) for _, entry in parsed(block))
    return [bytes(entry.payload) for entry in entries if not is_marker(entry.metadata)]
