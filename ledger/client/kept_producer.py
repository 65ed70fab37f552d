"""Producers that a client keeps between calls of `Ledger.append`, so that an append needs one request and one reply.

An *entry* is one append with its rows. The *log* is the sequence of the ledger's entries.

Rules
- A producer serves one append at a time. A producer has its own name and sequence ids.
- An idle producer ends its stream after a timeout. A client keeps the newest `_IDLE_MAX` idle producers.
- A producer whose stream has ended is not kept.
- If the broker is killed during an append, the client reads the log from the next broker. Entries of the append that
  are in the log count as acknowledged. The client sends the missing entries again. So no row is lost or repeated.
- If the stream ends while the same broker serves the ledger, entries may still be in flight. The append then fails, and
  its outcome is unknown.
- If the ledger was deleted and created again, the append raises `NothingAppended`. The caller encodes the rows again,
  because the columns may differ, and repeats the append.
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
    """The ledger has no entry of an append. The caller must encode the rows again, because the columns may differ."""


class Columns(NamedTuple):
    """Registered columns of a ledger, and their version."""

    schema: pa.Schema
    version: int


class KeptProducer:
    """Producer of one ledger, with the ledger's columns. Only one thread at a time may use it."""

    def __init__(self, client: BrokerConnection, ledger: str) -> None:
        """Create the ledger if it does not exist. The first append opens the stream."""
        self.ledger = ledger
        self.name = f"ledger-api-{new_id()}"
        self.columns: Columns | None = None
        self.encoder = RowEncoder()
        self.takes_messages = False
        """Whether an earlier append found that the ledger has messages and no columns."""
        self._client = client
        self._sequence = 0
        self._producer: Producer | None = None
        made = self._made()
        self._incarnation, self._known = made.incarnation, made.end

    @property
    def is_over(self) -> bool:
        """Whether the producer has no open stream."""
        return self._producer is None or self._producer.is_over

    def next_sequence_id(self) -> int:
        """Return the sequence id of the next entry."""
        self._sequence += 1
        return self._sequence - 1

    def append(self, entries: Sequence[Entry]) -> Position:
        """Append entries. Return the position after the last entry, when all entries are durable.

        The caller gets the sequence id of each entry from `next_sequence_id`, in the order of the entries.

        Raises NothingAppended if the stream ended before the first entry was appended, or if the ledger was deleted.
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
        """Return how many of the sent entries are in the log. `first_id` is the sequence id of the first sent entry.

        Raises the broker's error if the number is unknown.
        """
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
        """Return how many of the append's entries are in the log of the next broker.

        Only entries with the sequence id `first_id` or a higher one count.

        Raises `error` if the same broker still serves the store, or if no broker answers.
        """
        before, self._producer = self._producer, None
        try:
            epoch, made = self._client.hello().epoch, self._described()
        except NotFound:
            raise NothingAppended(f"ledger {self.ledger} was deleted") from error
        except LedgerError:
            raise error from None
        if made.incarnation != self._incarnation:
            raise NothingAppended(f"ledger {self.ledger} was deleted and created again") from error
        if before is None or epoch == before.epoch:
            raise error
        left = PositionRange(self._known, made.end)
        try:
            return self._count(ReadRequest(self.ledger, left, incarnation=made.incarnation), first_id)
        except DataLoss:  # the policies of the ledger have deleted the entries
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
        return self._client.ask(DescribeLedger(self.ledger, lists=False))

    def _made(self) -> LedgerDescription:
        return self._client.ask(CreateLedger(self.ledger, exist_ok=True, lists=False))

    def _opened(self) -> Producer:
        from pyspark_ledger.ledger.client.producer import Producer  # imported here, because it loads pyarrow.flight

        return Producer(self._client, self.ledger, self.name, idle_timeout_ms=_IDLE_TIMEOUT_MS)


class KeptProducers:
    """Idle producers that a client keeps. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[KeptProducer] = []
        self._retired = False

    def take(self, ledger: str) -> KeptProducer | None:
        """Remove the newest idle producer of a ledger and return it. Return None if there is none."""
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at].ledger == ledger:
                    kept = self._idle.pop(at)
                    if not kept.is_over:
                        return kept
        return None

    def give(self, kept: KeptProducer) -> None:
        """Keep a producer for the next append, unless its stream has ended. End the oldest producer at the limit."""
        if kept.is_over:
            return
        with self._lock:
            self._idle.append(kept)
            gone = self._idle.pop(0) if self._retired or len(self._idle) > _IDLE_MAX else None
        if gone is not None:
            gone.end()

    def retire(self) -> None:
        """End the streams of all producers: of the idle ones now, of the others when they are given back."""
        self._retired = True
        self.close()

    def close(self) -> None:
        """End the streams of all idle producers, without waiting."""
        with self._lock:
            gone, self._idle = self._idle, []
        for kept in gone:
            kept.end()


def _sent(producer: Producer, entries: Sequence[Entry]) -> tuple[list[Future[Position]], LedgerError | None]:
    """Send entries until the producer raises an error. Return the futures of the sent entries, and the error."""
    sent: list[Future[Position]] = []
    try:
        for entry in entries:
            sent.append(producer.append(*entry))  # noqa: PERF401 — the list needs the sent entries after an error
    except LedgerError as error:
        return sent, error
    return sent, None
