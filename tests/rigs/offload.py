"""Set-up for tests of offloading: a store with small segments, which the test offloads to a directory or a bucket."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.metadata.segment_records import attempts_of
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, OffloadPrefix, OffloadStatus
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings
from pyspark_ledger.ledger.store.offload_scheduler import OffloadScheduler
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloader import NO_CALLBACKS, LocalSegment, OffloadCallbacks, OrphanedAttempt
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.entry import entry
from tests.rigs.log import contents

NOW = 1_700_000_000_000
HOUR = 3_600_000
BLOCK = 512


class _Choice(OffloaderChoice):
    """Object with which the store finds its offloader: the present offloader of the rig."""

    def __init__(self, rig: OffloadRig) -> None:
        super().__init__(lambda _: rig.offloader, rig.settings)
        self._rig = rig

    def __call__(self) -> Any:
        return self._rig.offloader

    def has_target(self) -> bool:
        return True


class OffloadRig:
    """Store and its clock, `now` in ms. `copies` is its offloader. The test itself calls each background task."""

    def __init__(self, path: Path, address: str, options: S3Options | None = None, **rest: Any) -> None:
        self.path = path
        self.address = address
        self.now = NOW
        self.options = options or S3Options()
        self.settings = Settings.of({name: value for name, value in rest.items() if name in SETTINGS})
        made = {name: value for name, value in rest.items() if name not in SETTINGS}
        self.copies = ObjectStoreOffloader(address, self.options, **{"window_bytes": 1024, "cache_bytes": 8192, **made})
        self.offloader: Any = self.copies
        self.store = self._open()

    def _open(self, *, take_over: OwnerChange | None = None) -> Store:
        return Store.open(
            self.path,
            settings=self.settings,
            clock=lambda: self.now,
            create=True,
            take_over=take_over,
            offloader=_Choice(self),
        )

    @property
    def objects(self) -> ObjectStore:
        return self.copies.store

    def policy(self, **values: int) -> dict[str, int]:
        return self.store.policies.change(ChangePolicy("log", values=values)).effective

    def upkeep(self) -> None:
        """Run one round of the broker's background tasks."""
        self.store.upkeep.round()
        self.store.offloads.round()
        self.store.offloads.cleaner.sweep()

    def crash(self) -> None:
        """Open the store as another broker after a kill of this one."""
        self.store = self._open(take_over=OwnerChange.BROKER)

    def log(self, name: str = "log", entries: int = 3) -> ManagedLedger:
        request = CreateLedger(name, exist_ok=True, block_bytes=BLOCK, max_entries_per_ledger=entries)
        return self.store.create_ledger(request)

    def append(self, *payloads: bytes, name: str = "log", entries: int = 3) -> list[Position]:
        """Append entries one by one, so that a segment is full after exactly `entries` entries."""
        log = self.log(name, entries)
        return [log.append([entry(payload)]).result() for payload in payloads]

    def fill(self, ledgers: int, entries: int = 3, *, size: int = 100, name: str = "log") -> list[bytes]:
        """Append entries that fill this many segments, and one more. Return the payloads."""
        payloads = [bytes([number % 251]) * size for number in range(ledgers * entries + 1)]
        self.append(*payloads, name=name, entries=entries)
        return payloads

    def offload(self, until: Position | None = None, name: str = "log") -> OffloadStatus:
        """Offload in this thread. Return the status afterwards."""
        self.store.offloads.offload(OffloadPrefix(name, until))
        self.store.offloads.round()
        self.store.offloads.cleaner.sweep(rested=False)
        return self.store.offloads.status(name)

    def attempts(self, name: str = "log") -> dict[int, OffloadAttempt]:
        """Return the attempts of the record, by segment id."""
        canonical = self.store.ledger(name).name
        return dict(attempts_of(self.store.metadata.segments.of(canonical)))

    def complete(self, name: str = "log") -> list[int]:
        return [ledger_id for ledger_id, attempt in self.attempts(name).items() if attempt.complete]

    def ids(self, name: str = "log") -> list[int]:
        return [part.ledger_id for part in self.store.ledger(name).snapshot.segments]

    def cursor_at(self, position: Position, name: str = "log") -> None:
        """Create a durable cursor at a position."""
        self.store.cursors.open(OpenCursor(name, "reader", position))

    def stored(self) -> list[str]:
        return [found.key for found in self.objects.objects()]

    def local(self) -> set[int]:
        """Return the ids of the segments whose data file is in the store's directory."""
        return {int(path.stem) for path in (self.path / "ledgers").glob("*.ledger")}

    def contents(self, name: str = "log", start: Position = EARLIEST, end: Position = LATEST) -> list[bytes]:
        """Return the payloads that a reader gets. Every byte is checked."""
        return contents(self.store.ledger(name), start, end)

    def close(self) -> None:
        self.store.close()
        self.copies.close()


class Failing:
    """Offloader that fails for some segments. For others it calls the real offloader."""

    def __init__(self, rig: OffloadRig, *ledgers: int, error: type[LedgerError] = Unavailable) -> None:
        self.real, self.ledgers, self.error = rig.copies, ledgers, error
        self.before: Callable[[int], object] = lambda _: None
        self.attempts: list[uuid.UUID] = []
        self.deleted: list[uuid.UUID] = []
        self.driver = rig.copies.driver
        rig.offloader = self

    def offload(
        self,
        ledger: LocalSegment,
        attempt: uuid.UUID,
        extra_metadata: Mapping[str, str],
        callbacks: OffloadCallbacks = NO_CALLBACKS,
    ) -> None:
        self.attempts.append(attempt)
        self.before(ledger.ledger_id)
        if ledger.ledger_id in self.ledgers:
            raise self.error(f"ledger {ledger.ledger_id} cannot be copied today")
        self.real.offload(ledger, attempt, extra_metadata, callbacks)

    def read_offloaded(
        self, ledger_id: int, attempt: uuid.UUID, driver: Driver, direct: DirectSegment | None = None
    ) -> object:
        return self.real.read_offloaded(ledger_id, attempt, driver, direct)

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        self.deleted.append(attempt)
        self.real.delete_offloaded(ledger_id, attempt, driver)

    def orphans(self, *values: Any) -> list[OrphanedAttempt]:
        return self.real.orphans(*values)

    def close(self) -> None:
        pass


def offload_prefix(desk: OffloadScheduler, name: str, until: Position) -> Position:
    """Offload all sealed segments before a position. Return the start of the first segment that is not offloaded.

    Raises the first failure after all segments were tried.
    """
    desk.offload(OffloadPrefix(name, until))
    run = desk._runs[desk._ledger(name).name]
    with desk._arrival:
        if desk._thread is not None:
            desk._arrival.wait_for(lambda: not run.active)
    if desk._thread is None:
        desk.round()
    if run.failure is not None:
        raise run.failure
    return desk.status(name).first_left
