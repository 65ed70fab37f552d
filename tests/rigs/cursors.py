"""Set-up for tests of cursors: a log with a few small entries, and a cursor at its start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.cursors import CursorState, DescribeCursor, SkipEntries
from tests.rigs.entry import entry
from tests.rigs.log import LogRig

ROWS = 5


def given(*places: tuple[int, ...]) -> list[pa.RecordBatch]:
    """Return an acknowledgement of entries (ledger, entry) and of rows (ledger, entry, row)."""
    lines = np.array([(*place, -1)[:3] for place in places], dtype=np.int64).reshape(-1, 3)
    return [acknowledge_batch(*lines.T)]


class CursorRig(LogRig):
    """Log with five segments of four entries (0:0 to 4:3), each with five rows; and a cursor at the log's start."""

    def __init__(self, path: Path, **settings: int) -> None:
        super().__init__(path, **settings)
        log = self.log(entries=4)
        for number in range(20):
            log.append([entry(b"x%d" % number, rows=ROWS)]).result()
        self.cursor("c", Position(0, 0))

    def ack(self, *places: tuple[int, ...]) -> CursorState:
        return self.store.cursors.acknowledge("log", "c", given(*places))

    def state(self) -> CursorState:
        return self.store.cursors.describe(DescribeCursor("log", "c"))

    def skip(self, entries: int) -> CursorState:
        seen = self.state().next_position, self.store.ledger("log").snapshot.end
        return self.store.cursors.skip(SkipEntries("log", "c", entries, *seen))

    def cursor_files(self) -> set[str]:
        listed = {f"{number}.ledger" for number in self.ids()}
        return {name for name in self.files() if name.endswith(".ledger")} - listed


@pytest.fixture
def rig(store_path: Path) -> Iterator[CursorRig]:
    rig = CursorRig(store_path)
    yield rig
    rig.store.close()
