"""De-duplication of one log: sequence ids per producer, durable and in flight, and those that recovery reads again.

    append ─▶ admit ─▶ queued (in flight) ─▶ synced: known          a repeated entry: answered, never written
                                          └▶ failed: it and all that came behind it is dropped, and may come again

As in Pulsar, a producer is known by its name and numbers its messages upwards. An entry whose sequence ids are not
above the highest known one is a duplicate. Known ids are as durable as the log itself: a snapshot in the metadata at
each seal, and the entries after it, which recovery reads.

Invariants
- The order of admission is the order in the queue: a caller that queues holds `turn`.
- A duplicate of an entry in flight gets that entry's answer. "Duplicate" therefore always means durable.
- When an entry fails, the later entries of its producer are not written any more (`SequenceClaim.standing`). Reason: a
  gap in the log would make the failed entry look like a duplicate when it comes again, and lose it.
- A batch that is a duplicate in part is refused: its messages can be neither dropped nor written twice.
- Recovery trusts the heads of acknowledged entries and leaves their checksums to readers. `sequences_in` verifies the
  checksum of every entry, because sequence ids decide which later appends are duplicates.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.message.entry import is_marker, parse_entry
from pyspark_ledger.ledger.metadata.records import KnownSequence
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex

_SEQUENCE_MAX = 2**63 - 1
DUPLICATE = EARLIEST
"""The position that answers a duplicate, as in Pulsar: (-1, -1)."""


class EntrySequence(NamedTuple):
    """The messages of an entry by their numbers: from `lowest` to `highest`, of one producer."""

    producer: str
    lowest: int
    highest: int


@dataclass(slots=True, eq=False)
class AppendSession:
    """One producer's connection. Once an entry of it has failed nothing more is taken from it: see the invariants."""

    broken: bool = False


@dataclass(slots=True, eq=False)
class SequenceClaim:
    """Entries on their way; no longer `standing` once an earlier entry of one of their producers has failed."""

    session: AppendSession
    highest: dict[str, int] = field(default_factory=dict)
    standing: bool = True
    future: Future[Position] = field(default_factory=Future)


@dataclass(slots=True)
class _Producer:
    known: int = -1
    last_ms: int = 0
    in_flight: deque[SequenceClaim] = field(default_factory=deque)

    def pushed(self, name: str) -> int:
        return self.in_flight[-1].highest[name] if self.in_flight else self.known


class SequenceRange(NamedTuple):
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

    def split(
        self, session: AppendSession, sequences: Sequence[EntrySequence | None], where: str
    ) -> list[SequenceRange]:
        """Cut an append into what is new and what is a duplicate, in order; changes nothing.

        Raises Refused for an entry that is a duplicate in part, Unavailable when an earlier one of the session failed.
        """
        if session.broken:
            raise fallen(where)
        pushed: dict[str, int] = {}
        spans: list[SequenceRange] = []
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
                spans.append(SequenceRange(at, at + 1, duplicate, original))
        return spans

    def admit(
        self, sequences: Iterable[EntrySequence | None], admission: SequenceClaim, future: Future[Position]
    ) -> None:
        """Record a queued append as in flight until its future completes."""
        admission.future = future
        for sequence in sequences:
            if sequence is not None:
                admission.highest[sequence.producer] = sequence.highest
        for name in admission.highest:
            self._producers.setdefault(name, _Producer()).in_flight.append(admission)
        future.add_done_callback(lambda _: self._settle(admission))

    def _settle(self, admission: SequenceClaim) -> None:
        """Record a completed append: durable, or failed with all in-flight appends behind it."""
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
        """Merge the sequence ids found by recovery. Invalidate in-flight entries of a producer whose last id grew."""
        with self.turn:
            for one in found:
                producer = self._producers.setdefault(one.producer, _Producer())
                if one.sequence_id > producer.known:
                    producer.known, producer.last_ms = one.sequence_id, one.last_ms
                    if producer.in_flight:
                        _drop_from(producer.in_flight, producer.in_flight[0])

    def snapshot(self, *, inactive_ms: int, producers_max: int) -> list[KnownSequence]:
        """Return the durable ids, newest first; forget producers after `inactive_ms`, and the oldest beyond a limit."""
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
        """Return the future of the in-flight entry with these numbers; None if they are durable."""
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
    """Return the error of an entry that was dropped because an earlier one failed."""
    return Unavailable(
        f"an append to {name!r} was dropped because one before it of the same producer failed",
        hint="Make a new producer and send again, in order, what was not acknowledged",
    )


def highest_of(sequences: Iterable[EntrySequence | None], now_ms: int) -> list[KnownSequence]:
    """Return the highest sequence id of each producer in these entries."""
    highest: dict[str, int] = {}
    for sequence in sequences:
        if sequence is not None:
            highest[sequence.producer] = max(highest.get(sequence.producer, -1), sequence.highest)
    return [KnownSequence(producer, last, now_ms) for producer, last in highest.items()]


def _drop_from(in_flight: deque[SequenceClaim], admission: SequenceClaim) -> None:
    """Remove a claim and all claims behind it from `in_flight`, and invalidate them."""
    while admission in in_flight:
        in_flight.pop().standing = False


def sequences_in(path: Path, index: EntryIndex) -> Iterator[EntrySequence | None]:
    """Yield the sequence ids of every entry of the index, in order; raises Corrupt naming file, offset and values."""
    if not index.count:
        return
    end = index.end_offset(index.count - 1)
    with disk.opened(path) as fd, mmap.mmap(fd, int(end), prot=mmap.PROT_READ) as data:
        for entry_id, (offset, length) in enumerate(zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)):
            where = f"{path} at {offset}: entry {entry_id}"
            begin = offset + FRAME_BYTES
            # A copy: a view in the traceback of an error would keep the file mapped.
            yield entry_sequence(parse_entry(data[begin : begin + length], where).metadata, where)
