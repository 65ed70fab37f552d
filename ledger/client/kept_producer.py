"""Producers that the appends of one client share, so that an append costs one round trip.

Rules
- An append has a producer for itself, with a name and sequence ids of its own. Concurrent appends share none.
- An idle producer ends its stream after an idle timeout. A client keeps at most `_IDLE_MAX` of them, the newest.
- A producer whose stream is over is not kept.
- An append with a lost answer is settled by the log that the next broker recovered. Its entries in that log are
  acknowledged, the rest is sent again: no row is lost or repeated.
- While the same broker serves the same ledger, entries may still be in flight. The append then fails as unknown.
- A ledger that was created again holds nothing of the append. The caller starts over, because columns may differ.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Terminated
from pyspark_ledger.ledger.message.column_encoding import RowEncoder
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger, DescribeLedger, LedgerDescription
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
    from pyspark_ledger.ledger.client.producer import Producer

_IDLE_TIMEOUT_MS = 5_000
_IDLE_MAX = 64

Entry = Sequence[Buffer]


class NothingAppended(Exception):
    """The ledger holds nothing of an append. The rows must be prepared again, because the ledger may differ."""


class Columns(NamedTuple):
    """Registered columns of a ledger, and their version."""

    schema: pa.Schema
    version: int


class KeptProducer:
    """Producer of one ledger, with the ledger's columns. Used by one thread at a time."""

    def __init__(self, client: BrokerConnection, ledger: str) -> None:
        """Create the ledger if there is none. The stream is opened by the first append."""
        self.ledger = ledger
        self.name = f"ledger-api-{new_id()}"
        self.columns: Columns | None = None
        self.encoder = RowEncoder()
        self.takes_messages = False
        """Whether the ledger was seen to have no columns."""
        self._client = client
        self._sequence = 0
        self._producer: Producer | None = None
        made = self._made()
        self._incarnation, self._known = made.incarnation, made.end

    @property
    def is_over(self) -> bool:
        """Whether there is no usable stream."""
        return self._producer is None or self._producer.is_over

    def next_sequence_id(self) -> int:
        """Return the sequence id of the next entry."""
        self._sequence += 1
        return self._sequence - 1

    def append(self, entries: Sequence[Entry]) -> Position:
        """Append entries with the last sequence ids. Return the position after the last once all are durable.

        Raises NothingAppended if the stream was over before, or if the ledger was created again.
        """
        first_id, appended = self._sequence - len(entries), 0
        while appended < len(entries):
            fresh, self._producer = self._producer is None, self._producer or self._opened()
            sent, error = _sent(self._producer, entries[appended:])
            appended += self._settled(sent, first_id + appended)
            if error is not None and self._producer is not None:
                if (fresh and not sent) or not self._producer.is_over:
                    raise error
                if not appended:
                    raise NothingAppended(error.message) from error
                self._producer = None
        return self._known

    def end(self) -> None:
        """End the stream without waiting."""
        if self._producer is not None:
            self._producer.end()

    def _settled(self, sent: Sequence[Future[Position]], first_id: int) -> int:
        """Return how many entries, sent in this order, are in the log. Raises the error if that is unknown."""
        from pyspark_ledger.ledger.client.producer import REFUSALS

        for count, future in enumerate(sent):
            error = future.exception()
            if isinstance(error, (*REFUSALS, Terminated)):
                raise (self._producer and self._producer.error) or error
            if error is not None:
                return count + self._recovered(error, first_id + count)
            self._known = future.result().next()
        return len(sent)

    def _recovered(self, error: BaseException, first_id: int) -> int:
        """Count the entries from a sequence id on in the next broker's log. Raises `error` if there is no next
        broker.
        """
        before, self._producer = self._producer, None
        try:
            epoch, made = self._client.hello().epoch, self._described()
        except NotFound:
            raise NothingAppended(f"ledger {self.ledger} was deleted") from error
        except LedgerError:
            raise error from None
        if made.incarnation != self._incarnation:
            raise NothingAppended(f"ledger {self.ledger} was made anew") from error
        if before is None or epoch == before.epoch:
            raise error
        left = PositionRange(self._known, made.end)
        try:
            return self._count(ReadRequest(self.ledger, left, incarnation=made.incarnation), first_id)
        except DataLoss:  # trimmed already
            raise error from None

    def _count(self, request: ReadRequest, first_id: int) -> int:
        from pyspark_ledger.ledger.client.block_reader import read_blocks

        count = 0
        for block in read_blocks(self._client, request):
            for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
                position = Position(block.ledger_id, entry_id)
                metadata = parse_entry(frame, f"entry {position} of {self.ledger}").metadata
                if metadata.producer_name == self.name and metadata.sequence_id >= first_id:
                    self._known, count = position.next(), count + 1
        return count

    def _described(self) -> LedgerDescription:
        found: LedgerDescription = self._client.call("describe", DescribeLedger(self.ledger, lists=False))
        return found

    def _made(self) -> LedgerDescription:
        made: LedgerDescription = self._client.call("create", CreateLedger(self.ledger, exist_ok=True, lists=False))
        return made

    def _opened(self) -> Producer:
        from pyspark_ledger.ledger.client.producer import Producer  # which loads pyarrow.flight

        return Producer(self._client, self.ledger, self.name, idle_timeout_ms=_IDLE_TIMEOUT_MS)


class KeptProducers:
    """Idle producers of one client. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[KeptProducer] = []

    def take(self, ledger: str) -> KeptProducer | None:
        """Remove and return the newest idle producer of a ledger; None without one."""
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at].ledger == ledger:
                    kept = self._idle.pop(at)
                    if not kept.is_over:
                        return kept
        return None

    def give(self, kept: KeptProducer) -> None:
        """Keep a producer for the next append, unless its stream is over. End the oldest if there are too many."""
        if kept.is_over:
            return
        with self._lock:
            self._idle.append(kept)
            gone = self._idle.pop(0) if len(self._idle) > _IDLE_MAX else None
        if gone is not None:
            gone.end()

    def close(self) -> None:
        """End all idle producers, without waiting."""
        with self._lock:
            gone, self._idle = self._idle, []
        for kept in gone:
            kept.end()


def _sent(producer: Producer, entries: Sequence[Entry]) -> tuple[list[Future[Position]], LedgerError | None]:
    """Send entries until the producer refuses one. Return the futures of the sent ones, and the error."""
    sent: list[Future[Position]] = []
    try:
        for entry in entries:
            sent.append(producer.append(*entry))  # noqa: PERF401 — what was sent counts, whatever comes after it
    except LedgerError as error:
        return sent, error
    return sent, None
