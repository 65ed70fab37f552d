"""Producer of messages: collects them into batches, as a Pulsar client does, and sends these through the pipeline.

    send ─▶ the open batch ─▶ an entry ─▶ ledger.client.producer ─▶ acknowledgement ─▶ every message of the batch
        └─▶ a large message ─▶ its chunks ─┘

Invariants
- The order of the messages in the log is the order of the calls. One lock covers the open batch and its sending.
- A batch is sent when it is full (messages, bytes), and at `flush`.
- A batch whose first message has waited for the delay is sent once nothing is in flight. Reason: the broker would sync
  its entry after those in flight anyway.
- Memory is bounded by one open batch and the pipeline's limit of bytes in flight. `send` waits for room.
- A message that is too large for an entry is sent as chunks: behind the open batch, and one after another.
- An error fails the messages of its batch. A message that cannot be sent is refused alone, before it has a number.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Self

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.producer import Producer
from pyspark_ledger.ledger.clock import Clock, monotonic_ms, system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.message.arrow_payload import version_bytes
from pyspark_ledger.ledger.message.batch_encoder import (
    OutgoingMessage,
    ProducerMetadata,
    encode_columns,
    encode_messages,
    require_columns,
)
from pyspark_ledger.ledger.message.compression import NAMES
from pyspark_ledger.ledger.message.entry import STAMP_BYTES_MAX
from pyspark_ledger.ledger.message.outgoing.chunk_encoder import encode_chunks
from pyspark_ledger.ledger.message.outgoing.message import require_message
from pyspark_ledger.ledger.message.outgoing.sent_batch import MessageFuture, SentBatch
from pyspark_ledger.ledger.message.schema.documents import is_payload_schema
from pyspark_ledger.ledger.position import EARLIEST, MessageId, Position
from pyspark_ledger.ledger.protocol.actions import GetSchema
from pyspark_ledger.ledger.protocol.ledgers import AskSequence
from pyspark_ledger.ledger.segment.format import entry_bytes_max

_BLOCK_BYTES = "ledger.blockBytes"
_COLUMN_BYTES = 8 * 1024 * 1024  # encoded at once: consecutive entries are sent and synced together

_NO_PROPERTIES: Mapping[str, str] = {}


class Batching(msgspec.Struct, frozen=True):
    """Limits of a batch, with the names of Pulsar's producers. A delay of 0 sends each message alone."""

    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    batching_max_publish_delay_ms: int = 1

    def __post_init__(self) -> None:
        least = {"batching_max_messages": 1, "batching_max_bytes": 1, "batching_max_publish_delay_ms": 0}
        for name, most in least.items():
            require_at_least(name, getattr(self, name), most)


def require_at_least(name: str, value: object, least: int) -> None:
    """Refuse a value that is no whole number, or below the least."""
    if not isinstance(value, int) or value < least:
        raise Refused(f"{name} is {value!r}, expected a whole number of at least {least}")


def open_producer(
    client: Client,
    ledger: str,
    name: str,
    batching: Batching,
    *,
    compression: str,
    max_pending_bytes: int,
    chunk_max_bytes: int | None = None,
    partition: int = -1,
) -> MessageProducer:
    """Open a producer of messages for an existing ledger. Raises Refused if the ledger holds rows with columns.

    If payload schemas are registered, messages state the newest version.
    """
    described = client.describe(ledger, lists=False)
    version = described.schema_version
    if version >= 0 and not is_payload_schema(client.call("schema.get", GetSchema(ledger, version)).arrow_schema):
        raise Refused(f"ledger {ledger} holds rows with columns", hint="Send messages to a ledger of their own")
    require_at_least("max_pending_bytes", max_pending_bytes, 1)
    if chunk_max_bytes is not None:
        require_at_least("chunk_max_bytes", chunk_max_bytes, 1)
    if not isinstance(compression, str) or compression.upper() not in NAMES:  # type: ignore[redundant-expr]  # a user's
        raise Refused(f"compression {compression!r} is not known", hint=f"Known are {', '.join(NAMES).lower()}")
    block_bytes = int(described.properties.get(_BLOCK_BYTES, 64 * 1024 * 1024))
    # Ask for the known sequence ids first, then open the stream, which waits for entries in flight of this name.
    known = client.call("producer.last", AskSequence(ledger, name)).sequence_id
    pipeline = client.producer(ledger, name, max_in_flight_bytes=max_pending_bytes)
    return MessageProducer(
        pipeline,
        ProducerMetadata(name, NAMES.index(compression.upper()), version_bytes(version) if version >= 0 else None),
        batching,
        entry_bytes_max=entry_bytes_max(block_bytes) - STAMP_BYTES_MAX,
        chunk_bytes_max=chunk_max_bytes,
        known_sequence_id=-1 if known is None else known,
        partition=partition,
    )


