"""Arrow Flight service of the broker: receives the calls of clients, runs them on the store, and sends the replies.

Rules
- Each action has a request class (`ledger.protocol.request`). The server decodes the body to this class and calls the
  handler in `ledger.broker.actions`.
- The server sends an error of the store with the error's class and text. It logs any other error with the traceback,
  and sends only the text.
- If a required token is missing, the server refuses the call before it reads the body.
- A writing action runs only while this broker owns the store. The store's epoch is a number that a new owner raises.
  The server checks the epoch before and after the action, and acknowledges the action only after the second check.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.broker.actions import Actions, reading_of, require_incarnation
from pyspark_ledger.ledger.broker.append_stream import AppendStream, Replies, entries_of
from pyspark_ledger.ledger.broker.context import BrokerContext
from pyspark_ledger.ledger.broker.intake.connection_guard import ConnectionGuard, connections_of, peer_of
from pyspark_ledger.ledger.broker.intake.staged_batches import StagedBatches
from pyspark_ledger.ledger.broker.listening import Listening
from pyspark_ledger.ledger.clock import monotonic_ms, system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.logs.batch import in_batch
from pyspark_ledger.ledger.logs.steps import timed_step
from pyspark_ledger.ledger.message.entry import entry_rows, parse_entry
from pyspark_ledger.ledger.metrics.calls import CallMetrics
from pyspark_ledger.ledger.ownership import live_place
from pyspark_ledger.ledger.protocol.actions import (
    BLOCK_SCHEMA,
    DECODERS,
    PROTOCOL_VERSION,
    REQUESTS,
    AcknowledgeCommand,
    AppendCommand,
    AskHealth,
    AskSettings,
    ChangeSetting,
    Hello,
    PutCommand,
    StageCommand,
    StopBroker,
    Welcome,
)
from pyspark_ledger.ledger.protocol.commits import StagedPart
from pyspark_ledger.ledger.protocol.cursors import CursorState, DescribeCursor
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.protocol.request import Call, Empty, Request
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.store.partition_acknowledgement import parts_of, whole_state
from pyspark_ledger.ledger.transport import batch_header, tokens
from pyspark_ledger.ledger.transport.batch_header import BatchHeaderFactory, batch_of
from pyspark_ledger.ledger.transport.errors import to_flight
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from pyspark_ledger.ledger.transport.store_id_header import (
    MIDDLEWARE,
    StoreIdHeaderFactory,
    require_meant,
    require_store,
)
from pyspark_ledger.ledger.transport.tokens import BearerTokenFactory, require_allowed, require_token

# Actions without a limit of concurrent calls. An operator needs them while the broker is overloaded.
_ALWAYS: frozenset[type[Request[Any]]] = frozenset({Hello, AskHealth, AskSettings, ChangeSetting, StopBroker})
_REQUEST_BYTES_MAX = 16 * 1024**2  # the largest requests have a schema, or list the staged parts of a batch
_IN_FLIGHT_BYTES_MAX = 64 * 1024**2  # of one producer
_BUSY_BYTES = 1024**3  # half of the memory that `bounded_allocator` allows
# Maximum number of blocks in a group. The server first prepares all blocks of a group in Python. Then it copies and
# sends the blocks. Reason: a copy overwrites the processor's caches, and Python's work after a copy is four times as
# slow. The cost: the broker keeps a group in memory until the client reads it. So a group has at most
# `CachedReads.group_bytes` bytes of blocks that are not mapped from local files.
_AHEAD = 8
_log = logging.getLogger(__name__)


class BrokerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight server of one store at one address, until `shutdown`."""

    def __init__(self, broker: BrokerContext, listening: Listening) -> None:
        middleware = {MIDDLEWARE: StoreIdHeaderFactory(), batch_header.MIDDLEWARE: BatchHeaderFactory()}
        if listening.tokens:
            middleware[tokens.MIDDLEWARE] = BearerTokenFactory(listening.tokens)
        self._broker = broker
        self._store, self._source, self._settings = broker.store, broker.cache, broker.settings
        self._admission, self._activity, self._calls = broker.admission, broker.activity, broker.calls
        self._place = live_place(broker.store.path)
        self.own_files: list[Path] = []
        """Token files of this server's address, which the broker removes at its end."""
        self.append_socket = ""
        self._staged = StagedBatches(broker.admission.in_flight)
        self._actions = Actions(broker)
        self._handlers = self._actions.table() | {
            Hello: self._hello,
            StopBroker: self._stop,
            ChangeSetting: lambda request: broker.settings.change(request, owner=listening.admits_only_owner()),
        }
        self._guard: ConnectionGuard | None = None
        # Nothing that a call needs is set after this statement, because calls can arrive as soon as it has run.
        super().__init__(listening.address, middleware=middleware, **listening.tls)
        if listening.tokens and (port := self.port) > 0:  # a Unix socket has no port
            self._guard = ConnectionGuard(lambda known: connections_of(port, known), _REQUEST_BYTES_MAX, monotonic_ms)
            self._guard.start()

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        with self._activity.call(), in_batch(batch_of(context)), _errors_crossing(self._calls):
            self._require_welcome(context)
            kind = REQUESTS.get(action.type)
            if kind is None:
                raise Unsupported(f"this broker has no action {action.type[:80]!r}", hint="Upgrade the broker")
            request = self._decoded(action.body, kind, f"action {action.type!r}")
            require_allowed(context, request)
            room = nullcontext() if kind in _ALWAYS else self._admission.requests.counted()
            with room, self._calls.timed(action.type), timed_step(action.type, ledger=_ledger_of(request)) as figures:
                answer = self._answer(request)
                figures["repeated"] = getattr(answer, "repeated", None)
                return [flight.Result(msgspec.json.encode(answer))]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        with in_batch(batch_of(context)), _errors_crossing(self._calls):
            self._require_welcome(context)
            request = self._decoded(ticket.ticket, ReadRequest, "a read")
            require_allowed(context, request)
            with timed_step("send", ledger=request.name):
                located = self._actions.located(request)
            return flight.GeneratorStream(BLOCK_SCHEMA, self._blocks(request, located))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with self._activity.call(), in_batch(batch_of(context)), _errors_crossing(self._calls):
            self._require_welcome(context)
            command = self._decoded(descriptor.command, PutCommand, "a write")
            require_allowed(context, command)
            chunks, client = self._chunks(reader), (peer_of(context.peer()) or ("",))[0]
            with (
                self._admission.streams.counted(client),
                self._admission.requests.counted(),
                timed_step(command.call.name, ledger=_ledger_of(command)),
            ):
                if isinstance(command, AppendCommand):
                    self._append(command, _MetadataReplies(writer), (entries_of(chunk.data) for chunk in chunks))
                elif isinstance(command, AcknowledgeCommand):
                    writer.write(msgspec.msgpack.encode(self._acknowledge(command, (chunk.data for chunk in chunks))))
                else:
                    batches = self._staged.received(chunks, writer.write if command.announced else None)
                    writer.write(msgspec.msgpack.encode(self._stage(command, batches)))

    def shutdown(self) -> None:
        """Stop the server, and wait until its calls have ended."""
        super().shutdown()
        if self._guard is not None:
            self._guard.stop()

    def append(self, command: AppendCommand, replies: Replies, sent: Iterator[list[memoryview]]) -> None:
        """Serve an append stream that a producer on this host sends over the local socket. Raises the log's errors."""
        try:
            with self._activity.call(), self._admission.requests.counted():
                self._append(command, replies, sent)
        except LedgerError as error:
            self._calls.count_error(error)
            raise

    def _append(self, command: AppendCommand, replies: Replies, sent: Iterator[list[memoryview]]) -> None:
        if self._broker.stopping.is_set():
            raise Unavailable("the broker is stopping", hint="Connect again")
        ledger = self._store.ledger(command.ledger)
        of_all = self._admission.in_flight
        AppendStream(ledger, replies, _IN_FLIGHT_BYTES_MAX, of_all, self._require_allowed).serve(sent)

    def _require_welcome(self, context: flight.ServerCallContext) -> None:
        require_token(context, system_clock_ms, self._store.store_id)
        if self._guard is not None:
            self._guard.admit(context.peer())
        require_store(context, self._store.store_id, self._place, str(self._store.path))
        if self._broker.stopping.is_set():
            raise Unavailable("the broker is stopping", hint="Connect again")

    def _answer(self, request: Request[Any]) -> msgspec.Struct:
        """Run the handler of a request and return the reply.

        Checks the store's epoch before and after a call that changes the store. Raises Fenced if another broker took it
        over.
        """
        handler = self._handlers[type(request)]
        if not request.call.changes:
            return handler(request)
        self._store.require_ours()
        answer = handler(request)
        self._store.require_ours()
        return answer

    def _decoded(self, body: Any, kind: Any, what: str) -> Any:
        body = memoryview(body or b"{}")
        if len(body) > _REQUEST_BYTES_MAX:
            raise Refused(
                f"{what} has {len(body)} bytes, at most {_REQUEST_BYTES_MAX} are allowed",
                hint="Use fewer or shorter properties and columns. Write a batch with fewer tasks",
            )
        try:
            return DECODERS[kind].decode(body)
        except JSON_FAULTS as wrong:
            name = getattr(kind, "__name__", kind)
            raise Refused(f"{what} has a wrong body, expected {name}: {json_fault(wrong)}") from wrong

    def _chunks(self, reader: flight.MetadataRecordBatchReader) -> Iterator[flight.FlightStreamChunk]:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            except pa.ArrowMemoryError as error:  # see `bounded_allocator`
                text = f"a batch is too large for the memory of Arrow in this broker: {error}"
                if pa.total_allocated_bytes() > _BUSY_BYTES:
                    raise Unavailable(text, hint="Other clients use this memory: repeat the call") from None
                raise Refused(text, hint="Send smaller batches, without compression") from None
            if chunk.data is None:
                raise Refused("a message of a stream has metadata and no batch")
            self._require_allowed(chunk.data.nbytes)
            yield chunk

    def _require_allowed(self, size: int) -> None:
        most = self._settings.now.maxMessageSize
        if size > most:
            raise Refused(f"a request has {size} bytes, setting 'maxMessageSize' allows {most}")

    def _blocks(self, request: ReadRequest, blocks: list[SegmentBlock]) -> Iterator[pa.RecordBatch]:
        with self._activity.call(), _errors_crossing(self._calls), self._admission.requests.counted():
            reading = reading_of(request)
            self._source.begins(blocks, reading)
            for group in self._groups(blocks):
                try:
                    batches = [_block_batch(block, self._source.read(block, reading)) for block in group]
                except NotFound:
                    moved = self._in_object_storage(request, group)
                    batches = [_block_batch(block, self._source.read(block, reading)) for block in moved]
                yield from batches
                self._source.served(group, reading)

    def _groups(self, blocks: list[SegmentBlock]) -> Iterator[list[SegmentBlock]]:
        """Yield the blocks in groups: the first block alone, then groups of up to `_AHEAD` blocks."""
        group, size, most = list[SegmentBlock](), 0, 1
        for block in blocks:
            copied = block.length if self._source.copied(block) is not None else 0
            if group and (len(group) == most or size + copied > self._source.group_bytes):
                yield group
                group, size, most = [], 0, _AHEAD
            group.append(block)
            size += copied
        if group:
            yield group

    def _in_object_storage(self, request: ReadRequest, missing: list[SegmentBlock]) -> list[SegmentBlock]:
        """Return the copies in object storage of blocks whose local file is missing.

        The broker deletes the local file of a segment some time after its offload. Raises NotFound if object storage
        does not have a block.
        """
        now = {(block.ledger_id, block.first_entry): block for block in self._actions.located(request)}
        copies = [now[block.ledger_id, block.first_entry] for block in missing]
        if any(block.source is None for block in copies):
            raise NotFound(
                f"the segment file {missing[0].path} is missing", hint="Restore the file; check if the store was moved"
            )
        return copies

    def _stage(self, command: StageCommand, batches: Iterator[pa.RecordBatch]) -> StagedPart:
        place = self._store.commits.open_part(command.query, command.batch)
        with PartWriter.to_file(place) as part:
            for batch in batches:
                for entry in entries_of(batch):
                    part.write([entry], entry_rows(parse_entry(entry, f"an entry of {place.part}").metadata))
            staged = part.close()
        self._store.require_ours()
        return staged

    def _acknowledge(self, command: AcknowledgeCommand, batches: Iterator[pa.RecordBatch]) -> CursorState:
        parts = parts_of(self._store, command, batches, self._settings.now.maxMessageSize)
        return whole_state(self._store, command, [self._acknowledge_one(*part) for part in parts])

    def _acknowledge_one(self, command: AcknowledgeCommand, batches: Iterable[pa.RecordBatch]) -> CursorState:
        self._store.require_ours()
        require_incarnation(self._store.ledger(command.ledger), command.incarnation)
        if command.action == "nack":
            given = self._store.deliveries.nack(command.ledger, command.cursor, batches)
            self._source.again(self._store.ledger(command.ledger).name, command.cursor, given)
            state = self._store.cursors.describe(DescribeCursor(command.ledger, command.cursor, precise=False))
        else:
            state = self._store.cursors.acknowledge(command.ledger, command.cursor, batches)
        self._source.commit(state.ledger, state.cursor, state.next_position)
        self._store.require_ours()
        return state

    def _hello(self, request: Hello) -> Welcome:
        self._admission.connections.require_room()
        if request.version != PROTOCOL_VERSION:
            raise Unsupported(
                f"the client uses protocol version {request.version}, this broker {PROTOCOL_VERSION}",
                hint="Install the broker's release of pyspark-ledger on the driver and on the executors",
            )
        store = self._store
        require_meant(request.store_id, request.place, store.store_id, self._place, str(store.path))
        return Welcome(
            PROTOCOL_VERSION,
            store.store_id,
            str(store.path),
            store.epoch,
            os.getpid(),
            str(self._broker.token_path),
            self.append_socket,
            self._place,
            announcements=True,
            former=store.former,
        )

    def _stop(self, _: StopBroker) -> Empty:
        self._broker.stopping.set()
        return Empty()


