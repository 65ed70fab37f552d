"""Goal: a producer receives its answers in order, and the thread that completes appends never waits for the producer.

Method: futures that the test completes, and a response stream with as much room as the test allows.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import pytest

from pyspark_ledger.ledger.broker.append_stream import AppendResponses
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.log.managed_ledger import AppendAck
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import Appended

_SECONDS = 60


T = TypeVar("T")


def taken(things: queue.SimpleQueue[T], count: int) -> list[T]:
    return [things.get(timeout=_SECONDS) for _ in range(count)]


class Narrow:
    """A way back for so many answers; the others wait until the test makes room."""

    def __init__(self, room: int) -> None:
        self.room = threading.Semaphore(room)
        self.sent: queue.SimpleQueue[Appended] = queue.SimpleQueue()
        self.tellers: set[str] = set()

    def write(self, message: bytes) -> None:
        self.room.acquire()
        self._send(message)

    def write_at_once(self, message: bytes) -> bool:
        if not self.room.acquire(blocking=False):
            return False
        self._send(message)
        return True

    def firsts(self, count: int) -> list[int]:
        return [reply.first.entry_id for reply in taken(self.sent, count)]

    def _send(self, message: bytes) -> None:
        self.tellers.add(threading.current_thread().name)
        self.sent.put(msgspec.msgpack.decode(message, type=Appended))


@contextmanager
def answers_to(replies: Narrow) -> Iterator[tuple[AppendResponses, queue.SimpleQueue[int]]]:
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    answers = AppendResponses(replies, told.put)
    try:
        yield answers, told
    finally:
        answers.close()


def parts(answers: AppendResponses, count: int) -> list[Future[Position]]:
    futures: list[Future[Position]] = [Future() for _ in range(count)]
    for number, future in enumerate(futures):
        answers.put(AppendAck(future, 1, number))
    return futures


def test_who_completes_an_append_tells_and_in_the_order_of_sending() -> None:
    replies = Narrow(99)
    with answers_to(replies) as (answers, told):
        first, second, third = parts(answers, 3)
        second.set_result(Position(1, 1))
        assert replies.sent.empty(), "what came first is not durable"
        first.set_result(Position(1, 0))
        assert replies.firsts(2) == [0, 1]
        third.set_result(Position(1, 2))
        assert replies.firsts(1) == [2]
        assert replies.tellers == {threading.current_thread().name}
        assert taken(told, 3) == [0, 1, 2]


def test_completing_an_append_does_not_wait_for_a_stuck_producer() -> None:
    replies = Narrow(1)
    with answers_to(replies) as (answers, told):
        for number, future in enumerate(parts(answers, 4)):
            future.set_result(Position(1, number))  # returns, though there is room for one only
        assert replies.firsts(1) == [0]
        assert told.qsize() == 1
        replies.room.release(3)
        assert replies.firsts(3) == [1, 2, 3]
        assert replies.tellers == {threading.current_thread().name, "answer"}
        assert taken(told, 4) == [0, 1, 2, 3]


def test_many_that_complete_at_once_are_told_once_each_and_in_order() -> None:
    """Narrow at first: both ways of telling take turns."""
    replies = Narrow(3)
    with answers_to(replies) as (answers, _), ThreadPoolExecutor(4) as pool:
        for start in range(0, 400, 40):
            futures = parts(answers, 40)
            done = [pool.submit(f.set_result, Position(1, start + i)) for i, f in reversed(list(enumerate(futures)))]
            for one in done:
                one.result(_SECONDS)
            replies.room.release(40)
            assert replies.firsts(40) == list(range(start, start + 40))


@pytest.mark.parametrize("room", [0, 1])
def test_a_failure_is_told_when_it_is_known_and_nothing_after_it(room: int) -> None:
    replies = Narrow(room)
    with answers_to(replies) as (answers, told):
        first, second = parts(answers, 2)
        first.set_exception(Unavailable("the disk is gone"))
        replies.room.release(9)
        said = replies.sent.get(timeout=_SECONDS)
        assert said.entries == 0
        assert said.error is not None
        assert said.error.message == "the disk is gone"
        second.set_result(Position(1, 1))
        with pytest.raises(queue.Empty):
            replies.sent.get(timeout=0.1)
        assert taken(told, 2) == [0, 1], "whoever waits for room hears of every part"
        assert isinstance(answers.error, Unavailable)


def test_vanished_producer_fails_its_stream_and_releases_everything() -> None:
    class Gone(Narrow):
        def write_at_once(self, message: bytes) -> bool:
            raise Unavailable("the producer is gone")

    with answers_to(Gone(9)) as (answers, told):
        for number, future in enumerate(parts(answers, 2)):
            future.set_result(Position(1, number))
        assert taken(told, 2) == [0, 1]
        assert isinstance(answers.error, Unavailable)