class MessageProducer:
    """Producer of messages to one ledger. Any thread may send, except in a callback of a future."""

    def __init__(
        self,
        pipeline: Producer,
        envelope: ProducerMetadata,
        batching: Batching,
        *,
        entry_bytes_max: int,
        chunk_bytes_max: int | None = None,
        known_sequence_id: int = -1,
        partition: int = -1,
        clock: Clock = system_clock_ms,
    ) -> None:
        self._pipeline = pipeline
        self._envelope = envelope
        self._batching = batching
        self._entry_bytes_max = entry_bytes_max
        self._chunk_bytes_max = entry_bytes_max if chunk_bytes_max is None else chunk_bytes_max
        self._partition = partition
        self._clock = clock
        # Durable when the producer was created: repeated messages are sent in separate batches.
        self._known = known_sequence_id
        self._next = known_sequence_id + 1
        self._last_given = -1
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open: list[OutgoingMessage] = []
        self._sent = SentBatch(partition)  # of the open batch
        self._bytes = self._bytes_most = 0
        self._began_ms = 0
        self.batches = 0  # sent so far; the partitioned producer reads it
        self._closed = False
        self._closing = threading.Event()
        self._timer: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"MessageProducer({self.name!r}, {self._pipeline.ledger})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Producer name of every entry."""
        return self._envelope.producer

    @property
    def last_sequence_id(self) -> int:
        """Sequence id of the last sent message, acknowledged or not, or the known one from before; else -1.

        If the ledger has de-duplication, a new producer of the same name continues after it.
        """
        with self._changed:
            return self._next - 1

    def send(
        self,
        value: bytes | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        ordering_key: bytes | None = None,
        sequence_id: int | None = None,
    ) -> Future[MessageId]:
        """Send a message. The future has its id once it is durable. A value of None is a tombstone for its key.

        Sequence ids count up automatically; given ids must rise. If the ledger has de-duplication, a message whose
        sequence id is known is not written again, and its id says `is_duplicate`.

        A message larger than an entry or `chunk_max_bytes` is sent as chunks, and has the id of its last chunk. If a
        chunk fails, the message fails: no reader gets it. Sent again, it starts over with its first chunk.
        """
        self._pipeline.require_own_process()
        with self._lock:
            if self._closed:
                raise self._closed_error()
            number = self._next if sequence_id is None else self._numbered(sequence_id)
            message = OutgoingMessage(value, number, key, properties or _NO_PROPERTIES, event_time_ms, ordering_key)
            most, size = require_message(message), 0 if value is None else len(value)
            if most > self._entry_bytes_max or size > self._chunk_bytes_max:
                return self._send_large(message)
            if self._open and self._is_apart(number, size, most):
                self._send_open()
            return self._add(message, size, most)

    def send_column(
        self, values: pa.Array, *, keys: pa.Array | None = None, event_times_ms: pa.Array | None = None
    ) -> Future[MessageId]:
        """Send a message for each value, without a Python loop. The future has the last message's id.

        `values` is binary or text, null for a tombstone. A column is not divided into chunks: if a value is larger
        than an entry or `chunk_max_bytes`, nothing is sent. Send such values with `send`.
        """
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        if not len(values):
            raise Refused("no value was given to be sent", hint="Give at least one")
        self.require_columns(values, keys, event_times_ms)
        self._pipeline.require_own_process()
        with self._changed:
            if self._closed:
                raise self._closed_error()
            self._send_open()
            rows = max(1, len(values) * _COLUMN_BYTES // max(values.nbytes, 1))
            entries, count = list[Future[Position]](), 0
            for at in range(0, len(values), rows):
                for entry, count in encode_columns(
                    self._envelope,
                    values.slice(at, rows),
                    self._next,
                    self._clock(),
                    keys=None if keys is None else keys.slice(at, rows),
                    event_times_ms=None if event_times_ms is None else event_times_ms.slice(at, rows),
                    max_messages=self._batching.batching_max_messages,
                    max_bytes=self._batching.batching_max_bytes,
                ):
                    entries.append(self._pipeline.append(*entry))
                    self._next += count
                    self.batches += 1
            *before, last = entries
            # The pipeline answers in order, and nothing after an error: if the last one is durable, all before it are.
            sent = SentBatch(self._partition)
            last.add_done_callback(partial(self._settle, sent, is_batch=count > 1, new=True, before=before))
            return MessageFuture(sent, count - 1)

    def require_columns(self, values: pa.Array, keys: pa.Array | None, event_times_ms: pa.Array | None) -> None:
        """Refuse the values that `send_column` would refuse."""
        require_columns(values, keys, event_times_ms, self._entry_bytes_max, self._chunk_bytes_max)

    def flush(self) -> None:
        """Send the open batch and wait until everything sent so far is durable.

        Raises the error that ended the stream.
        """
        self._pipeline.require_own_process()
        with self._changed:
            self._send_open()
        self._pipeline.flush()

    def close(self) -> None:
        """Send the open batch, wait for all messages and accept no more. Raises the error that ended the stream."""
        self._pipeline.require_own_process()
        with self._changed:
            self._closed = True
            self._closing.set()
            self._send_open()
            self._changed.notify_all()
        if self._timer is not None:
            self._timer.join()
        self._pipeline.close()

    def _closed_error(self) -> Unavailable:
        return Unavailable(f"the producer {self.name!r} of {self._pipeline.ledger!r} is closed")

    def _numbered(self, sequence_id: int) -> int:
        if sequence_id <= self._last_given or self._known < sequence_id < self._next:
            last = max(self._last_given, self._next - 1 if sequence_id > self._known else -1)
            raise Refused(
                f"sequence id {sequence_id} was given to the producer {self.name!r}, its last is {last}",
                hint="Give a higher one",
            )
        return sequence_id

    def _count(self, number: int) -> None:
        self._last_given = number
        if number >= self._next:
            self._next = number + 1

    def _is_apart(self, number: int, size: int, most: int) -> bool:
        """Return whether one more message would make the open batch too large, or mix known and new messages."""
        return (
            self._bytes + size > self._batching.batching_max_bytes
            or self._bytes_most + most > self._entry_bytes_max
            or (self._open[-1].sequence_id <= self._known) != (number <= self._known)
        )

    def _add(self, message: OutgoingMessage, size: int, most: int) -> Future[MessageId]:
        self._count(message.sequence_id)
        messages, limits = self._open, self._batching
        future = MessageFuture(self._sent, len(messages))
        messages.append(message)
        self._bytes += size
        self._bytes_most += most
        full = len(messages) >= limits.batching_max_messages or self._bytes >= limits.batching_max_bytes
        if full or not limits.batching_max_publish_delay_ms:
            self._send_open()
        elif len(messages) == 1:
            self._began_ms = monotonic_ms()
            self._start_timer()
            self._changed.notify_all()
        return future

    def _send_open(self) -> None:
        """Send the open batch, if there is one. Its futures are completed, also if the batch cannot be sent."""
        messages, sent = self._open, self._sent
        if not messages:
            return
        self._open, self._sent, self._bytes, self._bytes_most = [], SentBatch(self._partition), 0, 0
        self._send_entries(self._batch(messages), messages, sent)

    def _batch(self, messages: list[OutgoingMessage]) -> Iterator[list[Buffer]]:
        yield encode_messages(self._envelope, messages, self._clock())

    def _send_large(self, message: OutgoingMessage) -> Future[MessageId]:
        """Send a message behind the open batch, in chunks if it needs them. A refused message sends nothing."""
        chunks = encode_chunks(
            self._envelope,
            message,
            self._clock(),
            entry_bytes_max=self._entry_bytes_max,
            chunk_bytes_max=self._chunk_bytes_max,
        )
        self._send_open()
        self._count(message.sequence_id)
        sent = SentBatch(self._partition)
        self._send_entries(chunks, [message], sent)
        return MessageFuture(sent, 0)

    def _send_entries(self, entries: Iterable[list[Buffer]], messages: list[OutgoingMessage], sent: SentBatch) -> None:
        """Send the entries of a batch or of one large message. Its result is set, also after an error."""
        self.batches += 1
        try:
            *before, last = [self._pipeline.append(*entry) for entry in entries]
        except Exception as error:  # noqa: BLE001 — whatever it is, nobody may wait for ever
            unknown = Refused(f"a batch of {len(messages)} messages of {self.name!r} cannot be sent: {error!r}")
            sent.fail(error if isinstance(error, LedgerError) else unknown)
            return
        new = messages[0].sequence_id > self._known
        last.add_done_callback(partial(self._settle, sent, is_batch=len(messages) > 1, new=new, before=before))

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Thread(target=self._send_what_waits, name=f"batch {self.name}", daemon=True)
            self._timer.start()

    def _send_what_waits(self) -> None:
        """Send each batch that has waited for the delay. Takes the lock only then: a busy caller would wait for it."""
        delay = self._batching.batching_max_publish_delay_ms
        while not self._closed:
            if not self._open:
                with self._changed:
                    self._changed.wait_for(lambda: self._open or self._closed)
                continue
            left = self._began_ms + delay - monotonic_ms()
            if left > 0 or self._pipeline.is_in_flight:
                self._closing.wait(max(left, delay if self._pipeline.is_in_flight else 0) / 1000)
                continue
            with self._lock:
                if self._began_ms + delay <= monotonic_ms():
                    self._send_open()

    def _settle(
        self,
        sent: SentBatch,
        entry: Future[Position],
        *,
        is_batch: bool,
        new: bool,
        before: Sequence[Future[Position]] = (),
    ) -> None:
        """Set the result of a batch, whose last entry is durable or failed. `new`: its numbers were not known.

        `before` are entries that share the result: other batches of a column, or the other chunks of a message.
        """
        entries = (*before, entry)
        error = next((failed for future in entries if (failed := future.exception()) is not None), None)
        if error is not None:
            sent.fail(error)
            return
        is_duplicate = any(future.result() == EARLIEST for future in entries)
        if is_duplicate and new:
            sent.fail(
                Refused(
                    f"messages of {self.name!r} were not written: their sequence ids came to {self._pipeline.ledger} "
                    "from another producer of that name",
                    hint="Give each producer a name of its own, and a name to one process at a time",
                )
            )
            return
        sent.succeed(entry.result(), is_batch=is_batch and not is_duplicate)
