"""Producer of messages. It collects messages into batches, as a Pulsar client does, and sends each batch as one entry.

An *entry* is the unit of storage: one batch of messages, or a *chunk*, a part of a large message. With
*de-duplication*, a ledger stores a message once, even if it is sent again.

    send ─▶ the open batch ─▶ an entry ─▶ ledger.client.producer ─▶ acknowledgement ─▶ every message of the batch
        └─▶ a large message ─▶ its chunks ─┘

Invariants
- The log has the messages in the order of the calls. One lock covers the open batch and its sending.
- The producer sends a batch when the batch has its maximum number of messages or bytes, and at `flush`.
- It also sends a batch when the first message has waited for the configured delay. Exception: while an entry is in
  flight, the producer collects messages beyond the delay. Reason: the next entry must wait for that sync anyway.
- The producer's memory is one open batch, and the entries in flight. At the limit of bytes in flight, `send` waits.
- A message that is too large for an entry is sent in chunks, one after another, after the open batch.
- If an entry fails, all messages of its batch fail.
- An invalid message is refused alone, before it joins a batch, and gets no sequence id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Self

import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.producer import Producer, this_process
from pyspark_ledger.ledger.clock import Clock, monotonic_ms, system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.message.arrow_payload import version_bytes
from pyspark_ledger.ledger.message.batch_encoder import encode_columns, require_columns
from pyspark_ledger.ledger.message.compression import NAMES
from pyspark_ledger.ledger.message.entry import STAMP_BYTES_MAX
from pyspark_ledger.ledger.message.outgoing.batching import Batching, require_at_least
from pyspark_ledger.ledger.message.outgoing.chunk_encoder import encode_chunks
from pyspark_ledger.ledger.message.outgoing.message import (
    OutgoingMessage,
    ProducerMetadata,
    ordinary_key_chars,
    require_message,
)
from pyspark_ledger.ledger.message.outgoing.open_batch import OpenBatch
from pyspark_ledger.ledger.message.outgoing.sent_batch import MessageFuture, SentBatch
from pyspark_ledger.ledger.message.schema.documents import TopicSchemas, is_payload_schema, parse_schema_bytes
from pyspark_ledger.ledger.position import EARLIEST, MessageId, Position
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, GetSchema
from pyspark_ledger.ledger.protocol.ledgers import AskSequence
from pyspark_ledger.ledger.rows.row_type import Row, RowType
from pyspark_ledger.ledger.segment.format import entry_bytes_max

_BLOCK_BYTES = "ledger.blockBytes"
_COLUMN_BYTES = 8 * 1024 * 1024  # bytes to encode before the next send, so that the broker syncs many entries together

_NO_PROPERTIES: Mapping[str, str] = {}


def open_producer(
    client: Client,
    ledger: str,
    name: str,
    batching: Batching,
    *,
    compression: str,
    max_pending_bytes: int,
    chunk_max_bytes: int | None,
    row_type: RowType[Row] | None,
    partition: int = -1,
) -> MessageProducer[Row]:
    """Open a producer of messages for an existing ledger. Raises Refused if the ledger has rows with columns.

    If the ledger has registered payload schemas, each message names the newest schema version. With `row_type`, the
    producer encodes objects by this version.
    """
    described = client.ask(DescribeLedger(ledger, lists=False))
    version = described.schema_version
    schema = client.ask(GetSchema(ledger, version)).arrow_schema if version >= 0 else b""
    if version >= 0 and not is_payload_schema(schema):
        raise Refused(f"ledger {ledger} has rows with columns", hint="Send messages to another ledger")
    encode = None if row_type is None else _encoder(row_type, version, schema, ledger)
    require_at_least("max_pending_bytes", max_pending_bytes, 1)
    if chunk_max_bytes is not None:
        require_at_least("chunk_max_bytes", chunk_max_bytes, 1)
    if not isinstance(compression, str) or compression.upper() not in NAMES:  # type: ignore[redundant-expr]  # a user's
        raise Refused(f"compression {compression!r} is not known", hint=f"Use one of {', '.join(NAMES).lower()}")
    block_bytes = int(described.properties.get(_BLOCK_BYTES, 64 * 1024 * 1024))
    # An earlier producer of this name may have entries in flight. This call waits until they are durable, so it comes
    # before the producer's stream to the broker is opened.
    known = client.ask(AskSequence(ledger, name)).sequence_id
    pipeline = client.producer(ledger, name, max_in_flight_bytes=max_pending_bytes)
    producer: MessageProducer[Row] = MessageProducer(
        pipeline,
        ProducerMetadata(name, NAMES.index(compression.upper()), version_bytes(version) if version >= 0 else None),
        batching,
        entry_bytes_max=entry_bytes_max(block_bytes) - STAMP_BYTES_MAX,
        chunk_bytes_max=chunk_max_bytes,
        known_sequence_id=-1 if known is None else known,
        partition=partition,
        encode=encode,
    )
    client.producers.add(producer)
    return producer


def _encoder(row_type: RowType[Any], version: int, schema: bytes, ledger: str) -> Callable[[Any], bytes]:
    from pyspark_ledger.ledger.rows.payload_encoder import payload_encoder
    from pyspark_ledger.ledger.rows.payload_rows import no_payload_schema

    if version < 0:
        raise no_payload_schema(ledger, row_type)
    schemas = TopicSchemas({version: parse_schema_bytes(schema, f"the schema of ledger {ledger!r}")})
    return payload_encoder(row_type, schemas, ledger)


class MessageProducer(Generic[Row]):
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
        encode: Callable[[Any], bytes] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._encode = encode
        self._envelope = envelope
        self._batching = batching
        self._entry_bytes_max = entry_bytes_max
        self._chunk_bytes_max = entry_bytes_max if chunk_bytes_max is None else chunk_bytes_max
        self._partition = partition
        self._clock = clock
        # Highest sequence id that was durable when the producer was created. A message with this or a lower id is a
        # repetition. Repetitions are sent in separate batches.
        self._known = known_sequence_id
        self._next = known_sequence_id + 1
        self._last_repeated = -1
        self._messages_max = batching.batching_max_messages if batching.batching_max_publish_delay_ms else 1
        self._bytes_max = batching.batching_max_bytes
        self._key_chars_max = ordinary_key_chars(self._messages_max, self._bytes_max, entry_bytes_max)
        self._ordinary_bytes_max = -1 if self._key_chars_max < 0 else min(self._bytes_max, self._chunk_bytes_max)
        self._process = this_process.pid
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open = OpenBatch(partition)
        self._began_ms = 0
        self.batches = 0  # the number of sent batches, which `PartitionedProducer` reads
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
        """Name of the producer. Each entry states it."""
        return self._envelope.producer

    @property
    def last_sequence_id(self) -> int:
        """Sequence id of the last sent message, acknowledged or not. -1 if there is none.

        If the ledger has de-duplication, a new producer continues after the last durable id of its own name.
        """
        with self._changed:
            return self._next - 1

    def send(
        self,
        value: Row | bytes | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        ordering_key: bytes | None = None,
        sequence_id: int | None = None,
    ) -> Future[MessageId]:
        """Send a message. The future returns the message's id when the message is durable.

        If the ledger has a type, `value` is an object of its class, or bytes. An object is encoded by the newest
        payload schema of the time at which the producer was opened. Raises Refused for a value that does not fit.

        A value of None marks the key of the message as deleted.

        Without `sequence_id` the message gets the next id. An explicit id must be higher than the id before. If
        the ledger has de-duplication, a message with a known sequence id is not written again. Its id then has
        `is_duplicate` set.

        A message larger than an entry or `chunk_max_bytes` is sent in chunks, and has the id of its last chunk. If a
        chunk fails, the message fails, and no reader gets it. If you send the message again, all its chunks are sent.
        """
        if this_process.pid != self._process:
            self._pipeline.require_own_process()
        if self._encode is not None and value is not None and not isinstance(value, bytes):
            value = self._encode(value)
        self._lock.acquire()  # `with` takes twice as long
        try:
            if (
                type(value) is not bytes
                or (key is not None and (type(key) is not str or len(key) > self._key_chars_max or not key.isascii()))
                or sequence_id is not None
                or properties is not None
                or ordering_key is not None
                or event_time_ms != 0
                or self._open.messages is not None
                or len(value) > self._ordinary_bytes_max
                or self._closed
            ):
                return self._send_any(value, key, properties, event_time_ms, ordering_key, sequence_id)  # type: ignore[return-value]  # see its class
            batch = self._open
            if batch.bytes + len(value) > self._bytes_max:
                self._send_open()
                batch = self._open
            number = len(batch.values)
            batch.values.append(value)
            batch.keys.append(key)
            batch.bytes += len(value)
            self._next += 1
            if not number or number + 1 >= self._messages_max or batch.bytes >= self._bytes_max:
                batch.first_sequence_id = self._next - 1 - number
                self._added(batch)
            return MessageFuture(batch.result, number)  # type: ignore[return-value]  # see its class
        finally:
            self._lock.release()

    def send_column(
        self, values: pa.Array, *, keys: pa.Array | None = None, event_times_ms: pa.Array | None = None
    ) -> Future[MessageId]:
        """Send a message for each value of a column, without a Python loop. The future returns the last message's id.

        `values` is binary or text; a null marks its key as deleted. If a value is larger than an entry or
        `chunk_max_bytes`, nothing is sent, because this method makes no chunks. Use `send` for such values.
        """
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        if not len(values):
            raise Refused("the column to send has no value", hint="Send at least one value")
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
            # Entries are acknowledged in order, and none after an error. So if the last entry is durable, all are.
            sent = SentBatch(self._partition)
            last.add_done_callback(partial(self._settle, sent, is_batch=count > 1, new=True, before=before))
            return MessageFuture(sent, count - 1)  # type: ignore[return-value]  # see its class

    def require_columns(self, values: pa.Array, keys: pa.Array | None, event_times_ms: pa.Array | None) -> None:
        """Raise Refused for values that `send_column` would refuse."""
        require_columns(values, keys, event_times_ms, self._entry_bytes_max, self._chunk_bytes_max)

    def flush(self) -> None:
        """Send the open batch, and wait until all messages sent so far are durable.

        Raises the error that ended the connection to the broker.
        """
        self._pipeline.require_own_process()
        with self._changed:
            self._send_open()
        self._pipeline.flush()

    def close(self) -> None:
        """Send the open batch, wait until all messages are durable, and end the stream.

        Raises the error that ended the connection to the broker.
        """
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

    def _send_any(
        self,
        value: Any,
        key: str | bytes | None,
        properties: Mapping[str, str] | None,
        event_time_ms: int,
        ordering_key: bytes | None,
        sequence_id: int | None,
    ) -> MessageFuture:
        """Send a message of any kind, whether or not the open batch has room."""
        if self._closed:
            raise self._closed_error()
        number = self._next if sequence_id is None else self._numbered(sequence_id)
        message = OutgoingMessage(value, number, key, properties or _NO_PROPERTIES, event_time_ms, ordering_key)
        most = require_message(message)
        if most > self._entry_bytes_max or message.size > self._chunk_bytes_max:
            return self._send_large(message)
        if self._open and self._is_apart(message, most):
            self._send_open()
        self._count(number)
        batch = self._open
        future = batch.add(message, most)
        self._added(batch)
        return future

    def _numbered(self, sequence_id: int) -> int:
        has_new = self._next > self._known + 1
        last = self._next - 1 if has_new else self._last_repeated
        if sequence_id <= last:
            raise Refused(
                f"sequence id {sequence_id} was given to the producer {self.name!r}, its last is {last}",
                hint="Use a higher id",
            )
        return sequence_id

    def _count(self, number: int) -> None:
        if number > self._known:
            self._next = number + 1
        else:
            self._last_repeated = number

    def _is_apart(self, message: OutgoingMessage, most: int) -> bool:
        """Return whether one more message would make the open batch too large, or mix known and new messages."""
        batch = self._open
        is_known = message.sequence_id <= self._known
        if batch.bytes + message.size > self._bytes_max or (batch.first_sequence_id <= self._known) != is_known:
            return True
        batch.as_messages()  # this call computes `batch.most`, the maximum encoded size
        return batch.most + most > self._entry_bytes_max

    def _added(self, batch: OpenBatch) -> None:
        """Send the open batch if it is full. The first message of a batch starts the delay of the batch."""
        if len(batch) >= self._messages_max or batch.bytes >= self._bytes_max:
            self._send_open()
        elif len(batch) == 1:
            self._began_ms = monotonic_ms()
            self._start_timer()
            self._changed.notify_all()

    def _send_open(self) -> None:
        """Send the open batch, if there is one. Its futures are completed, also if the batch cannot be sent."""
        batch = self._open
        if batch:
            self._open = OpenBatch(self._partition)
            # `map` encodes the batch later, in `_send_entries`, so that an error of the encoding fails only this batch.
            entries = map(batch.encode, [self._envelope], [self._clock()])
            self._send_entries(entries, batch.result, len(batch), new=batch.first_sequence_id > self._known)

    def _send_large(self, message: OutgoingMessage) -> MessageFuture:
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
        self._send_entries(chunks, sent, 1, new=message.sequence_id > self._known)
        return MessageFuture(sent, 0)

    def _send_entries(self, entries: Iterable[list[Buffer]], sent: SentBatch, count: int, *, new: bool) -> None:
        """Send the entries of a batch or of one large message. Sets the result of `sent`, also after an error."""
        self.batches += 1
        try:
            *before, last = [self._pipeline.append(*entry) for entry in entries]
        except Exception as error:  # noqa: BLE001 — any error becomes the result, because callers wait
            unknown = Refused(f"a batch of {count} messages of {self.name!r} cannot be sent: {error!r}")
            sent.fail(error if isinstance(error, LedgerError) else unknown)
            return
        last.add_done_callback(partial(self._settle, sent, is_batch=count > 1, new=new, before=before))

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Thread(target=self._send_due, name=f"batch {self.name}", daemon=True)
            self._timer.start()

    def _send_due(self) -> None:
        """Send each batch that has waited for the delay. Runs on the timer thread.

        Releases the lock while it waits, because callers of `send` need the lock.
        """
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
        """Set the result of a batch whose last entry is durable or has failed. `new` means: no message is a repetition.

        `before` has the futures of the earlier entries: the other batches of a column, or the other chunks of a
        message.
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
                    f"messages of {self.name!r} were not written: {self._pipeline.ledger} has their sequence ids from "
                    "another producer of that name",
                    hint="Use a different name for each producer, in one process at a time",
                )
            )
            return
        sent.succeed(entry.result(), is_batch=is_batch and not is_duplicate)
