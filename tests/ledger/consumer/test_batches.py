"""Goal: no interrupt, thread or signal loses a batch, repeats it, or acknowledges one that nobody got. Method: a source
in memory; an interrupt at each place at which Python delivers one; threads; a real signal.
"""

from __future__ import annotations

import dis
import os
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.consumer.batch import Batch, BatchLimits
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.position import Position

SECONDS = 20
MODULE = Batches.__next__.__code__.co_filename
CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}
"""The instructions after which Python delivers an interrupt."""


class Numbers:
    """Source of batches 0 to `count` - 1 of one row, which then waits until it is woken. `ends`: no batch follows."""

    def __init__(self, count: int, *, ends: bool = False) -> None:
        self.count, self.ends, self.at, self.closed = count, ends, 0, 0
        self.waiting = threading.Event()
        self.failing = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def take(self) -> Batch | None:
        assert not self.closed, "a closed source is not asked"
        if self.failing:
            raise Unavailable("no broker answers")
        return batch(self.at) if self.at < self.count else None

    def passed(self, batch: Batch) -> None:
        self.at = max(self.at, batch.position.entry_id)

    def wait(self, milliseconds: int) -> bool:
        if self.ends:
            return False
        self.waiting.set()
        with suppress(queue.Empty):
            self._wakes.get(timeout=milliseconds / 1000)
        return True

    def wake(self) -> None:
        self._wakes.put(None)

    def close(self) -> None:
        self.closed += 1


def batch(number: int) -> Batch:
    return Batch("orders", Position(0, number), Position(0, number + 1), pa.table({"n": [number]}))


def number(batch: Batch) -> int:
    return batch.start.entry_id


def loop(source: Numbers, wait_ms: int | None = None, after: Callable[[Batch], None] | None = None) -> Batches[Batch]:
    return Batches(source, "orders", wait_ms, after)


def test_batch_states_its_rows_and_its_place() -> None:
    rows = pa.concat_tables([pa.table({"n": [1, 2]}), pa.table({"n": [3]})])
    found = Batch("orders", Position(0, 1), Position(0, 3), rows)
    assert list(found.rows()) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (found.num_rows, repr(found)) == (3, "<Batch of orders: 3 rows of [0:1, 0:3)>")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("wait", (None, 1, True)),
        ("wait", (None, 1, float("nan"))),
        ("wait", (None, 1, float("inf"))),
        ("wait", (None, 1, -1)),
        ("wait", (None, 1, "5")),
        ("max_rows", (0, 1, None)),
        ("max_rows", (True, 1, None)),
        ("max_rows", (1.5, 1, None)),
        ("max_bytes", (None, 0, None)),
        ("max_bytes", (None, None, None)),
        ("max_bytes", (None, 2**63, None)),
    ],
)
def test_wrong_limits_are_refused_by_name(name: str, given: tuple[Any, Any, Any]) -> None:
    with pytest.raises(Refused, match=f"^\\[LEDGER_REFUSED\\] {name} is .*, expected "):
        BatchLimits(*given)


def test_limits_give_the_wait_in_milliseconds() -> None:
    waits = [BatchLimits(None, 1, wait).wait_ms for wait in (None, 0, 2, 0.25, 0.0001)]
    assert waits == [None, 0, 2000, 250, 1]


def test_loop_hands_out_all_batches_and_then_closes_its_source() -> None:
    source = Numbers(3)
    batches = loop(source, wait_ms=0)
    assert [number(found) for found in batches] == [0, 1, 2]
    assert source.closed
    assert repr(batches) == "<Batches of orders, closed>"
    assert list(batches) == []


def test_loop_over_a_source_that_ends_does_not_wait() -> None:
    assert [number(found) for found in loop(Numbers(2, ends=True))] == [0, 1]


def test_error_of_the_source_leaves_the_iterator_usable() -> None:
    source = Numbers(2)
    batches = loop(source)
    assert number(next(batches)) == 0
    source.failing = True
    with pytest.raises(Unavailable):
        next(batches)
    source.failing = False
    assert number(next(batches)) == 1


