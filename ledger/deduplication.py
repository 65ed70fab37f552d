"""De-duplication of one log: which entries of which producer are in it already, or on their way.

    append ─▶ admit ─▶ queued (in flight) ─▶ synced: known          a repeated entry: answered, never written
                                          └▶ failed: it and all that came behind it is dropped, and may come again

As Pulsar means it: a producer, known by its name, numbers its messages upwards; an entry whose sequence ids are not
above the highest known one is a duplicate. What is known is durable as the log itself is: a snapshot in the metadata at
each seal, and the entries after it, which recovery reads.

Invariants
- The order of admission is the order in the queue: whoever queues holds `turn`.
- An entry whose number is on its way is answered as that one is. So "duplicate" always means: it is durable.
- When an entry fails, what the producer sent behind it is not written any more (`Admission.standing`): a gap in the log
  would make the failed entry look like a duplicate when it comes again, and lose it.
- A batch that is a duplicate in part is refused: its messages can be neither dropped nor written twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ledger.clock import Clock
from ledger.entry import is_marker
from ledger.errors import LedgerError, Refused, Unavailable
from ledger.position import EARLIEST, Position
from ledger.proto.pulsar_messages_pb2 import MessageMetadata

DEDUPLICATION_ENABLED = "ledger.deduplicationEnabled"
"""The property of a ledger that has it."""
_SEQUENCE_MAX = 2**63 - 1
DUPLICATE = EARLIEST
"""The position of an entry that was there already, as in Pulsar's answer: (-1, -1)."""


class EntrySequence(NamedTuple):
    """The messages of an entry by their numbers: from `lowest` to `highest`, of one producer."""

    producer: str
    lowest: int
    highest: int


class KnownSequence(msgspec.Struct, frozen=True):
    """The highest number of a producer that is durable in the log, and when it came."""

    producer: str
    sequence_id: int
    last_ms: int


@dataclass(slots=True, eq=False)
class AppendSession:
    """One producer's connection. Once an entry of it has failed nothing more is taken from it: see the invariants."""

    broken: bool = False


@dataclass(slots=True, eq=False)
class Admission:
    """Entries on their way; no longer `standing` once an earlier entry of one of their producers has failed."""

    session: AppendSession
    highest: dict[str, int] = field(default_factory=dict)
    standing: bool = True
    future: Future[Position] = field(default_factory=Future)


@dataclass(slots=True)
class _Producer:
    known: int = -1
    last_ms: int = 0
    in_flight: deque[Admission] = field(default_factory=deque)

    def pushed(self, name: str) -> int:
        return self.in_flight[-1].highest[name] if self.in_flight else self.known


class Span(NamedTuple):
    """Entries `[start, end)` of an append: new ones, or duplicates of what `future` will tell (None: durable)."""

    start: int
    end: int
    duplicate: bool
    original: Future[Position] | None = None


def entry_sequence(metadata: MessageMetadata, where: str) -> EntrySequence | None:
    """The numbers of an entry, None for a marker or an entry of a run: those have their own way of coming once."""
    if is_marker(metadata) or metadata.HasField("txnid_most_bits"):
        return None
    lowest = metadata.sequence_id
    highest = max(lowest, metadata.highest_sequence_id)
    if highest > _SEQUENCE_MAX:
        raise Refused(f"{where} has sequence id {highest}, at most {_SEQUENCE_MAX} are known")
    return EntrySequence(str(metadata.producer_name), lowest, highest)


