"""What the tests of a whole log share: a store of tiny ledgers, and runs that are staged and committed to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ledger.managed_ledger import ManagedLedger
from ledger.protocol import CreateLedger
from ledger.run_calls import CommitRun, CommittedRun, StagedPart
from ledger.settings import Settings
from ledger.staging import PartFile
from ledger.store import Store
from tests.ledger.log_rig import BLOCK, NOW, entry


def open_store(path: Path, *, take_over: bool = False, clock: Callable[[], int] = lambda: NOW) -> Store:
    return Store.open(path, settings=Settings(), clock=clock, create=True, take_over=take_over)


def create(store: Store, name: str = "log", entries: int = 5) -> ManagedLedger:
    return store.create_ledger(CreateLedger(name, exist_ok=True, block_bytes=BLOCK, max_entries_per_ledger=entries))


def stage(store: Store, query: str, batch: int, payloads: list[bytes], run: int) -> StagedPart:
    with PartFile(store.open_part(query, batch)) as part:
        for payload in payloads:
            part.write([entry(payload, run=run)], 1)
        return part.close()


def commit(store: Store, batch: int, payloads: list[bytes], run: int, query: str = "q") -> CommittedRun:
    parts = [stage(store, query, batch, payloads, run)]
    return store.commit(CommitRun("log", query, batch, 7, run, parts))
