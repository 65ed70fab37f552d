"""Goal: bytes in flight are limited and nobody starves. Method: threads that wait, watched by what waits."""

from __future__ import annotations

import threading

import pytest

from pyspark_ledger.ledger.cache.reads_in_flight import ReadPermits
from pyspark_ledger.ledger.errors import Unavailable
from tests.rigs.deadline import wait_until


def test_a_limit_of_nothing_is_none() -> None:
    permits = ReadPermits(0)
    permits.acquire(10**12)
    permits.acquire(10**12)
    assert permits.used == 2 * 10**12


def test_reads_wait_in_the_order_in_which_they_came() -> None:
    permits, order = ReadPermits(100, 60_000, 3), list[int]()
    permits.acquire(60)
    threads = []
    for number, size in enumerate((90, 10, 10)):  # the small ones would fit, and do not pass the large one

        def read(number: int = number, size: int = size) -> None:
            permits.acquire(size)
            order.append(number)

        threads.append(threading.Thread(target=read))
        threads[-1].start()
        wait_until(lambda number=number: permits.waiting == number + 1)  # type: ignore[misc]
    permits.release(60)
    wait_until(lambda: len(order) == 2)
    assert order == [0, 1]
    permits.release(90)
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2]
    assert permits.used == 20


def test_what_is_larger_than_all_there_is_goes_alone() -> None:
    permits = ReadPermits(100, 0)
    permits.acquire(1000)
    with pytest.raises(Unavailable, match="waited 0 ms, while 1000 of at most 100 bytes were in flight"):
        permits.acquire(1)
    permits.release(1000)
    permits.acquire(100)


def test_too_many_waiting_are_refused_and_a_timeout_leaves_no_trace() -> None:
    permits = ReadPermits(100, 0, 0)
    permits.acquire(100)
    with pytest.raises(Unavailable, match=r"0 reads wait for storage, at most 0 may"):
        permits.acquire(1)
    permits._waiting_max = 1
    with pytest.raises(Unavailable, match="waited 0 ms"):
        permits.acquire(1)
    assert (permits.used, permits.waiting) == (100, 0)
    permits.change(200)
    permits.acquire(100)
