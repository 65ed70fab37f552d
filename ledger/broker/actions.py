"""Functions that carry out the calls of clients. Arrow Flight names such a call an *action*.

Rules
- Each action has one handler. It takes the decoded request, and returns the reply or raises the store's error.
- After a change of the store, a handler also updates the cache and the leases that depend on the change.
- A handler returns file locations only to a client that sent the token of this broker. Reason: only a process of this
  user on this host can read the token, and only such a process can map the files.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec

from pyspark_ledger.ledger.broker.error_log import ErrorLog
from pyspark_ledger.ledger.broker.limits import Activity
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.broker.metrics import MetricsCollector
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.broker.reads.stored_reads import StoredReads
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.message.schema.registration import readable_versions
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol import cursors, ledgers, reads
from pyspark_ledger.ledger.protocol.actions import (
    AskEnd,
    CreateLedger,
    Empty,
    GetSchema,
    Health,
    LedgerDescription,
    LedgerEnd,
    LedgerNames,
    NameLedger,
    SchemaVersion,
)
from pyspark_ledger.ledger.protocol.cache import RegisterReader, RegisterReaders
from pyspark_ledger.ledger.protocol.commits import OpenStaging, StagingPlace
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.store.batch_status import BatchStatus
from pyspark_ledger.ledger.store.store import Store

# Actions that do not change the store. If another broker has taken the store over, this broker refuses all other
# actions.
READING = frozenset(
    {
        "hello",
        "describe",
        "partitions",
        "list",
        "end",
        "schema.get",
        "read.open",
        "locate",
        "split",
        "seek",
        "run.newest",
        "survey",
        "quotas",
        "split.many",
        "locate.many",
        "locate.stored",
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
        "health",
        "metrics",
        "publish.report",
        "settings",
        "shutdown",
    }
)
_SETTLE_MS = 30_000


class Actions:
    """The handlers of one broker."""

    def __init__(
        self,
        store: Store,
        source: CachedReads,
        settings: LiveSettings,
        activity: Activity,
        errors: ErrorLog,
        metrics: MetricsCollector,
        token: str,
    ) -> None:
        self._store = store
        self._source = source
        self._settings = settings
        self._activity = activity
        self._errors = errors
        self._metrics = metrics
        self._token = token

    def table(self) -> dict[str, Callable[[Any], msgspec.Struct]]:
        """Return the handler of each action of the protocol.

        The server itself handles `hello`, `shutdown` and `settings.change`.
        """
        store, durable, batch_status = self._store, self._store.cursors, BatchStatus(self._store, system_clock_ms)
        return {
            "create": self._create,
            "describe": lambda request: store.describe(request.name, lists=request.lists),
            "delete": self._delete,
            "producer.last": lambda request: ledgers.LastSequence(
                store.ledger(request.ledger).last_sequence_id(request.producer, _SETTLE_MS)
            ),
            "partitions": lambda request: ledgers.PartitionCount(store.partitions.count(canonical_name(request.name))),
            "partitions.extend": store.extend_partitioned,
            "trim": lambda request: store.ledger(request.name).trim(),
            "terminate": lambda request: reads.PositionReply(store.ledger(request.name).terminate()),
            "seal": lambda request: ledgers.SealReply(
                request.name, store.ledger(request.name).roll_over(request.older_than_ms)
            ),
            "properties": self._properties,
            "policy": store.policies.change,
            "offload": store.offloads.offload,
            "offload.status": lambda request: store.offloads.status(request.name),
            "list": lambda _: LedgerNames(store.names()),
            "end": self._end,
            "schema.get": store.get_schema,
            "schema.register": store.register_schema,
            "schema.restore": self._restore_schema,
            "read.open": self._open_read,
            "locate": self._locate,
            "split": self._split,
            "seek": lambda request: reads.PositionReply(store.ledger(request.name).seek_time(request.timestamp_ms)),
            "survey": batch_status.statuses,
            "quotas": batch_status.limit,
            "split.many": batch_status.split,
            "locate.many": lambda request: batch_status.locate(request, self._locate),
            "locate.stored": self._locate_stored,
            "schema.many": batch_status.schemas,
            "cursor.open": durable.open,
            "cursor.describe": durable.describe,
            "cursor.mark_delete": self._mark_delete,
            "cursor.reset": self._reset,
            "cursor.skip": self._skip,
            "cursor.properties": durable.change_properties,
            "cursor.holes": durable.acked_ranges,
            "delivery.next": self._next_delivery,
            "delivery.due": store.deliveries.due,
            "delivery.get": store.deliveries.get,
            "delivery.bury": _acknowledging(self._ack_dead_letters),
            "cursor.delete": _acknowledging(self._delete_cursor),
            "lease.acquire": self._acquire_lease,
            "lease.release": _acknowledging(self._release_lease),
            "stage.open": self._open_staging,
            "stage.upload": store.open_upload,
            "run.commit": store.commit,
            "runs.commit": store.commits.commit,
            "run.newest": store.runs.newest_batch,
            "run.abort": _acknowledging(store.runs.abort),
            "cache": lambda _: self._source.metrics(),
            "cache.reads": lambda _: self._source.sums.now(),
            "cache.follow": self._follow,
            "cache.follow.many": self._follow_many,
            "cache.hint": self._source.prefetch,
            "health": self._health,
            "metrics": self._metrics.collect,
            "publish.report": self._metrics.report_published,
            "settings": lambda _: self._settings.describe(),
        }

    def _health(self, _: Empty) -> Health:
        errors, count = self._errors.newest()
        return Health({name: str(error) for name, error in self._store.given_up().items()}, errors, count)

    def located(self, request: reads.ReadRequest) -> list[SegmentBlock]:
        """Return the blocks of a range.

        Raises DataLoss if the ledger was deleted and created again since the range was planned.
        """
        ledger = self._store.ledger(request.name)
        require_incarnation(ledger, request.incarnation)
        return ledger.blocks(request.range, request.max_block_bytes)

    def _on_this_host(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    def _create(self, request: CreateLedger) -> LedgerDescription:
        if request.partitions:
            return self._store.create_partitioned(request)
        return self._store.describe(self._store.create_ledger(request).name, lists=request.lists)

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

    def _locate(self, request: reads.ReadRequest) -> reads.Places:
        if not self._on_this_host(request.token):
            return reads.Places(mapped=False)
        blocks = self.located(request)
        local = list(takewhile(lambda block: self._source.copied(block) is None, blocks))
        if len(local) < len(blocks) and not request.partly:
            return reads.Places(mapped=False)
        if blocks and not local:
            places = self._source.share(blocks, reading_of(request))
            return reads.Places(mapped=bool(places), blocks=places, more=True)
        if len(local) < len(blocks):
            self._source.count_local(local, reading_of(request))
            return reads.Places(True, [_place(block) for block in local], more=True)
        self._source.count_local(blocks, reading_of(request))
        return reads.Places(True, [_place(block) for block in blocks])

    def _locate_stored(self, request: reads.LocateRanges) -> reads.StoredPlaces:
        places = StoredReads(self._source, maps=self._on_this_host(request.token))
        ranges = [places.parts(read.range, self.located(read), reading_of(read)) for read in request.requests]
        return places.reply(ranges)

    def _open_read(self, request: reads.OpenRead) -> reads.OpenedRead:
        ledger = self._store.ledger(request.name)
        range_, skip = self._store.cursors.left(ledger.snapshot, request)
        # The schema is read after the range, so that the newest schema covers all entries of the range. Reason:
        # a producer registers a schema before it appends the first entry with this schema.
        schema = self._store.get_schema(GetSchema(ledger.name))
        reply = reads.OpenedRead(range_, ledger.incarnation, schema.version, schema.arrow_schema, skip)
        if not self._on_this_host(request.token):
            return msgspec.structs.replace(reply, same_host=False)
        read = reads.ReadRequest(
            ledger.name,
            range_,
            ledger.incarnation,
            token=request.token,
            max_block_bytes=request.max_block_bytes,
            partly=True,
        )
        return msgspec.structs.replace(reply, places=self._locate(read)) if range_ else reply

    def _split(self, request: reads.SplitRequest) -> reads.SplitParts:
        ledger = self._store.ledger(request.name)
        return reads.SplitParts(ledger.split(request.range, request.target_bytes, request.max_parts))

    def _properties(self, request: ledgers.ChangeProperties) -> ledgers.Properties:
        ledger = self._store.ledger(request.name)
        return ledgers.Properties(ledger.name, ledger.change_properties(request.values, request.remove))

    def _restore_schema(self, request: NameLedger) -> SchemaVersion:
        """Delete the newest versions of a schema that no reader can use. An earlier version stored any bytes."""
        name = self._store.get_schema(GetSchema(request.name)).name
        return SchemaVersion(name, *self._store.metadata.restore_schema(name, partial(readable_versions, name)))

    def _open_staging(self, request: OpenStaging) -> StagingPlace:
        if not self._on_this_host(request.token):
            raise Refused("a client on another host requested a staging file", hint="Send the part by DoPut instead")
        return self._store.open_part(request.query, request.batch)

    def _acquire_lease(self, request: cursors.AcquireLease) -> cursors.LeaseReply:
        reply = self._store.cursors.acquire_lease(request)
        if reply.granted:
            self._activity.hold(_lease_key(request), request.ttl_ms)
            ledger = canonical_name(request.ledger)
            position = self._store.cursors.next_position(ledger, request.cursor)
            self._source.follow(ledger, request.cursor, position, request.ttl_ms)
        return reply

    def _release_lease(self, request: cursors.ReleaseLease) -> None:
        self._store.cursors.release_lease(request)
        self._activity.hold(_lease_key(request), 0)
        if not self._store.cursors.is_leased(canonical_name(request.ledger), request.cursor):
            self._source.leave(canonical_name(request.ledger), request.cursor)

    def _follow(self, request: RegisterReader) -> Empty:
        name = self._store.ledger(request.name).name
        if request.ttl_ms:
            self._source.follow(name, request.reader, request.position, request.ttl_ms)
        else:
            self._source.leave(name, request.reader)
        return Empty()

    def _follow_many(self, request: RegisterReaders) -> Empty:
        for reader in request.ledgers:
            with suppress(NotFound):
                self._follow(reader)
        return Empty()

    def _mark_delete(self, request: cursors.MarkDelete) -> reads.PositionReply:
        position = self._store.cursors.mark_delete(request)
        self._source.commit(canonical_name(request.ledger), request.cursor, position)
        return reads.PositionReply(position)

    def _skip(self, request: cursors.SkipEntries) -> cursors.CursorState:
        state = self._store.cursors.skip(request)
        self._source.commit(state.ledger, state.cursor, state.next_position)
        return state

    def _reset(self, request: cursors.ResetCursor) -> cursors.CursorState:
        state = self._store.cursors.reset(request)
        self._source.reset(state.ledger, state.cursor, state.next_position)
        return state

    def _next_delivery(self, request: cursors.NextDelivery) -> cursors.DecidedDelivery:
        """Decide which rows the next batch of a cursor has.

        The cache then expects another read of the entries that are redelivered or written to the dead-letter ledger.
        """
        decided = self._store.deliveries.next(request)
        if decided.back_rows or decided.dead:
            redelivered = self._store.deliveries.redelivered(request, decided)
            self._source.again(canonical_name(request.ledger), request.cursor, redelivered)
        return decided

    def _ack_dead_letters(self, request: cursors.AckDeadLetters) -> None:
        self._store.deliveries.ack_dead_letters(request)
        ledger = canonical_name(request.ledger)
        self._source.commit(ledger, request.cursor, self._store.cursors.next_position(ledger, request.cursor))

    def _delete_cursor(self, request: cursors.NameCursor) -> None:
        self._store.cursors.delete(request)
        self._source.leave(canonical_name(request.ledger), request.cursor)


def reading_of(request: reads.ReadRequest) -> ReaderId:
    return ReaderId(canonical_name(request.name), request.subscription)


def require_incarnation(ledger: ManagedLedger, wanted: str) -> None:
    """Raise DataLoss if the ledger has another incarnation than `wanted`: it was deleted and created again."""
    if wanted and wanted != ledger.incarnation:
        raise DataLoss(
            f"ledger {ledger.name!r} has incarnation {ledger.incarnation}, the request names incarnation {wanted}",
            hint="The ledger was deleted and created again: start with a new checkpoint",
        )


def _acknowledging(method: Callable[[Any], None]) -> Callable[[Any], Empty]:
    """Return a handler that calls a method without a result, and returns an empty reply."""

    def handle(request: Any) -> Empty:
        method(request)
        return Empty()

    return handle


def _lease_key(request: cursors.AcquireLease | cursors.ReleaseLease) -> str:
    return f"{request.ledger}\0{request.cursor}\0{request.holder}"


def _place(block: SegmentBlock) -> reads.BlockPlace:
    return reads.BlockPlace(
        block.ledger_id, block.first_entry, block.entries, str(block.path), block.offset, block.length
    )
