"""Dead letters in another ledger: payloads that cannot be decoded.

A *rescue column* has the reason, the position and the payload of an undecodable row as JSON, and null for other rows.

    rows with a rescue column ─▶ decoded rows
                             └─▶ a message for each undecodable row: its payload unchanged, with the properties
                                 REAL_TOPIC · ORIGIN_MESSAGE_ID (3:17:4) · ledger.reason [ · ledger.payloadBytes ]

Rules for payloads that cannot be decoded (`DeadLetters`)
- A micro-batch writes each dead letter once, even if Spark repeats a task or runs it twice at once. For this, the
  ledger of the dead letters has de-duplication. The producer name is a hash of query, batch and task range, and the
  sequence id is the position of the payload.
- Exception: if the user changes the query between two attempts, dead letters may be written twice. None is lost.
- A task completes after its dead letters are durable. If the broker restarts, the task sends unacknowledged dead
  letters again.
- Damage of the ledger does not become a dead letter. It always fails the read.
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

from pyspark_ledger.connector.rows.message_values import RescuedPayload, parse_payload_text
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.clock import monotonic_ms, pause, system_clock_ms
from pyspark_ledger.ledger.consumer.dead_letters import PLACE, TOPIC
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.message.batch_encoder import OutgoingMessage, ProducerMetadata, encode_messages
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import DEDUPLICATION_ENABLED

if TYPE_CHECKING:
    from pyspark_ledger.ledger.checksum import Buffer
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.producer import Producer

_log = logging.getLogger(__name__)


REASON, SIZE = "ledger.reason", "ledger.payloadBytes"
_PAYLOAD_BYTES_MAX = 4 * 1024 * 1024  # a payload of this size fits into an entry of every ledger
_REASON_CHARACTERS_MAX = 4_000
_UNFLUSHED_BYTES_MAX = 8 * 1024 * 1024
_INDEX_BITS = 24
_RETRY_MS, _PAUSE_MS = 30_000, 100


def prepare_dead_letters(client: Client, name: str) -> None:
    """Create the dead letter ledger if it is missing. Raises Refused if it has no de-duplication, or has a schema."""
    ledger = client.ask(CreateLedger(name, exist_ok=True, deduplication=True, lists=False))
    if ledger.properties.get(DEDUPLICATION_ENABLED) != "true":
        raise Refused(
            f"ledger {short_name(name)!r}, which option 'deadLetterLedger' names, was created without de-duplication",
            hint="Name a ledger that does not exist, or create one with deduplication=True",
        )
    if ledger.schema_version >= 0:
        raise Refused(
            f"ledger {short_name(name)!r}, which option 'deadLetterLedger' names, has columns or a payload schema",
            hint="Name another ledger, because dead letters are unchanged payloads without columns or schema",
        )


class DeadLetters:
    """Writer of one task's dead letters. `part` is an id of the task's ranges, which are equal in every attempt."""

    def __init__(self, client: Client, ledger: str, shape: RowShape, part: bytes) -> None:
        self._client = client
        self._ledger = ledger
        self._shape = shape
        self._part = part
        self._producer: Producer | None = None
        self._last: dict[tuple[str, int], int] = {}
        self._sent: list[tuple[list[Buffer], Future[Position]]] = []
        self._unflushed_bytes = self._count = 0

    def divert(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows. At the end of the iterator, all undecodable rows are durable dead letters."""
        schema, rescue_index = self._shape.schema, self._shape.row_columns
        try:
            for batch in rows:
                texts = batch.column(rescue_index)
                if texts.null_count < batch.num_rows:
                    for text in texts.drop_null().to_pylist():
                        self._add(parse_payload_text(text))
                    batch = batch.filter(texts.is_null())  # noqa: PLW2901 — the decoded rows
                if batch.num_rows:
                    columns = [column for number, column in enumerate(batch.columns) if number != rescue_index]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
            self._flush()
        finally:
            self._close_producer()
        if self._count:
            _log.warning("%d entries or messages that cannot be decoded are in %s", self._count, self._ledger)

    def _add(self, rescued: RescuedPayload) -> None:
        position, index = rescued.place()
        number = position.entry_id << _INDEX_BITS | (index + 1)
        if number <= self._last.get((rescued.topic, position.ledger_id), -1):
            raise Corrupt(
                f"dead letter {rescued.position} of {rescued.topic} comes after a dead letter of a later position, and "
                "would be taken for a duplicate"
            )
        self._last[rescued.topic, position.ledger_id] = number
        value, size = rescued.payload or b"", rescued.size
        properties = {TOPIC: rescued.topic, PLACE: rescued.position, REASON: rescued.reason[:_REASON_CHARACTERS_MAX]}
        if size > _PAYLOAD_BYTES_MAX:
            value, properties = b"", {**properties, SIZE: str(size)}
        message = OutgoingMessage(value, number, properties=properties)
        producer = ProducerMetadata(self._producer_name(rescued.topic, position.ledger_id))
        self._send(encode_messages(producer, [message], system_clock_ms()))
        self._count += 1
        self._unflushed_bytes += len(value)
        if self._unflushed_bytes > _UNFLUSHED_BYTES_MAX:
            self._flush()

    def _producer_name(self, topic: str, ledger_id: int) -> str:
        identity = msgspec.json.encode((*_micro_batch(), topic, ledger_id, self._part))
        return f"dead-letters-{hashlib.sha256(identity).hexdigest()[:32]}"

    def _send(self, entry: list[Buffer]) -> None:
        try:
            if self._producer is None:
                self._producer = self._client.producer(self._ledger, "dead-letters")
            future = self._producer.append(*entry)
        except Unavailable as gone:
            future = Future()
            future.set_exception(gone)
        self._sent.append((entry, future))

    def _flush(self) -> None:
        """Wait until all dead letters are durable. If the broker restarts, send unacknowledged dead letters again."""
        deadline_ms = monotonic_ms() + _RETRY_MS
        while self._sent:
            failures = [future.exception() for _, future in self._sent]
            unacknowledged = [
                entry for (entry, _), failure in zip(self._sent, failures, strict=True) if failure is not None
            ]
            self._sent = []
            for failure in failures:
                if failure is not None and not (isinstance(failure, Unavailable) and monotonic_ms() < deadline_ms):
                    raise failure
            if unacknowledged:
                self._close_producer()
                pause(_PAUSE_MS)
            for entry in unacknowledged:
                self._send(entry)
        self._unflushed_bytes = 0

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(LedgerError):  # the futures of the entries report the same error
                producer.close()


def _micro_batch() -> tuple[str, str]:
    """Return query id and batch id of Spark's task; empty strings outside of a streaming query."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return "", ""
    return task.getLocalProperty("sql.streaming.queryId") or "", task.getLocalProperty("streaming.sql.batchId") or ""
