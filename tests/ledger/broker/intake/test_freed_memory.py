"""Goal: memory that a burst has left goes back to the system soon, and a broker that needs its memory is not disturbed.

Method: a made-up process and clock, and the real functions once.
"""

from __future__ import annotations

import pyarrow as pa

from pyspark_ledger.ledger.broker.intake.freed_memory import FreedMemory, give_back, own_memory

MIB = 1024 * 1024


class Process:
    """Memory that is used, and memory that was freed and is not returned yet."""

    def __init__(self) -> None:
        self.used, self.freed, self.now = 100 * MIB, 0, 0
        self.memory = FreedMemory(lambda: self.used + self.freed, self.give_back, lambda: self.now)

    def give_back(self) -> None:
        self.freed = 0

    def checks(self, seconds: int) -> int:
        """Let time pass. Return how often freed memory was given back."""
        times = 0
        for _ in range(2 * seconds):
            self.now += 500
            times += self.memory.check()
        return times


def test_a_burst_goes_back_within_ten_seconds_and_idleness_costs_nothing() -> None:
    process = Process()
    assert process.checks(3600) == 0
    process.used += 500 * MIB
    process.checks(5)
    process.used, process.freed = 100 * MIB, 500 * MIB
    assert process.checks(10) == 1
    assert process.freed == 0
    assert process.checks(3600) == 0


def test_memory_that_is_needed_is_tried_six_times_a_minute() -> None:
    process = Process()
    process.used += 500 * MIB
    assert process.checks(60) == 6


def test_freed_memory_of_this_process_goes_back() -> None:
    held = [pa.py_buffer(bytes([1]) * 100_000) for _ in range(1000)]
    used = own_memory()
    held.clear()
    give_back()
    assert own_memory() < used - 50 * MIB