def test_after_gets_each_batch_when_the_next_one_is_asked_for() -> None:
    given: list[int] = []
    batches = loop(Numbers(3), 0, lambda batch: given.append(number(batch)))
    next(batches)
    assert given == []
    next(batches)
    assert given == [0]
    assert len(list(batches)) == 1
    assert given == [0, 1, 2]


def test_after_gets_no_batch_of_a_loop_that_was_left() -> None:
    given: list[int] = []
    with loop(Numbers(3), 0, lambda batch: given.append(number(batch))) as batches:
        for found in batches:
            if number(found) == 1:
                break
    assert given == [0]
    assert list(batches) == []
    assert given == [0]


def test_failed_after_is_repeated_before_the_next_batch() -> None:
    given: list[int] = []

    def fail_once(batch: Batch) -> None:
        given.append(number(batch))
        if len(given) == 1:
            raise Unavailable("no broker answers")

    batches = loop(Numbers(2), 0, fail_once)
    next(batches)
    with pytest.raises(Unavailable):
        next(batches)
    assert number(next(batches)) == 1
    assert given == [0, 0]


@pytest.mark.parametrize("acknowledges", [False, True])
def test_interrupt_at_any_place_loses_and_repeats_no_batch(acknowledges: bool) -> None:
    interrupted, place = True, 0
    while interrupted:
        given, found = list[int](), list[int]()
        after = (lambda batch, given=given: given.append(number(batch))) if acknowledges else None
        batches = loop(Numbers(3), 0, after)
        interrupted = collect_until_interrupt(batches, place, found)
        assert set(given) <= set(found), "only what was handed out is acknowledged"
        found += [number(batch) for batch in batches]
        assert found == [0, 1, 2], place
        place += 1
    assert place > 50


def collect_until_interrupt(batches: Batches[Batch], place: int, found: list[int]) -> bool:
    """Add the batches to `found`, and interrupt the module of `Batches` at its place number `place`, if it has one."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != MODULE:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in interruptible(frame.f_code):
            seen += 1
            if seen > place:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found.extend(number(batch) for batch in batches)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@cache
def interruptible(code: CodeType) -> set[int]:
    """Return the offsets of the instructions of a function before which Python delivers an interrupt."""
    return {after.offset for before, after in pairwise(dis.get_instructions(code)) if before.opname in CALLS}


def test_close_by_another_thread_ends_a_waiting_next() -> None:
    source = Numbers(1)
    batches = loop(source)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(number(batch) for batch in batches))
    thread.start()
    assert source.waiting.wait(SECONDS)
    batches.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert found == [0]
    assert source.closed
    batches.close()


def test_close_by_a_signal_handler_ends_a_waiting_next() -> None:
    source = Numbers(1)
    batches = loop(source)
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: batches.close())
    try:
        threading.Thread(target=lambda: source.waiting.wait(SECONDS) and os.kill(os.getpid(), signal.SIGUSR1)).start()
        assert [number(found) for found in batches] == [0]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert source.closed


def test_threads_of_one_iterator_get_each_batch_once() -> None:
    batches = loop(Numbers(500), wait_ms=0)
    found: Counter[int] = Counter()
    threads = [threading.Thread(target=lambda: found.update(number(batch) for batch in batches)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == Counter(range(500))


def test_after_gets_only_the_batch_of_the_thread_that_asks() -> None:
    given: list[int] = []
    batches = loop(Numbers(3), 0, lambda batch: given.append(number(batch)))
    next(batches)
    other = threading.Thread(target=lambda: (next(batches), next(batches)))
    other.start()
    other.join(SECONDS)
    assert given == [1], "this thread still works on batch 0"
    assert list(batches) == []
    assert given == [1, 0]


def test_forked_child_is_refused_and_touches_nothing() -> None:
    source = Numbers(2)
    batches = loop(source)
    next(batches)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            batches.close()
            assert not source.closed
            next(batches)
        except Refused as refused:
            os.write(write, refused.message.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1000).decode() == (
        f"the batches of orders were opened in process {os.getpid()}, process {child} iterates them"
    )
    assert number(next(batches)) == 1
