"""Goal: an entry fails for its own faults only, and what failed first is what is told. Method: batches of good and bad
entries on a real broker; a log whose disk fails where no real one would.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pyspark_ledger.ledger.broker.append_stream import AppendStream
from pyspark_ledger.ledger.broker.limits import InFlightBytes
from pyspark_ledger.ledger.errors import Corrupt, Refused, Unavailable
from pyspark_ledger.ledger.log.deduplication import AppendSession
from pyspark_ledger.ledger.log.managed_ledger import AppendAck
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import Appended, CreateLedger

Rig = Any
MakeEntry = Callable[..., bytes]


def test_entries_that_share_a_batch_with_a_bad_one_do_not_fail_for_it(
    rig: Rig, make_entry: MakeEntry, read_log: Callable[..., list[tuple[str, bytes]]]
) -> None:
    rig.start("--create")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    producer = client.producer("orders")
    entries = [make_entry(b"%d" % i) for i in range(6)]
    entries[3] = entries[3][:-1] + b"?"
    with producer._writing:  # so that the sender finds all of them at once
        producer.append(entries[0])
        futures = [producer.append(entry) for entry in entries[1:]]
        assert len(producer._queued) == 6
    assert [future.result(60).entry_id for future in futures[:2]] == [1, 2]
    with pytest.raises(Corrupt, match="CRC32C") as corrupt:
        futures[2].result(60)
    assert "not known" not in corrupt.value.message
    for future in futures[3:]:
        with pytest.raises(Unavailable, match=r"an earlier entry failed: .*CRC32C.* whether 2 entries in flight"):
            future.result(60)
    with pytest.raises(Corrupt):
        producer.append(make_entry(b"late"))
    assert [payload for _, payload in read_log(client, "orders")] == [b"0", b"1", b"2"]


class FailingLog:
    """A log that takes entries and settles them when it is told; `bad` is refused at once."""

    def __init__(self) -> None:
        self.waiting: list[Future[Position]] = []

    def append_parts(self, entries: list[memoryview], session: AppendSession) -> list[AppendAck]:
        if any(bytes(entry) == b"bad" for entry in entries):
            for future in self.waiting:
                future.set_exception(Unavailable("the disk is gone"))
            raise Refused("this is no entry")
        self.waiting.append(Future())
        return [AppendAck(self.waiting[-1], len(entries), sum(map(len, entries)))]


class Replies:
    """Answers that the client would read."""

    def __init__(self) -> None:
        self.sent: list[Appended] = []

    def write(self, message: bytes) -> None:
        self.sent.append(msgspec.msgpack.decode(message, type=Appended))

    def write_at_once(self, message: bytes) -> bool:
        self.write(message)
        return True


def test_an_append_that_failed_before_a_refused_one_is_the_error() -> None:
    """The refusal is known at once, the failing sync later: the client takes the error for its first open entry."""
    replies = Replies()
    stream = AppendStream(FailingLog(), replies, 1000, InFlightBytes(lambda: 1000, lambda: 0), lambda _: None)
    with pytest.raises(Unavailable, match="the disk is gone"):
        stream.serve(iter([[memoryview(b"good")], [memoryview(b"bad")]]))
    assert [(reply.entries, reply.error.message) for reply in replies.sent if reply.error] == [(0, "the disk is gone")]


def test_stream_of_a_vanished_client_ends_and_its_entries_are_written() -> None:
    class Gone(Replies):
        def write(self, message: bytes) -> None:
            raise pa.ArrowInvalid("nobody reads this")

    log = FailingLog()
    batches = iter([[memoryview(b"first")], [memoryview(b"second")]])

    def settled() -> Any:
        for batch in batches:
            yield batch
            for future in log.waiting:
                if not future.done():
                    future.set_result(Position(0, 0))

    with pytest.raises(pa.ArrowInvalid, match="nobody reads this"):
        AppendStream(log, Gone(), 1, InFlightBytes(lambda: 1000, lambda: 0), lambda _: None).serve(settled())


def test_stream_end_releases_bytes_once_after_the_last_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last append is completed late, and the producer has disconnected meanwhile."""
    of_all, log, told, telling = (
        InFlightBytes(lambda: 1000, lambda: 0),
        StoppedLog(),
        AppendStream._on_answered,
        threading.Event(),
    )

    def slowly(stream: AppendStream, size: int) -> None:
        telling.set()
        time.sleep(0.3)
        told(stream, size)

    def sent() -> Iterator[list[memoryview]]:
        yield [memoryview(b"x" * 8)]
        telling.wait(30)

    monkeypatch.setattr(AppendStream, "_on_answered", slowly)
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(AppendStream(log, Replies(), 1000, of_all, lambda _: None).serve, sent())
        log.pending.get(timeout=30).set_result(Position(0, 0))
        served.result(30)
    assert of_all._bytes == 0


class StoppedLog:
    """A log whose disk does not answer; each append stays in flight until the test settles it."""

    def __init__(self) -> None:
        self.pending: queue.SimpleQueue[Future[Position]] = queue.SimpleQueue()

    def append_parts(self, entries: list[memoryview], _session: object) -> list[AppendAck]:
        future: Future[Position] = Future()
        self.pending.put(future)
        return [AppendAck(future, len(entries), sum(map(len, entries)))]


def test_all_producers_together_are_held_back_and_each_has_one_entry_there() -> None:
    """Ten bytes for all: the first takes eight, the second still gets its first in, and both wait with their second."""
    of_all = InFlightBytes(lambda: 10, lambda: 0)
    logs = [StoppedLog(), StoppedLog()]
    read: list[list[int]] = [[], []]

    def batches(number: int) -> Iterator[list[memoryview]]:
        for sequence in range(3):
            read[number].append(sequence)
            yield [memoryview(b"x" * 8)]

    with ThreadPoolExecutor(2) as pool:
        streams = [AppendStream(log, Replies(), 1000, of_all, lambda _: None) for log in logs]
        served = [pool.submit(stream.serve, batches(number)) for number, stream in enumerate(streams)]
        first = [log.pending.get(timeout=30) for log in logs]
        for log in logs:
            with pytest.raises(queue.Empty):
                log.pending.get(timeout=0.2)
        assert all(len(numbers) <= 2 for numbers in read), "a producer was read beyond what may wait"
        for future in first:
            future.set_result(Position(0, 0))
        for _ in range(2):
            for log in logs:
                log.pending.get(timeout=30).set_result(Position(0, 0))
        for done in served:
            done.result(30)
    assert of_all._bytes == 0
