"""Goal: one look for all who ask at once, and never one that began before they asked. Method: a read that waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledger.shared_read import SharedRead


def test_alone_each_call_is_a_read() -> None:
    answers = iter(range(3))
    shared = SharedRead(lambda: next(answers))
    assert [shared(), shared(), shared()] == [0, 1, 2]


def test_who_asks_during_a_read_shares_the_next_one() -> None:
    calls: list[int] = []
    entered, leave = threading.Event(), threading.Event()

    def read() -> int:
        calls.append(len(calls))
        if len(calls) == 1:
            entered.set()
            assert leave.wait(30)
        return calls[-1]

    shared = SharedRead(read)
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(shared)
        assert entered.wait(30)
        others = [threads.submit(shared) for _ in range(8)]
        while len(shared._changed._waiters) < 8:  # type: ignore[attr-defined]
            threading.Event().wait(0.001)
        leave.set()
        assert first.result(30) == 0
        assert [other.result(30) for other in others] == [1] * 8, "not the answer that was sought before they asked"
    assert calls == [0, 1]


def test_a_failure_is_told_to_all_and_forgotten() -> None:
    answers = iter([ValueError("gone"), 7])

    def read() -> int:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    shared = SharedRead(read)
    with pytest.raises(ValueError, match="gone"):
        shared()
    assert shared() == 7


def test_many_threads_never_get_an_answer_from_before() -> None:
    lock, value = threading.Lock(), [0]

    def read() -> int:
        with lock:
            return value[0]

    shared = SharedRead(read)

    def ask() -> bool:
        for _ in range(200):
            with lock:
                value[0] += 1
                mine = value[0]
            if shared() < mine:
                return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: ask(), range(8)))
