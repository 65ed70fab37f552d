"""What a stream cannot decode, sent to a ledger of its own instead of failing: the dead letters of a partition.

    rows with a rescue column ─▶ the rows that were decoded
                             └─▶ a message for each that was not: its payload as it was, and as properties
                                 REAL_TOPIC · ORIGIN_MESSAGE_ID (3:17:4) · ledger.reason [ · ledger.payloadBytes ]

Rules
- Each comes once for every micro-batch: its ledger has de-duplication, the producer is named by query, batch and what
  the partition reads, and numbers are places in the log. So an attempt that runs again, runs beside another or comes
  after a restart repeats what is there. A query that is changed in between may repeat some, and never leaves one out.
- A partition is done when its dead letters are durable; a broker that comes back is sent the rest again.
- Damage of the log itself is no dead letter. It fails the read, always.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from connector.rescued_rows import RescuedPayload, parse_payload_text
from connector.row_shape import RowShape
from ledger.clock import monotonic_ms, pause, system_clock_ms
from ledger.deduplication import DEDUPLICATION_ENABLED
from ledger.errors import Corrupt, LedgerError, Refused, Unavailable
from ledger.names import short_name
from ledger.position import Position
from ledger.protocol import CreateLedger, LedgerDescription
from ledger.pulsar_batch import Envelope, OutgoingMessage, encode_messages

if TYPE_CHECKING:
    from ledger.broker.client import Client
    from ledger.broker.producer import Producer
    from ledger.entry import Buffer

TOPIC, PLACE, REASON, SIZE = "REAL_TOPIC", "ORIGIN_MESSAGE_ID", "ledger.reason", "ledger.payloadBytes"
_PAYLOAD_BYTES_MAX = 4 * 1024 * 1024  # which an entry of any ledger holds
_REASON_CHARACTERS_MAX = 4_000
_UNSETTLED_BYTES_MAX = 8 * 1024 * 1024
_INDEX_BITS = 24
_RETRY_MS, _PAUSE_MS = 30_000, 100
_log = logging.getLogger(__name__)


def prepare_dead_letters(client: Client, name: str) -> None:
    """Have the ledger that dead letters go to; Refused when one of this name cannot tell what it has already."""
    found: LedgerDescription = client.create(CreateLedger(name, exist_ok=True, deduplication=True))
    if found.properties.get(DEDUPLICATION_ENABLED) != "true":
        raise Refused(
            f"ledger {short_name(name)!r}, which option 'deadLetterLedger' names, was made without de-duplication",
            hint="Name one that is not there yet, or make it with deduplication=True",
        )
    if found.schema_version >= 0:
        raise Refused(
            f"ledger {short_name(name)!r}, which option 'deadLetterLedger' names, has columns or a payload schema",
            hint="Name another: dead letters are payloads as they were",
        )


class DeadLetters:
    """Those of one partition. `part` is all that decides what the partition reads, the same in every attempt."""

    def __init__(self, client: Client, ledger: str, shape: RowShape, part: bytes) -> None:
        self._client = client
        self._ledger = ledger
        self._shape = shape
        self._part = part
        self._producer: Producer | None = None
        self._last: dict[tuple[str, int], int] = {}
        self._sent: list[tuple[list[Buffer], Future[Position]]] = []
        self._unsettled = self._count = 0

    def out_of(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that were decoded, of what was read by `shape.rescuing()`; the others are durable at the end."""
        schema, at = self._shape.schema, self._shape.row_columns
        try:
            for batch in rows:
                texts = batch.column(at)
                if texts.null_count < batch.num_rows:
                    for text in texts.drop_null().to_pylist():
                        self._add(parse_payload_text(text))
                    batch = batch.filter(texts.is_null())  # noqa: PLW2901 — what is left of it
                if batch.num_rows:
                    kept = [column for number, column in enumerate(batch.columns) if number != at]
                    yield pa.RecordBatch.from_arrays(kept, schema=schema)
            self._settle()
        finally:
            self._hang_up()
        if self._count:
            _log.warning("%d entries or messages that cannot be decoded are in %s", self._count, self._ledger)

    def _add(self, lost: RescuedPayload) -> None:
        position, index = lost.place()
        number = position.entry_id << _INDEX_BITS | (index + 1)
        if number <= self._last.get((lost.topic, position.ledger_id), -1):
            raise Corrupt(f"dead letter {lost.position} of {lost.topic} comes after one behind it, and would be lost")
        self._last[lost.topic, position.ledger_id] = number
        value, size = lost.payload or b"", lost.size
        properties = {TOPIC: lost.topic, PLACE: lost.position, REASON: lost.reason[:_REASON_CHARACTERS_MAX]}
        if size > _PAYLOAD_BYTES_MAX:
            value, properties = b"", {**properties, SIZE: str(size)}
        message = OutgoingMessage(value, number, properties=properties)
        envelope = Envelope(self._name(lost.topic, position.ledger_id))
        self._send(encode_messages(envelope, [message], system_clock_ms()))
        self._count += 1
        self._unsettled += len(value)
        if self._unsettled > _UNSETTLED_BYTES_MAX:
            self._settle()

    def _name(self, topic: str, ledger_id: int) -> str:
        told = msgspec.json.encode((*_micro_batch(), topic, ledger_id, self._part))
        return f"dead-letters-{hashlib.sha256(told).hexdigest()[:32]}"

    def _send(self, entry: list[Buffer]) -> None:
        try:
            if self._producer is None:
                self._producer = self._client.producer(self._ledger, "dead-letters")
            future = self._producer.append(*entry)
        except Unavailable as gone:
            future = Future()
            future.set_exception(gone)
        self._sent.append((entry, future))

    def _settle(self) -> None:
        """Wait until all of them are durable. What a broker that went away has not answered is sent to the next."""
        until = monotonic_ms() + _RETRY_MS
        while self._sent:
            failures = [future.exception() for _, future in self._sent]
            left = [entry for (entry, _), failure in zip(self._sent, failures, strict=True) if failure is not None]
            self._sent = []
            for failure in failures:
                if failure is not None and not (isinstance(failure, Unavailable) and monotonic_ms() < until):
                    raise failure
            if left:
                self._hang_up()
                pause(_PAUSE_MS)
            for entry in left:
                self._send(entry)
        self._unsettled = 0

    def _hang_up(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(LedgerError):  # of entries whose futures have said it already
                producer.close()


def _micro_batch() -> tuple[str, str]:
    """The query and its batch, as Spark tells them to every task; empty outside of one."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return "", ""
    return task.getLocalProperty("sql.streaming.queryId") or "", task.getLocalProperty("streaming.sql.batchId") or ""
