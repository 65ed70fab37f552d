"""Set-up for tests of a whole log: stores with small segments, and runs that are staged and committed to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.snapshot import LogWatch
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun, StagedPart
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from tests.rigs.entry import entry
from tests.rigs.log import BLOCK, NOW


def open_store(
    path: Path,
    *,
    create: bool = True,
    take_over: bool = False,
    clock: Callable[[], int] = lambda: NOW,
    settings: Settings | None = None,
    watch: Callable[[Store], LogWatch | None] = lambda _: None,
) -> Store:
    return Store.open(
        path,
        settings=settings or Settings(),
        clock=clock,
        create=create,
        take_over=OwnerChange.BROKER if take_over else None,
        watch=watch,
    )


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    store = open_store(store_path)
    yield store
    store.close()


class Stores:
    """Successive openings of one store. Earlier openings are never closed, as after a kill of their broker."""

    def __init__(self, path: Path, **shape: Any) -> None:
        self.path = path
        self.shape = {"block_bytes": BLOCK, "max_entries_per_ledger": 3, **shape}
        self.opened: list[Store] = []

    def log(self, settings: Settings | None = None, **shape: Any) -> ManagedLedger:
        self.opened.append(open_store(self.path, take_over=True, settings=settings))
        return self.opened[-1].create_ledger(CreateLedger("log", exist_ok=True, **self.shape | shape))

    def close(self) -> None:
        for store in reversed(self.opened):
            store.close()


def create(store: Store, name: str = "log", entries: int = 5) -> ManagedLedger:
    return store.create_ledger(CreateLedger(name, exist_ok=True, block_bytes=BLOCK, max_entries_per_ledger=entries))


def fill(store: Store, name: str, payloads: list[bytes], entries: int = 3) -> None:
    log = create(store, name, entries)
    for payload in payloads:
        log.append([entry(payload)]).result()


def stage(store: Store, query: str, batch: int, payloads: list[bytes], run: int) -> StagedPart:
    with PartWriter.to_file(store.commits.open_part(query, batch)) as part:
        for payload in payloads:
            part.write([entry(payload, run=run)], 1)
        return part.close()


def commit(store: Store, batch: int, payloads: list[bytes], run: int, query: str = "q") -> CommittedRun:
    parts = [stage(store, query, batch, payloads, run)]
    return store.commits.commit(CommitRun("log", query, batch, 7, run, parts))