class Deduplication:
    """The producers of one log. Hold `turn` over `split`, the queueing and `admit`."""

    def __init__(self, known: Iterable[KnownSequence], clock: Clock) -> None:
        self.turn = threading.RLock()
        self._settled = threading.Condition(self.turn)
        self._clock = clock
        self._producers = {one.producer: _Producer(one.sequence_id, one.last_ms) for one in known}

    def split(self, session: AppendSession, sequences: Sequence[EntrySequence | None], where: str) -> list[Span]:
        """Cut an append into what is new and what is a duplicate, in order; changes nothing.

        Raises Refused for an entry that is a duplicate in part, Unavailable when an earlier one of the session failed.
        """
        if session.broken:
            raise fallen(where)
        pushed: dict[str, int] = {}
        spans: list[Span] = []
        for at, sequence in enumerate(sequences):
            original, duplicate = None, False
            if sequence is not None:
                last = pushed.get(sequence.producer, self._pushed(sequence.producer))
                if sequence.lowest > last:
                    pushed[sequence.producer] = sequence.highest
                elif sequence.highest > last:
                    raise Refused(
                        f"entry {at} of {where} holds messages {sequence.lowest} to {sequence.highest} of producer "
                        f"{sequence.producer!r}, of which {last} is the last that came",
                        hint="Send messages again in the batches in which they were sent, or number new ones higher",
                    )
                elif sequence.producer in pushed:
                    raise Refused(
                        f"entry {at} of {where} repeats messages {sequence.lowest} to {sequence.highest} of producer "
                        f"{sequence.producer!r} behind {last}, which came with it",
                        hint="Send messages in the order of their sequence ids",
                    )
                else:
                    original, duplicate = self._on_its_way(sequence), True
            last_span = spans[-1] if spans else None
            if last_span is not None and not duplicate and not last_span.duplicate:
                spans[-1] = last_span._replace(end=at + 1)
            else:
                spans.append(Span(at, at + 1, duplicate, original))
        return spans

    def admit(self, sequences: Iterable[EntrySequence | None], admission: Admission, future: Future[Position]) -> None:
        """What was queued is on its way, until its future tells."""
        admission.future = future
        for sequence in sequences:
            if sequence is not None:
                admission.highest[sequence.producer] = sequence.highest
        for name in admission.highest:
            self._producers.setdefault(name, _Producer()).in_flight.append(admission)
        future.add_done_callback(lambda _: self._settle(admission))

    def _settle(self, admission: Admission) -> None:
        """What was on its way is durable, or has failed: then all behind it falls too."""
        with self.turn:
            failed = admission.future.exception() is not None
            admission.session.broken |= failed
            now = self._clock()
            for name, highest in admission.highest.items():
                producer = self._producers.get(name)
                if producer is None:
                    continue  # forgotten since a recovery took this off the way
                if failed:
                    _drop_from(producer.in_flight, admission)
                elif admission in producer.in_flight:
                    producer.in_flight.remove(admission)
                    producer.known, producer.last_ms = max(producer.known, highest), now
            self._settled.notify_all()

    def last_sequence_id(self, name: str, timeout_ms: int) -> int:
        """The highest durable number of a producer, once nothing of it is on its way; -1 when none is known."""
        with self.turn:
            self._settled.wait_for(lambda: not self._in_flight(name), timeout_ms / 1000)
            return self._producers[name].known if name in self._producers else -1

    def learn(self, found: Iterable[KnownSequence]) -> None:
        """What recovery has found in the log. Of a producer that it knew less of, nothing on its way stands."""
        with self.turn:
            for one in found:
                producer = self._producers.setdefault(one.producer, _Producer())
                if one.sequence_id > producer.known:
                    producer.known, producer.last_ms = one.sequence_id, one.last_ms
                    if producer.in_flight:
                        _drop_from(producer.in_flight, producer.in_flight[0])

    def snapshot(self, *, inactive_ms: int, producers_max: int) -> list[KnownSequence]:
        """What is durable, newest first; forgets who was silent for `inactive_ms`, and the oldest beyond a limit."""
        with self.turn:
            oldest = self._clock() - inactive_ms
            newest = sorted(self._producers.items(), key=lambda item: item[1].last_ms, reverse=True)
            for place, (name, producer) in enumerate(newest):
                if not producer.in_flight and (producer.last_ms < oldest or place >= producers_max):
                    del self._producers[name]
            return [
                KnownSequence(name, producer.known, producer.last_ms)
                for name, producer in newest
                if name in self._producers and producer.known >= 0
            ]

    def _in_flight(self, name: str) -> bool:
        return name in self._producers and bool(self._producers[name].in_flight)

    def _pushed(self, name: str) -> int:
        producer = self._producers.get(name)
        return -1 if producer is None else producer.pushed(name)

    def _on_its_way(self, sequence: EntrySequence) -> Future[Position] | None:
        """What is in flight with these numbers; None when they are durable."""
        producer = self._producers[sequence.producer]
        if sequence.highest <= producer.known:
            return None
        return next(one.future for one in producer.in_flight if one.highest[sequence.producer] >= sequence.highest)


def duplicate_of(original: Future[Position] | None) -> Future[Position]:
    """A future for a duplicate: `DUPLICATE` as soon as the original is durable, its error when it fails."""
    answer: Future[Position] = Future()
    answer.set_running_or_notify_cancel()

    def tell(first: Future[Position]) -> None:
        error = first.exception()
        if error is None:
            answer.set_result(DUPLICATE)
        else:
            answer.set_exception(error)

    if original is None:
        answer.set_result(DUPLICATE)
    else:
        original.add_done_callback(tell)
    return answer


def fallen(name: str) -> LedgerError:
    """Why an entry was not written although nothing was wrong with it."""
    return Unavailable(
        f"an append to {name!r} was dropped because one before it of the same producer failed",
        hint="Make a new producer and send again, in order, what was not acknowledged",
    )


def highest_of(sequences: Iterable[EntrySequence | None], now_ms: int) -> list[KnownSequence]:
    """What entries of a log, in order, say of their producers."""
    highest: dict[str, int] = {}
    for sequence in sequences:
        if sequence is not None:
            highest[sequence.producer] = max(highest.get(sequence.producer, -1), sequence.highest)
    return [KnownSequence(producer, last, now_ms) for producer, last in highest.items()]


def _drop_from(in_flight: deque[Admission], admission: Admission) -> None:
    """Take an admission and all behind it off the way."""
    while admission in in_flight:
        in_flight.pop().standing = False
