"""Bytes that a cursor writes after a thousand acknowledgements in one segment, over the bytes of its whole state.

The state has ten million randomly acknowledged ranges in a hundred segments. Both numbers are bytes in the cursor's own
log, compressed with ZSTD. The name of the result is `dirty_flush`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import ROUNDS_MIN
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.cursor.cursor_log import CursorLog, CursorLogForm
from pyspark_ledger.ledger.message.compression import ZSTD
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.position_set import PositionSet

LEDGERS, ENTRIES, ACKNOWLEDGED = 100, 400_000, 1_000


def main() -> None:
    """Write a whole state once, then flush new acknowledgements."""
    dice = np.random.default_rng(3)
    state = PositionSet()
    for ledger_id in range(LEDGERS):
        state.add_words(ledger_id, bitset.of_flags(dice.random(ENTRIES) < 0.5))
    with tempfile.TemporaryDirectory() as folder:
        log = CursorLog.create(
            Path(folder), 1, "benchmark", CursorLogForm(1 << 20, ZSTD, 1_000, 50_000), system_clock_ms
        )
        began = time.perf_counter()
        whole = log.write_state(Position(0, -1), state)
        print(
            f"\ndirty_flush\n  whole state: {state.range_count()} ranges, {whole} bytes, "
            f"{time.perf_counter() - began:.3f} s"
        )
        ratios = []
        for number in range(2 * ROUNDS_MIN):
            given = PositionSet()
            given.add_entries(number, dice.integers(0, ENTRIES, ACKNOWLEDGED))
            added = given.difference(state)
            state.update(added)
            began = time.perf_counter()
            size = log.flush(Position(0, -1), state, added)
            ratios.append(size / whole)
            print(f"  flush {number}: {added.entry_count()} new, {size} bytes, {time.perf_counter() - began:.4f} s")
        log.close()
    print(f"ratio dirty_flush {statistics.median(ratios):.5f}")


if __name__ == "__main__":
    main()
