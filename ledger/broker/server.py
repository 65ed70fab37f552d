"""The broker's Flight service over one store: each call in, one method of the store, its answer or error out.

Rules
- An action is looked up in the protocol's table, its body decoded to that table's type, and handed to one function.
- Whatever the store raises crosses as that error; anything else is logged with its traceback and crosses as its text.
- A call without the token that the address demands is answered before anything of it is read.
- What may change something is done, and acknowledged, only while the store is ours: its epoch is read before and after.
- Places are answered only to a client that sent the token, which it can only have read on this host as this user.
"""

from __future__ import annotations

import hmac
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import takewhile
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from ledger.acknowledged_rows import positions_given
from ledger.broker import bearer_token
from ledger.broker.activity import Activity
from ledger.broker.admission import BrokerAdmission
from ledger.broker.append_stream import AppendStream, Replies, entries_of
from ledger.broker.bearer_token import BearerTokenFactory, require_allowed, require_token
from ledger.broker.cached_reads import CachedReads
from ledger.broker.listening import Listening
from ledger.broker.live_settings import LiveSettings
from ledger.broker.offloaded_reads import Reading
from ledger.broker.wanted_store import MIDDLEWARE, WantedStoreFactory, require_store
from ledger.broker.wire_errors import to_flight
from ledger.cache.cache_report import cache_reads
from ledger.cache_calls import FollowLedger, FollowLedgers
from ledger.clock import system_clock_ms
from ledger.cursor_calls import (
    AcquireLease,
    CursorState,
    LeaseReply,
    NameCursor,
    ReleaseLease,
    ResetCursor,
)
from ledger.entry import entry_rows, parse_entry
from ledger.errors import DataLoss, LedgerError, NotFound, Refused, Unavailable, Unsupported
from ledger.life_calls import ChangeProperties, Properties
from ledger.managed_ledger import ManagedLedger
from ledger.names import canonical_name
from ledger.partition_acknowledgement import parts_of, whole_state
from ledger.producer_messages import AskSequence, LastSequence, PartitionCount
from ledger.protocol import (
    ACTIONS,
    BLOCK_SCHEMA,
    DECODERS,
    PROTOCOL_VERSION,
    AcknowledgeCommand,
    AppendCommand,
    AskEnd,
    BlockPlace,
    CreateLedger,
    Empty,
    Hello,
    LedgerDescription,
    LedgerEnd,
    LedgerNames,
    NameLedger,
    Places,
    PositionReply,
    PutCommand,
    ReadRequest,
    SeekTime,
    SplitParts,
    SplitRequest,
    StageCommand,
    Welcome,
)
from ledger.run_calls import OpenStaging, StagedPart, StagingPlace
from ledger.seal_calls import SealedLedger
from ledger.segment_reader import SegmentBlock
from ledger.staging import PartFile
from ledger.store import Store
from ledger.survey import Surveyor

# What is answered however busy the broker is: else nobody could mend it.
_ALWAYS = frozenset({"hello", "settings", "settings.change", "shutdown"})
# Blocks that are made ready together, behind the first: what Python runs once for each block runs four times as fast
# in a row as after a block was copied through the processor's caches. A reader that stands still holds so many.
_AHEAD = 8
# What changes nothing. Everything else is refused by a broker whose store was taken over.
_READING = frozenset(
    {
        "hello",
        "describe",
        "partitions",
        "list",
        "end",
        "schema.get",
        "locate",
        "split",
        "seek",
        "survey",
        "quotas",
        "split.many",
        "locate.many",
        "schema.many",
        "cursor.describe",
        "cursor.holes",
        "delivery.due",
        "delivery.get",
        "cache",
        "cache.reads",
        "cache.follow",
        "cache.follow.many",
        "cache.hint",
        "offload.status",
        "settings",
        "shutdown",
    }
)
_SETTLE_MS = 30_000
_log = logging.getLogger(__name__)


class BrokerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one store at one address until `shutdown`."""

    def __init__(
        self,
        store: Store,
        source: CachedReads,
        listening: Listening,
        *,
        token: str,
        token_path: str,
        settings: LiveSettings,
        admission: BrokerAdmission,
        activity: Activity,
        stopping: threading.Event,
    ) -> None:
        middleware = {MIDDLEWARE: WantedStoreFactory()}
        if listening.tokens:
            middleware[bearer_token.MIDDLEWARE] = BearerTokenFactory(listening.tokens)
        self.stopping = stopping
        self._store = store
        self._source = source
        self._token = token
        self.token_path = token_path
        self.append_socket = ""
        self._settings = settings
        self._admission = admission
        self._activity = activity
        self._handlers = self._table()
        # Last: from here on calls come in.
        super().__init__(listening.address, middleware=middleware, **listening.tls)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        """One action of the protocol."""
        with self._activity.call(), _errors_crossing():
            self._require_welcome(context)
            if action.type not in self._handlers:
                raise Unsupported(f"this broker knows no action {action.type[:80]!r}", hint="Upgrade the broker")
            request = self._decoded(action.body, ACTIONS[action.type][0], f"action {action.type!r}")
            require_allowed(context, system_clock_ms, action.type, request)
            with nullcontext() if action.type in _ALWAYS else self._admission.requests.one():
                return [flight.Result(msgspec.json.encode(self._answer(action.type, request)))]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """The blocks of a range."""
        with _errors_crossing():
            self._require_welcome(context)
            request = self._decoded(ticket.ticket, ReadRequest, "a read")
            require_allowed(context, system_clock_ms, "DoGet", request)
            return flight.GeneratorStream(BLOCK_SCHEMA, self._blocks(request, self._located(request)))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """An append stream, or a part to be staged."""
        with self._activity.call(), _errors_crossing():
            self._require_welcome(context)
            command = self._decoded(descriptor.command, PutCommand, "a write")
            require_allowed(context, system_clock_ms, type(command).__name__, command)
            with self._admission.requests.one():
                if isinstance(command, AppendCommand):
                    self._append(command, writer, (entries_of(batch) for batch in self._batches(reader)))
                elif isinstance(command, AcknowledgeCommand):
                    writer.write(msgspec.msgpack.encode(self._acknowledge(command, list(self._batches(reader)))))
                else:
                    writer.write(msgspec.msgpack.encode(self._stage(command, self._batches(reader))))

    def append(self, command: AppendCommand, replies: Replies, sent: Iterator[list[pa.Buffer]]) -> None:
        """A stream of entries that did not come by Flight; raises what the log says."""
        with self._activity.call(), self._admission.requests.one():
            self._append(command, replies, self._allowed(sent))

    def _append(self, command: AppendCommand, replies: Replies, sent: Iterator[list[pa.Buffer]]) -> None:
        if self.stopping.is_set():
            raise Unavailable("the broker is leaving", hint="Connect again")
        ledger, most = self._store.ledger(command.ledger), self._settings.now.maxInFlightAppendBytes
        AppendStream(ledger, replies, most, self._admission.in_flight).serve(sent)

    def _require_welcome(self, context: flight.ServerCallContext) -> None:
        require_token(context)
        require_store(context, self._store.store_id)
        if self.stopping.is_set():
            raise Unavailable("the broker is leaving", hint="Connect again")

    def _answer(self, action: str, request: Any) -> msgspec.Struct:
        """What an action comes to. What may change something is ours to do, and still ours when it is acknowledged."""
        if action in _READING:
            return self._handlers[action](request)
        self._store.require_ours()
        answer = self._handlers[action](request)
        self._store.require_ours()
        return answer

    def _decoded(self, body: Any, kind: Any, what: str) -> Any:
        most, body = self._settings.now.maxRequestBodyBytes, memoryview(body or b"{}")
        if len(body) > most:
            raise Refused(f"{what} comes with {len(body)} bytes, setting 'maxRequestBodyBytes' allows {most}")
        try:
            return DECODERS[kind].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise Refused(f"{what} is no {getattr(kind, '__name__', kind)}: {wrong}") from wrong

    def _batches(self, reader: flight.MetadataRecordBatchReader) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = reader.read_chunk().data
            except StopIteration:
                return
            self._require_allowed(batch.nbytes)
            yield batch

    def _allowed(self, sent: Iterator[list[pa.Buffer]]) -> Iterator[list[pa.Buffer]]:
        for entries in sent:
            self._require_allowed(sum(entry.size for entry in entries))
            yield entries

    def _require_allowed(self, size: int) -> None:
        most = self._settings.now.maxMessageSize
        if size > most:
            raise Refused(f"a request carries {size} bytes, setting 'maxMessageSize' allows {most}")

    def _blocks(self, request: ReadRequest, blocks: list[SegmentBlock]) -> Iterator[pa.RecordBatch]:
        with self._activity.call(), _errors_crossing(), self._admission.readers.one():
            reading = self._reading(request)
            self._source.begins(blocks, reading)
            for group in (blocks[:1], *(blocks[at : at + _AHEAD] for at in range(1, len(blocks), _AHEAD))):
                try:
                    batches = [_block_batch(block, self._source.read(block, reading)) for block in group]
                except NotFound:
                    again = self._elsewhere(request, group)
                    batches = [_block_batch(block, self._source.read(block, reading)) for block in again]
                yield from batches
                self._source.served(group, reading)

    def _elsewhere(self, request: ReadRequest, gone: list[SegmentBlock]) -> list[SegmentBlock]:
        """The same blocks in object storage, where their ledger went after they were located; else it is an error."""
        now = {(block.ledger_id, block.first_entry): block for block in self._located(request)}
        found = [now[block.ledger_id, block.first_entry] for block in gone]
        if any(block.home is None for block in found):
            raise NotFound(f"{gone[0].path} is not there", hint="Restore it, or look whether the store was moved")
        return found

    def _stage(self, command: StageCommand, batches: Iterator[pa.RecordBatch]) -> StagedPart:
        place = self._store.open_part(command.query, command.batch)
        with PartFile(place) as part:
            for batch in batches:
                for entry in entries_of(batch):
                    part.write([entry], entry_rows(parse_entry(entry, f"an entry of {place.part}").metadata))
            staged = part.close()
        self._store.require_ours()
        return staged

    def _acknowledge(self, command: AcknowledgeCommand, batches: list[pa.RecordBatch]) -> CursorState:
        parts = parts_of(self._store, command, batches)
        return whole_state(self._store, command, [self._acknowledge_one(*part) for part in parts])

    def _acknowledge_one(self, command: AcknowledgeCommand, batches: list[pa.RecordBatch]) -> CursorState:
        self._store.require_ours()
        self._require_incarnation(self._store.ledger(command.ledger), command.incarnation)
        if command.action == "nack":
            self._store.deliveries.give_back(command.ledger, command.cursor, batches)
            ledger = self._store.ledger(command.ledger)
            self._source.again(ledger.name, command.cursor, positions_given(batches, ledger.snapshot))
            state = self._store.cursors.describe(NameCursor(command.ledger, command.cursor, precise=False))
        else:
            state = self._store.cursors.acknowledge(command.ledger, command.cursor, batches)
        self._source.commit(state.ledger, state.cursor, state.next_position)
        self._store.require_ours()
        return state

    def _located(self, request: ReadRequest) -> list[SegmentBlock]:
        ledger = self._store.ledger(request.name)
        self._require_incarnation(ledger, request.incarnation)
        return ledger.blocks(request.range, request.max_block_bytes)

    @staticmethod
    def _require_incarnation(ledger: ManagedLedger, wanted: str) -> None:
        if wanted and wanted != ledger.incarnation:
            raise DataLoss(
                f"ledger {ledger.name!r} is incarnation {ledger.incarnation}, {wanted} was asked for",
                hint="It was deleted and made again: start a new checkpoint",
            )

    def _reading(self, request: ReadRequest) -> Reading:
        return Reading(canonical_name(request.name), request.subscription)

    def _on_this_host(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    def _hello(self, request: Hello) -> Welcome:
        self._admission.connections.require_room()
        if request.version != PROTOCOL_VERSION:
            raise Unsupported(f"the client speaks protocol {request.version}, this broker {PROTOCOL_VERSION}")
        if request.store_id and request.store_id != self._store.store_id:
            raise Refused(
                f"this broker serves store {self._store.store_id}, the client wants {request.store_id}",
                hint="Another store's broker answers at this address: correct the address",
            )
        store = self._store
        return Welcome(
            PROTOCOL_VERSION,
            store.store_id,
            str(store.path),
            store.epoch,
            os.getpid(),
            self.token_path,
            self.append_socket,
        )

    def _create(self, request: CreateLedger) -> LedgerDescription:
        if request.partitions:
            return self._store.create_partitioned(request)
        return self._store.describe(self._store.create_ledger(request).name)

    def _delete(self, request: NameLedger) -> Empty:
        self._store.delete_ledger(request.name)
        self._source.drop(canonical_name(request.name))
        return Empty()

    def _end(self, request: AskEnd) -> LedgerEnd:
        ledger = self._store.ledger(request.name)
        if request.incarnation and request.incarnation != ledger.incarnation:
            return ledger.end()
        if request.since is not None and request.wait_ms:
            ledger.wait_past(request.since, min(request.wait_ms, self._settings.now.maxWaitMillis))
        return ledger.end(request.since)

    def _locate(self, request: ReadRequest) -> Places:
        if not self._on_this_host(request.token):
            return Places(mapped=False)
        blocks = self._located(request)
        local = list(takewhile(lambda block: self._source.copied(block) is None, blocks))
        if len(local) < len(blocks) and not request.partly:
            return Places(mapped=False)
        if blocks and not local:
            places = self._source.share(blocks, self._reading(request))
            return Places(mapped=bool(places), blocks=places, more=True)
        if len(local) < len(blocks):
            self._source.hand_out(local, self._reading(request))
            return Places(True, [_place(block) for block in local], more=True)
        self._source.hand_out(blocks, self._reading(request))
        return Places(True, [_place(block) for block in blocks])

    def _split(self, request: SplitRequest) -> SplitParts:
        ledger = self._store.ledger(request.name)
        return SplitParts(ledger.split(request.range, request.target_bytes, request.max_parts))

    def _terminate(self, request: NameLedger) -> PositionReply:
        return PositionReply(self._store.ledger(request.name).terminate())

    def _properties(self, request: ChangeProperties) -> Properties:
        ledger = self._store.ledger(request.name)
        return Properties(ledger.name, ledger.change_properties(request.values, request.remove))

    def _last_sequence(self, request: AskSequence) -> LastSequence:
        ledger = self._store.ledger(request.ledger)
        return LastSequence(ledger.last_sequence_id(request.producer, _SETTLE_MS))

    def _seek(self, request: SeekTime) -> PositionReply:
        return PositionReply(self._store.ledger(request.name).seek_time(request.timestamp_ms))

    def _open_staging(self, request: OpenStaging) -> StagingPlace:
        if not self._on_this_host(request.token):
            raise Refused("a staging file was asked for from another host", hint="Stage by DoPut instead")
        return self._store.open_part(request.query, request.batch)

    def _acquire_lease(self, request: AcquireLease) -> LeaseReply:
        reply = self._store.cursors.acquire_lease(request)
        if reply.granted:
            self._activity.hold(_lease_key(request), request.ttl_ms)
            ledger = canonical_name(request.ledger)
            position = self._store.cursors.next_position(ledger, request.cursor)
            self._source.follow(ledger, request.cursor, position, request.ttl_ms)
        return reply

    def _release_lease(self, request: ReleaseLease) -> None:
        self._store.cursors.release_lease(request)
        self._activity.hold(_lease_key(request), 0)
        if not self._store.cursors.is_leased(canonical_name(request.ledger), request.cursor):
            self._source.leave(canonical_name(request.ledger), request.cursor)

    def _follow(self, request: FollowLedger) -> Empty:
        name = self._store.ledger(request.name).name
        if request.ttl_ms:
            self._source.follow(name, request.reader, request.position, request.ttl_ms)
        else:
            self._source.leave(name, request.reader)
        return Empty()

    def _follow_many(self, request: FollowLedgers) -> Empty:
        for one in request.ledgers:
            with suppress(NotFound):
                self._follow(one)
        return Empty()

    def _moving(self, change: Callable[[Any], CursorState]) -> Callable[[Any], CursorState]:
        """A change of a cursor, of which the cache hears."""

        def handle(request: Any) -> CursorState:
            state = change(request)
            self._source.commit(state.ledger, state.cursor, state.next_position)
            return state

        return handle

    def _reset(self, request: ResetCursor) -> CursorState:
        state = self._store.cursors.reset(request)
        self._source.reset(state.ledger, state.cursor, state.next_position)
        return state

    def _delete_cursor(self, request: NameCursor) -> None:
        self._store.cursors.delete(request)
        self._source.leave(canonical_name(request.ledger), request.cursor)

    def _shutdown(self, _: Empty) -> Empty:
        self.stopping.set()
        return Empty()

    def _table(self) -> dict[str, Callable[[Any], msgspec.Struct]]:
        store, cursors, survey = self._store, self._store.cursors, Surveyor(self._store, system_clock_ms)
        return {
            "hello": self._hello,
            "create": self._create,
            "describe": lambda request: store.describe(request.name),
            "delete": self._delete,
            "producer.last": self._last_sequence,
            "partitions": lambda request: PartitionCount(store.partitions.count(canonical_name(request.name))),
            "partitions.extend": store.extend_partitioned,
            "trim": lambda request: store.ledger(request.name).trim(),
            "terminate": self._terminate,
            "seal": lambda one: SealedLedger(one.name, store.ledger(one.name).roll_over(one.older_than_ms)),
            "properties": self._properties,
            "policy": store.policies.change,
            "offload": store.offloads.offload,
            "offload.status": lambda request: store.offloads.status(request.name),
            "list": lambda _: LedgerNames(store.names()),
            "end": self._end,
            "schema.get": store.get_schema,
            "schema.register": store.register_schema,
            "locate": self._locate,
            "split": self._split,
            "seek": self._seek,
            "survey": survey.survey,
            "quotas": survey.quotas,
            "split.many": survey.split,
            "locate.many": lambda request: survey.locate(request, self._locate),
            "schema.many": survey.schemas,
            "cursor.open": cursors.open,
            "cursor.describe": cursors.describe,
            "cursor.mark_delete": self._moving(cursors.mark_delete),
            "cursor.reset": self._reset,
            "cursor.skip": self._moving(cursors.skip),
            "cursor.properties": cursors.change_properties,
            "cursor.holes": cursors.holes,
            "delivery.next": store.deliveries.next,
            "delivery.due": store.deliveries.due,
            "delivery.get": store.deliveries.get,
            "delivery.bury": _acknowledging(store.deliveries.bury),
            "cursor.delete": _acknowledging(self._delete_cursor),
            "lease.acquire": self._acquire_lease,
            "lease.release": _acknowledging(self._release_lease),
            "stage.open": self._open_staging,
            "run.commit": store.commit,
            "runs.commit": store.commits.commit,
            "run.abort": _acknowledging(store.abort),
            "cache": lambda _: self._source.metrics(),
            "cache.reads": lambda _: cache_reads(self._source.cache),
            "cache.follow": self._follow,
            "cache.follow.many": self._follow_many,
            "cache.hint": self._source.hint,
            "settings": lambda _: self._settings.describe(),
            "settings.change": self._settings.change,
            "shutdown": self._shutdown,
        }


class _errors_crossing:  # noqa: N801 — reads as a statement where it is used
    """Lets nothing but Flight errors out of a call."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, (flight.FlightError, GeneratorExit)):
            return
        if isinstance(error, LedgerError):
            raise to_flight(error) from error
        _log.error("a call failed in a way that nobody foresaw", exc_info=error)
        raise to_flight(LedgerError(f"the broker failed: {error!r}", hint="See broker.log in the store")) from error


def _acknowledging(method: Callable[[Any], None]) -> Callable[[Any], Empty]:
    """A method without a result as an action, whose reply is empty."""

    def handle(request: Any) -> Empty:
        method(request)
        return Empty()

    return handle


def _lease_key(request: AcquireLease | ReleaseLease) -> str:
    return f"{request.ledger}\0{request.cursor}\0{request.holder}"


def _place(block: SegmentBlock) -> BlockPlace:
    return BlockPlace(block.ledger_id, block.first_entry, block.entries, str(block.path), block.offset, block.length)


def _block_batch(block: SegmentBlock, frames: pa.Buffer) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, frames.size], dtype=np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, frames])
    numbers = [pa.array([value], pa.int64()) for value in (block.ledger_id, block.first_entry, block.entries)]
    return pa.RecordBatch.from_arrays([*numbers, column], schema=BLOCK_SCHEMA)
