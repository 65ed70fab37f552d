"""De-duplication of one log by producer name and sequence id.

    append ─▶ admit ─▶ queued (in flight) ─▶ synced: its sequence ids are durable
                                          └▶ failed: the entry and all later entries of its producer are dropped

As in Pulsar, a producer has a name and numbers its messages in ascending order. The number is the *sequence id*. An
entry is a duplicate if the log already knows its sequence ids, or higher ids, from its producer. A duplicate is
acknowledged and not written. The known ids are as durable as the log: when a segment (file) is sealed, they are saved
in the metadata. After a crash, recovery finds later ids in the entries of the open segment.

Invariants
- Each append in flight has a *claim*, which contains its sequence ids. `admit` records the claim. A caller holds `lock`
  while it queues an append and calls `admit`. So claims have the order of the queue.
- A duplicate of an entry in flight gets the result of this entry. So a duplicate is acknowledged only if the entry is
  durable.
- If an entry fails, the later entries of its producer are not written (`SequenceClaim.valid`). Reason: a later entry
  has higher ids. If it were written, a retry of the failed entry would be dropped as a duplicate.
- A batch with old and new messages is refused, because an entry is either written or dropped as a whole.
- A message too large for one entry is sent as several entries, its *chunks*. The id of the message becomes known only
  with its last chunk. So if the last chunk is missing after a crash, the message is not a duplicate when it is sent
  again. When a reader finds the first chunk for the second time, it discards the earlier chunks.
- A chunk is accepted only if it follows the previous chunk in the same session (connection of a producer). So no
  message lacks a chunk, and two sessions with the same producer name cannot mix their chunks.
- Recovery reads the ids of the open segment with `sequences_in`, which verifies the checksum of every entry. Reason: a
  damaged sequence id would drop or repeat later appends. Without de-duplication, recovery does not verify acknowledged
  entries.
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
_PRODUCERS_MAX = 10_000
DUPLICATE = EARLIEST
"""The position that the producer of a duplicate gets, as in Pulsar: (-1, -1)."""


class EntrySequence(NamedTuple):
    """Sequence ids of the messages of an entry: `lowest` to `highest`, inclusive, of one producer.

    An entry that is a chunk has the chunk's number from 0 and the number of chunks of its message.
    """

    producer: str
    lowest: int
    highest: int
    chunk: int = 0
    chunks: int = 1

    @property
    def completes(self) -> bool:
        """Whether the entry is the last chunk of a message, or contains only complete messages."""
        return self.chunk == self.chunks - 1


@dataclass(slots=True, eq=False)
class AppendSession:
    """Connection of one producer. After the first failed entry, a session is `broken` and refuses further appends."""

    broken: bool = False


@dataclass(slots=True, eq=False)
class SequenceClaim:
    """Claim: the highest sequence id of each producer in an append in flight.

    `valid` becomes false when an earlier entry of one of the producers fails.
    """

    session: AppendSession
    highest: dict[str, int] = field(default_factory=dict)
    valid: bool = True
    future: Future[Position] = field(default_factory=Future)


class _NextChunk(NamedTuple):
    """Chunk that a session must send next, because its message is unfinished."""

    session: AppendSession
    sequence: EntrySequence


@dataclass(slots=True)
class _Producer:
    last_id: int = -1
    last_ms: int = 0
    in_flight: deque[SequenceClaim] = field(default_factory=deque)
    next_chunk: _NextChunk | None = None

    def last_queued(self, name: str) -> int:
        return self.in_flight[-1].highest[name] if self.in_flight else self.last_id


class SequenceRange(NamedTuple):
    """Entries `[start, end)` of an append: either new entries, or one duplicate.

    A duplicate repeats an original entry. `original` is the future of this entry, or None if the entry is durable
    already.
    """

    start: int
    end: int
    duplicate: bool
    original: Future[Position] | None = None


def entry_sequence(metadata: MessageMetadata, where: str) -> EntrySequence | None:
    """Return the sequence ids of an entry, or None for a marker or an entry of a run.

    A run is the output of one batch of a Spark query, and a marker ends it. The log de-duplicates runs by query
    and batch instead. Raises Refused if a sequence id exceeds 2**63 - 1.
    """
    if is_marker(metadata) or metadata.HasField("txnid_most_bits"):
        return None
    lowest = metadata.sequence_id
    highest = max(lowest, metadata.highest_sequence_id)
    if highest > _SEQUENCE_MAX:
        raise Refused(f"{where} has sequence id {highest}, the largest allowed is {_SEQUENCE_MAX}")
    if metadata.num_chunks_from_msg <= 1:
        return EntrySequence(str(metadata.producer_name), lowest, highest)
    if not 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
        raise Refused(
            f"{where} has chunk id {metadata.chunk_id}, expected 0 to {metadata.num_chunks_from_msg - 1}: "
            f"its message has {metadata.num_chunks_from_msg} chunks"
        )
    return EntrySequence(str(metadata.producer_name), lowest, highest, metadata.chunk_id, metadata.num_chunks_from_msg)


class Deduplication:
    """Sequence ids of the producers of one log. A caller holds `lock` from `split` until after `admit`."""

    def __init__(self, known: Iterable[KnownSequence], clock: Clock) -> None:
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._clock = clock
        self._producers = {last.producer: _Producer(last.sequence_id, last.last_ms) for last in known}

    def split(
        self, session: AppendSession, sequences: Sequence[EntrySequence | None], where: str
    ) -> list[SequenceRange]:
        """Split an append into ranges of new entries and duplicates, in order. Changes nothing.

        Raises Refused if an entry has old and new messages, or is not the expected chunk. Raises Unavailable if an
        earlier entry of the session failed.
        """
        if session.broken:
            raise invalidated_error(where)
        self._require_chunks_in_order(session, sequences, where)
        new_ids: dict[str, int] = {}
        ranges: list[SequenceRange] = []
        for at, sequence in enumerate(sequences):
            original, duplicate = None, False
            if sequence is not None:
                last = new_ids.get(sequence.producer, self._last_queued(sequence.producer))
                if sequence.lowest > last:
                    if sequence.completes:
                        new_ids[sequence.producer] = sequence.highest
                elif sequence.highest > last:
                    raise Refused(
                        f"entry {at} of {where} has messages {sequence.lowest} to {sequence.highest} of producer "
                        f"{sequence.producer!r}, whose last sequence id is {last}",
                        hint="Send old messages again in the same batches, or give new messages higher sequence ids",
                    )
                elif sequence.producer in new_ids:
                    raise Refused(
                        f"entry {at} of {where} repeats messages {sequence.lowest} to {sequence.highest} of producer "
                        f"{sequence.producer!r}, an earlier entry of the same append has message {last}",
                        hint="Send messages in the order of their sequence ids",
                    )
                else:
                    original, duplicate = self._in_flight_future(sequence), True
            last_range = ranges[-1] if ranges else None
            if last_range is not None and not duplicate and not last_range.duplicate:
                ranges[-1] = last_range._replace(end=at + 1)
            else:
                ranges.append(SequenceRange(at, at + 1, duplicate, original))
        return ranges

    def admit(self, sequences: Iterable[EntrySequence | None], claim: SequenceClaim, future: Future[Position]) -> None:
        """Record a queued append as in flight until its future completes."""
        claim.future = future
        entries = [sequence for sequence in sequences if sequence is not None]
        for sequence in entries:
            if sequence.completes:
                claim.highest[sequence.producer] = sequence.highest
            else:
                claim.highest.setdefault(sequence.producer, self._last_queued(sequence.producer))
        self.record_chunks(claim.session, entries)
        for name in claim.highest:
            self._producers.setdefault(name, _Producer()).in_flight.append(claim)
        future.add_done_callback(lambda _: self._settle(claim))

    def record_chunks(self, session: AppendSession, sequences: Iterable[EntrySequence | None]) -> None:
        """Record which chunk must follow these entries of a session. Called for new entries and for duplicates."""
        last = {sequence.producer: sequence for sequence in sequences if sequence is not None}
        for name, sequence in last.items():
            self._producers.setdefault(name, _Producer()).next_chunk = _chunk_after(session, sequence)

    def _require_chunks_in_order(
        self, session: AppendSession, sequences: Sequence[EntrySequence | None], where: str
    ) -> None:
        next_chunks: dict[str, _NextChunk | None] = {}
        for at, sequence in enumerate(sequences):
            if sequence is None:
                continue
            name = sequence.producer
            producer = self._producers.get(name)
            expected = next_chunks.get(name, producer.next_chunk if producer is not None else None)
            if sequence.chunk and expected != _NextChunk(session, sequence):
                raise Refused(
                    f"entry {at} of {where} is chunk {sequence.chunk} of {sequence.chunks} of message "
                    f"{sequence.highest} of producer {name!r}, expected {_expected(session, expected)}",
                    hint="Send the message again from its first chunk. Only one process at a time may use the name of "
                    "a producer",
                )
            next_chunks[name] = _chunk_after(session, sequence)

    def _settle(self, claim: SequenceClaim) -> None:
        """Record a completed append. If it failed, drop the later appends in flight of its producers."""
        with self.lock:
            failed = claim.future.exception() is not None
            claim.session.broken |= failed
            now = self._clock()
            for name, highest in claim.highest.items():
                producer = self._producers.get(name)
                if producer is None:
                    continue  # recovery dropped the claim, and a later call of `snapshot` removed the producer
                if failed:
                    _drop_from(producer, claim)
                elif claim in producer.in_flight:
                    producer.in_flight.remove(claim)
                    producer.last_id, producer.last_ms = max(producer.last_id, highest), now
            self._settled.notify_all()

    def last_sequence_id(self, name: str, timeout_ms: int) -> int:
        """Return the highest durable sequence id of a producer, or -1 for an unknown producer.

        Waits up to `timeout_ms` until no entry of the producer is in flight.
        """
        with self.lock:
            self._settled.wait_for(lambda: not self._in_flight(name), timeout_ms / 1000)
            return self._producers[name].last_id if name in self._producers else -1

    def learn(self, found: Iterable[KnownSequence]) -> None:
        """Add the sequence ids that recovery found.

        If a producer's last id has become higher, drop its entries in flight. Reason: their ids were compared with the
        earlier id, so these entries may be duplicates now.
        """
        with self.lock:
            for last in found:
                producer = self._producers.setdefault(last.producer, _Producer())
                if last.sequence_id > producer.last_id:
                    producer.last_id, producer.last_ms = last.sequence_id, last.last_ms
                    if producer.in_flight:
                        _drop_from(producer, producer.in_flight[0])

    def snapshot(self, *, inactive_ms: int) -> list[KnownSequence]:
        """Return the durable ids, the most recently active producer first.

        Removes producers that have no entries in flight, if they were inactive for `inactive_ms` or are not among the
        first 10,000.
        """
        with self.lock:
            oldest = self._clock() - inactive_ms
            newest = sorted(self._producers.items(), key=lambda item: item[1].last_ms, reverse=True)
            for rank, (name, producer) in enumerate(newest):
                if not producer.in_flight and (producer.last_ms < oldest or rank >= _PRODUCERS_MAX):
                    del self._producers[name]
            return [
                KnownSequence(name, producer.last_id, producer.last_ms)
                for name, producer in newest
                if name in self._producers and producer.last_id >= 0
            ]

    def _in_flight(self, name: str) -> bool:
        return name in self._producers and bool(self._producers[name].in_flight)

    def _last_queued(self, name: str) -> int:
        producer = self._producers.get(name)
        return -1 if producer is None else producer.last_queued(name)

    def _in_flight_future(self, sequence: EntrySequence) -> Future[Position] | None:
        """Return the future of the in-flight entry with these sequence ids, or None if the ids are durable."""
        producer = self._producers[sequence.producer]
        if sequence.highest <= producer.last_id:
            return None
        return next(
            claim.future for claim in producer.in_flight if claim.highest[sequence.producer] >= sequence.highest
        )


def duplicate_of(original: Future[Position] | None) -> Future[Position]:
    """Return the future of a duplicate: `DUPLICATE` when the original is durable, or the error of the original."""
    answer: Future[Position] = Future()
    answer.set_running_or_notify_cancel()

    def complete(first: Future[Position]) -> None:
        error = first.exception()
        if error is None:
            answer.set_result(DUPLICATE)
        else:
            answer.set_exception(error)

    if original is None:
        answer.set_result(DUPLICATE)
    else:
        original.add_done_callback(complete)
    return answer


def invalidated_error(name: str) -> LedgerError:
    """Return the error of an entry that was dropped because an earlier entry of its producer failed."""
    return Unavailable(
        f"an append to {name!r} was dropped because an earlier append of the same producer failed",
        hint="Create a new producer and send all unacknowledged messages again, in order",
    )


def highest_of(sequences: Iterable[EntrySequence | None], now_ms: int) -> list[KnownSequence]:
    """Return the highest sequence id of each producer in these entries."""
    highest: dict[str, int] = {}
    for sequence in sequences:
        if sequence is not None and sequence.completes:
            highest[sequence.producer] = max(highest.get(sequence.producer, -1), sequence.highest)
    return [KnownSequence(producer, last, now_ms) for producer, last in highest.items()]


def _chunk_after(session: AppendSession, sequence: EntrySequence) -> _NextChunk | None:
    return None if sequence.completes else _NextChunk(session, sequence._replace(chunk=sequence.chunk + 1))


def _expected(session: AppendSession, expected: _NextChunk | None) -> str:
    if expected is None:
        return "a first chunk"
    sender = "" if expected.session is session else " from another producer of that name"
    return f"chunk {expected.sequence.chunk} of message {expected.sequence.highest}{sender}"


def _drop_from(producer: _Producer, claim: SequenceClaim) -> None:
    """Remove a claim and all later claims of its producer from the claims in flight, and invalidate them."""
    while claim in producer.in_flight:
        producer.in_flight.pop().valid = False
        producer.next_chunk = None


def sequences_in(path: Path, index: EntryIndex) -> Iterator[EntrySequence | None]:
    """Yield the sequence ids of every entry of the index, in order. Raises Corrupt with the file, offset and values."""
    if not index.count:
        return
    end = index.end_offset(index.count - 1)
    with disk.opened(path) as fd, mmap.mmap(fd, int(end), prot=mmap.PROT_READ) as data:
        for entry_id, (offset, length) in enumerate(zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)):
            where = f"{path} at {offset}: entry {entry_id}"
            begin = offset + FRAME_BYTES
            # The slice is a copy. A view in the traceback of an error would keep the file mapped.
            yield entry_sequence(parse_entry(data[begin : begin + length], where).metadata, where)