class _MetadataReplies:
    """Reply channel that sends replies as metadata of a Flight stream.

    `write_at_once` sends nothing, because Flight does not report whether it can send without waiting.
    """

    def __init__(self, writer: flight.FlightMetadataWriter) -> None:
        self._writer = writer

    def write(self, message: bytes) -> None:
        self._writer.write(message)

    def write_at_once(self, message: bytes) -> bool:  # noqa: ARG002 — see above
        return False


class _errors_crossing:  # noqa: N801 — reads as a statement where it is used
    """Context that counts every error of a call, and raises it as a Flight error."""

    def __init__(self, calls: CallMetrics) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, (flight.FlightError, GeneratorExit)):
            return
        self._calls.count_error(error)
        if isinstance(error, LedgerError):
            raise to_flight(error) from error
        _log.error("unexpected error of a call", exc_info=error)
        raise to_flight(LedgerError(f"the broker failed: {error!r}", hint="See broker.log in the store")) from error


def _ledger_of(request: Call) -> str:
    """Return the ledger that a request names, for logs; empty if it names none or a list."""
    found = [getattr(request, field, "") for field in request.call.ledgers]
    return found[0] if found and isinstance(found[0], str) else ""


def _block_batch(block: SegmentBlock, frames: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, frames.size], dtype=np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, frames])
    numbers = [pa.array([value], pa.int64()) for value in (block.ledger_id, block.first_entry, block.entries)]
    return pa.RecordBatch.from_arrays([*numbers, column], schema=BLOCK_SCHEMA)
