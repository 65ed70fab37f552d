"""Goal: a message that comes again is acknowledged and not written, across restarts, and a failure loses nothing.
Method: the bookkeeping with futures settled by hand, then a real store closed, killed and failing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.log import deduplication
from pyspark_ledger.ledger.log.deduplication import (
    DUPLICATE,
    AppendSession,
    Deduplication,
    EntrySequence,
    SequenceClaim,
    duplicate_of,
    entry_sequence,
    highest_of,
)
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.metadata.records import KnownSequence
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.rigs import entry as entries
from tests.rigs.log import NOW, contents
from tests.rigs.store import Stores


class Book:
    """A `Deduplication` whose appends settle when the test says so."""

    def __init__(self, *known: KnownSequence, clock: Callable[[], int] = lambda: NOW) -> None:
        self.book = Deduplication(known, clock)
        self.session = AppendSession()

    def send(self, *numbers: int, name: str = "p", session: AppendSession | None = None) -> list[Future[Position]]:
        """A future per span of one append of entries with these numbers."""
        session = session or self.session
        sequences = [EntrySequence(name, number, number) for number in numbers]
        futures: list[Future[Position]] = []
        with self.book.lock:
            for span in self.book.split(session, sequences, "a test"):
                if span.duplicate:
                    futures.append(duplicate_of(span.original))
                    continue
                future: Future[Position] = Future()
                claim = SequenceClaim(session)
                self.book.admit(sequences[span.start : span.end], claim, future)
                self.last = claim
                futures.append(future)
        return futures

    def known(self, name: str = "p") -> int:
        return self.book.last_sequence_id(name, 0)


def test_what_is_durable_or_on_its_way_is_a_duplicate() -> None:
    book = Book(KnownSequence("p", 5, NOW))
    first, second, new = book.send(4, 5, 6, 7)
    assert [first.result(0), second.result(0)] == [DUPLICATE, DUPLICATE]
    (again,) = book.send(6)
    assert not again.done()
    new.set_result(Position(1, 0))
    assert again.result(0) == DUPLICATE == Position(-1, -1)
    assert book.known() == 7
    assert book.known("other") == -1


def test_numbers_are_each_producers_own() -> None:
    book = Book(KnownSequence("p", 5, NOW))
    (future,) = book.send(0, name="q")
    future.set_result(Position(1, 0))
    assert (book.known("p"), book.known("q")) == (5, 0)


def test_a_batch_that_is_a_duplicate_in_part_is_refused() -> None:
    book = Book(KnownSequence("p", 5, NOW))
    with pytest.raises(Refused, match="has messages 4 to 6 of producer 'p', whose last sequence id is 5"):
        book.book.split(book.session, [EntrySequence("p", 4, 6)], "a test")


def test_failure_invalidates_later_entries_of_its_producer_for_resending() -> None:
    book = Book()
    (one,) = book.send(1)
    (two,) = book.send(2)
    failed = book.last
    (three,) = book.send(3)
    behind = book.last
    (again,) = book.send(3)
    (other,) = book.send(9, name="q", session=AppendSession())
    two.set_exception(Unavailable("disk"))
    assert (failed.valid, behind.valid, book.last.valid) == (False, False, True)
    with pytest.raises(Unavailable, match="an earlier append of the same producer failed"):
        book.send(4)
    three.set_exception(Unavailable("fallen"))
    with pytest.raises(Unavailable, match="fallen"):
        again.result(0)
    # The same numbers are new to another session, except the one before the failure.
    duplicate, anew = book.send(1, 2, 3, session=AppendSession())
    one.set_result(Position(1, 0))
    assert duplicate.result(0) == DUPLICATE
    anew.set_result(Position(1, 1))
    other.set_result(Position(1, 3))
    assert (book.known("p"), book.known("q")) == (3, 9)


def test_who_is_silent_or_one_too_many_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "_PRODUCERS_MAX", 3)
    now = [NOW]
    book = Book(*(KnownSequence(f"p{i}", i, NOW - i) for i in range(5)), clock=lambda: now[0])
    assert [one.producer for one in book.book.snapshot(inactive_ms=10)] == ["p0", "p1", "p2"]
    assert book.known("p3") == -1
    book.send(7, name="p2")
    now[0] += 10
    assert [one.producer for one in book.book.snapshot(inactive_ms=10)] == ["p0", "p2"]


@pytest.mark.parametrize("failed", [True, False])
def test_answer_for_a_forgotten_producer_wakes_the_waiters(monkeypatch: pytest.MonkeyPatch, failed: bool) -> None:
    """Recovery takes what is on its way off it; then nothing keeps a silent producer from being forgotten."""
    monkeypatch.setattr(deduplication, "_PRODUCERS_MAX", 0)
    book = Book(clock=lambda: NOW)
    (future,) = book.send(1)
    future._done_callbacks.clear()  # type: ignore[attr-defined]  # an exception of a callback is only logged
    book.book.learn([KnownSequence("p", 5, NOW)])
    assert book.book.snapshot(inactive_ms=10) == []
    if failed:
        future.set_exception(Unavailable("disk"))
    else:
        future.set_result(Position(1, 0))
    book.book._settle(book.last)
    assert book.known() == -1
    assert book.session.broken is failed


def test_numbers_of_an_entry() -> None:
    def numbers(**fields: int) -> EntrySequence | None:
        return entry_sequence(MessageMetadata(producer_name="p", publish_time=1, **fields), "entry 0")

    assert numbers(sequence_id=4) == EntrySequence("p", 4, 4)
    assert numbers(sequence_id=4, highest_sequence_id=9) == EntrySequence("p", 4, 9)
    assert numbers(sequence_id=4, marker_type=21) is None
    assert numbers(sequence_id=4, txnid_most_bits=1, txnid_least_bits=1) is None
    with pytest.raises(Refused, match="sequence id 18446744073709551615"):
        numbers(sequence_id=2**64 - 1)
    assert highest_of([numbers(sequence_id=7), None, numbers(sequence_id=3)], NOW) == [KnownSequence("p", 7, NOW)]


def entry(number: int, name: str = "p") -> bytes:
    return entries.entry(f"{name}{number}".encode(), producer_name=name, sequence_id=number)


@pytest.fixture
def stores(store_path: Path) -> Iterator[Stores]:
    with closing(Stores(store_path, deduplication=True)) as stores:
        yield stores


def send(log: ManagedLedger, *numbers: int, name: str = "p") -> list[Position]:
    parts = log.append_parts([entry(number, name) for number in numbers], AppendSession())
    return [part.future.result(60) for part in parts]


@pytest.mark.parametrize("sent", range(1, 8))
def test_what_a_killed_broker_knew_is_known_to_the_next(stores: Stores, sent: int) -> None:
    log = stores.log()
    for number in range(sent):
        send(log, number)
    log = stores.log()  # takes over a store that nobody closed: snapshots of seals, and the entries after them
    assert log.last_sequence_id("p", 0) == sent - 1
    assert send(log, *range(sent))[:1] == [DUPLICATE]
    send(log, *range(sent, 9))
    assert contents(log) == [b"p%d" % number for number in range(9)]


def test_what_a_closed_broker_knew_is_known_to_the_next(stores: Stores) -> None:
    send(stores.log(), 0, 1, 2, 3)
    stores.opened.pop().close()
    assert send(stores.log(), 3) == [DUPLICATE]


def test_a_batch_is_known_by_its_highest_number(stores: Stores) -> None:
    log = stores.log()
    log.append([entries.entry(b"batch", rows=3, sequence_id=4, highest_sequence_id=6)]).result(60)
    log = stores.log()
    assert log.last_sequence_id("p", 0) == 6
    assert send(log, 5) == [DUPLICATE]
    with pytest.raises(Refused, match="duplicates: it has 2 parts, expected 1"):
        log.append([entry(6), entry(7)])


def test_a_log_without_it_writes_what_comes_again(stores: Stores) -> None:
    stores.log()
    log = stores.opened[0].create_ledger(CreateLedger("other"))
    assert log.last_sequence_id("p", 0) is None
    send(log, 1)
    send(log, 1)
    assert contents(log) == [b"p1", b"p1"]


def test_entry_failed_by_the_disk_is_accepted_again_before_later_ones(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stores.log()
    send(log, 0)
    calls, real = [0], disk.sync_data

    def failing(fd: int) -> None:
        calls[0] += 1
        if failing_now:
            raise OSError(5, "no disk")
        real(fd)

    failing_now = True
    monkeypatch.setattr(disk, "sync_data", failing)
    session = AppendSession()
    futures: list[Future[Position]] = []
    for number in (1, 2, 3):
        try:
            futures += [part.future for part in log.append_parts([entry(number)], session)]
        except Unavailable:
            break  # the first has failed already
    failed = [future.exception(60) for future in futures]
    assert all(isinstance(error, LedgerError) for error in failed)
    failing_now = False
    with pytest.raises(Unavailable):
        log.append_parts([entry(4)], session)
    send(log, *range(5))
    assert contents(log) == [b"p%d" % number for number in range(5)]
    assert log.last_sequence_id("p", 0) == 4


def test_producers_that_were_silent_are_forgotten_at_the_seal(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "_PRODUCERS_MAX", 1)
    log = stores.log()
    send(log, 5, name="a")
    send(log, 7, name="b")
    stores.opened.pop().close()
    kept: dict[str, Any] = {name: stores.log().last_sequence_id(name, 0) for name in "ab"}
    assert sorted(kept.values()) == [-1, 5] or sorted(kept.values()) == [-1, 7]
