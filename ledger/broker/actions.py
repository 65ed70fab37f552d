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

from pyspark_ledger.ledger.broker.context import BrokerContext
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.broker.reads.stored_reads import StoredReads
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.message.schema.registration import readable_versions
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol import cursors, ledgers, reads
from pyspark_ledger.ledger.protocol.actions import (
    AskEnd,
    AskHealth,
    AskSchemas,
    AskSettings,
    ChangePartitions,
    CreateLedger,
    DeleteLedger,
    DescribeLedger,
    GetSchema,
    Health,
    LedgerDescription,
    LedgerNames,
    ListLedgers,
    RegisterSchema,
    RestoreSchema,
    SchemaVersion,
)
from pyspark_ledger.ledger.protocol.cache import AskCache, AskCacheReads, RegisterReader, RegisterReaders
from pyspark_ledger.ledger.protocol.commits import (
    AbortRun,
    AskNewestBatch,
    CommitRun,
    CommitRuns,
    OpenStaging,
    OpenUpload,
    StagingPlace,
)
from pyspark_ledger.ledger.protocol.ends import WaitEnds
from pyspark_ledger.ledger.protocol.metrics import AskMetrics, ReportPublished
from pyspark_ledger.ledger.protocol.request import Empty, Request
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.store.batch_status import BatchStatus

_SETTLE_MS = 30_000


class Actions:
    """The handlers of one broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._store, self._source, self._settings = broker.store, broker.cache, broker.settings

    def table(self) -> dict[type[Request[Any]], Callable[[Any], msgspec.Struct]]:
        """Return the handler of each class of requests.

        The server itself handles `Hello`, `StopBroker` and `ChangeSetting`.
        """
        store, durable, batch_status = self._store, self._store.cursors, BatchStatus(self._store, system_clock_ms)
        return {
            CreateLedger: self._create,
            DescribeLedger: lambda request: store.describe(request.name, lists=request.lists),
            DeleteLedger: self._delete,
            ledgers.AskSequence: lambda request: ledgers.LastSequence(
                store.ledger(request.ledger).last_sequence_id(request.producer, _SETTLE_MS)
            ),
            ledgers.AskPartitions: lambda request: ledgers.PartitionCount(
                store.partitions.count(canonical_name(request.name))
            ),
            ChangePartitions: self._extend,
            ledgers.TrimLedger: lambda request: store.ledger(request.name).trim(),
            ledgers.TerminateLedger: lambda request: reads.PositionReply(store.ledger(request.name).terminate()),
            ledgers.SealLedger: lambda request: ledgers.SealReply(
                request.name, store.ledger(request.name).roll_over(request.older_than_ms)
            ),
            ledgers.ChangeProperties: self._properties,
            ledgers.ChangePolicy: store.policies.change,
            ledgers.OffloadPrefix: store.offloads.offload,
            ledgers.AskOffload: lambda request: store.offloads.status(request.name),
            ListLedgers: lambda _: LedgerNames(store.names()),
            AskEnd: lambda request: store.ledger(request.name).end(request.since),
            WaitEnds: self._broker.waits.wait,
            GetSchema: store.get_schema,
            RegisterSchema: store.register_schema,
            RestoreSchema: self._restore_schema,
            reads.OpenRead: self._open_read,
            reads.ReadRequest: self._locate,
            reads.SplitRequest: self._split,
            reads.SeekTime: lambda request: reads.PositionReply(
                store.ledger(request.name).seek_time(request.timestamp_ms)
            ),
            reads.AskLogStatuses: batch_status.statuses,
            reads.AskLimitedRanges: batch_status.limit,
            reads.SplitRanges: batch_status.split,
            reads.LocateRanges: lambda request: batch_status.locate(request, self._locate),
            reads.LocateStored: self._locate_stored,
            AskSchemas: batch_status.schemas,
            cursors.OpenCursor: durable.open,
            cursors.OpenCursors: durable.open_all,
            cursors.DescribeCursor: durable.describe,
            cursors.MarkDelete: self._mark_delete,
            cursors.ResetCursor: self._reset,
            cursors.SkipEntries: self._skip,
            cursors.CursorProperties: durable.change_properties,
            cursors.AskAckedRanges: durable.acked_ranges,
            cursors.NextDelivery: self._next_delivery,
            cursors.AckDelivery: self._ack_delivery,
            cursors.AskDue: store.deliveries.due,
            cursors.AskDelivery: store.deliveries.get,
            cursors.AskDeliveries: lambda request: cursors.Deliveries(
                [store.deliveries.get(asked) for asked in request.requests]
            ),
            cursors.AckDeadLetters: _acknowledging(self._ack_dead_letters),
            cursors.DeleteCursor: _acknowledging(self._delete_cursor),
            cursors.AcquireLease: self._acquire_lease,
            cursors.ReleaseLease: _acknowledging(self._release_lease),
            cursors.AcquireLeases: self._acquire_leases,
            cursors.ReleaseLeases: _acknowledging(self._release_leases),
            OpenStaging: self._open_staging,
            OpenUpload: store.commits.open_upload,
            CommitRun: store.commits.commit,
            CommitRuns: store.commits.commit_several,
            AskNewestBatch: store.commits.newest_batch,
            AbortRun: _acknowledging(store.commits.abort),
            AskCache: lambda _: self._source.metrics(),
            AskCacheReads: lambda _: self._source.sums.now(),
            RegisterReader: self._follow,
            RegisterReaders: self._follow_many,
            reads.PrefetchRequest: self._source.prefetch,
            AskHealth: self._health,
            AskMetrics: self._broker.metrics.collect,
            ReportPublished: self._broker.metrics.report_published,
            AskSettings: lambda _: self._settings.describe(),
        }

    def _health(self, _: AskHealth) -> Health:
        errors, count = self._broker.errors.newest()
        return Health({name: str(error) for name, error in self._store.given_up().items()}, errors, count)

    def located(self, request: reads.ReadRequest) -> list[SegmentBlock]:
        """Return the blocks of a range.

        Raises DataLoss if the ledger was deleted and created again since the range was planned.
        """
        ledger = self._store.ledger(request.name)
        require_incarnation(ledger, request.incarnation)
        return ledger.blocks(request.range, request.max_block_bytes)

    def _on_this_host(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._broker.token.encode())

    def _create(self, request: CreateLedger) -> LedgerDescription:
        if request.partitions:
            return self._store.create_partitioned(request)
        return self._store.describe(self._store.create_ledger(request).name, lists=request.lists)

    def _delete(self, request: DeleteLedger) -> Empty:
        self._store.delete_ledger(request.name)
        self._source.drop(canonical_name(request.name))
        self._broker.waits.all_changed()
        return Empty()

    def _extend(self, request: ChangePartitions) -> LedgerDescription:
        described = self._store.extend_partitioned(request)
        self._broker.waits.all_changed()
        return described

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

    def _locate_stored(self, request: reads.LocateStored) -> reads.StoredPlaces:
        places = StoredReads(self._source, maps=self._on_this_host(request.token))
        ranges = [places.parts(read.range, self.located(read), reading_of(read)) for read in request.requests]
        return places.reply(ranges)

    def _open_read(self, request: reads.OpenRead) -> reads.OpenedRead:
        ledger = self._store.ledger(request.name)
        require_incarnation(ledger, request.incarnation)
        snapshot = ledger.snapshot
        range_, skip = self._store.cursors.left(snapshot, request)
        part = ledger.limited(range_, request.limits) if request.limits else None
        # The schema is read after the range, so that the newest schema covers all entries of the range. Reason:
        # a producer registers a schema before it appends the first entry with this schema.
        schema = self._store.get_schema(GetSchema(ledger.name))
        reply = reads.OpenedRead(range_, ledger.incarnation, schema.version, schema.arrow_schema, skip)
        if part is not None:
            range_, reply = part.range, reads.limited(reply, part, snapshot.end, terminated=snapshot.terminated)
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
        located = range_ and (part is None or part.rows)
        return msgspec.structs.replace(reply, places=self._locate(read)) if located else reply

    def _split(self, request: reads.SplitRequest) -> reads.SplitParts:
        ledger = self._store.ledger(request.name)
        return reads.SplitParts(ledger.split(request.range, request.target_bytes, request.max_parts))

    def _properties(self, request: ledgers.ChangeProperties) -> ledgers.Properties:
        ledger = self._store.ledger(request.name)
        return ledgers.Properties(ledger.name, ledger.change_properties(request.values, request.remove))

    def _restore_schema(self, request: RestoreSchema) -> SchemaVersion:
        """Delete the newest versions of a schema that no reader can use. An earlier version stored any bytes."""
        name = self._store.get_schema(GetSchema(request.name)).name
        return SchemaVersion(name, *self._store.metadata.restore_schema(name, partial(readable_versions, name)))

    def _open_staging(self, request: OpenStaging) -> StagingPlace:
        if not self._on_this_host(request.token):
            raise Refused("a client on another host requested a staging file", hint="Send the part by DoPut instead")
        return self._store.commits.open_part(request.query, request.batch)

    def _acquire_lease(self, request: cursors.AcquireLease) -> cursors.LeaseReply:
        reply = self._store.leases.acquire(request)
        if reply.granted:
            self._register_lease(request)
        return reply

    def _acquire_leases(self, request: cursors.AcquireLeases) -> cursors.LeaseReplies:
        replies = self._store.leases.acquire_all(request.leases)
        taken = all(reply.granted or lease.renews for lease, reply in zip(request.leases, replies, strict=True))
        for lease, reply in zip(request.leases, replies, strict=True):
            if taken and reply.granted:
                with suppress(LedgerError):  # the loop's next request raises the error of this ledger
                    self._register_lease(lease)
        return cursors.LeaseReplies(replies)

    def _register_lease(self, request: cursors.AcquireLease) -> None:
        self._broker.activity.hold(_lease_key(request), request.ttl_ms)
        ledger = canonical_name(request.ledger)
        position = self._store.cursors.next_position(ledger, request.cursor)
        self._source.follow(ledger, request.cursor, position, request.ttl_ms)

    def _release_lease(self, request: cursors.ReleaseLease) -> None:
        self._store.leases.release(request)
        self._unregister_lease(request)

    def _release_leases(self, request: cursors.ReleaseLeases) -> None:
        self._store.leases.release_all(request.leases)
        for lease in request.leases:
            self._unregister_lease(lease)

    def _unregister_lease(self, request: cursors.ReleaseLease) -> None:
        self._broker.activity.hold(_lease_key(request), 0)
        if not self._store.leases.is_held(canonical_name(request.ledger), request.cursor):
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
        if request.done:
            position = self._store.cursors.next_position(canonical_name(request.ledger), request.cursor)
            self._source.commit(canonical_name(request.ledger), request.cursor, position)
        if decided.back_rows or decided.dead:
            redelivered = self._store.deliveries.redelivered(request, decided)
            self._source.again(canonical_name(request.ledger), request.cursor, redelivered)
        if decided.ahead is None:
            return decided
        ahead = reads.OpenRead(request.ledger, decided.ahead.start, decided.ahead.end, token=request.token)
        with suppress(LedgerError):  # the read of the next batch raises the error
            return msgspec.structs.replace(decided, opened=self._open_read(ahead))
        return decided

    def _ack_delivery(self, request: cursors.AckDelivery) -> reads.PositionReply:
        position = self._store.deliveries.acknowledge(request)
        self._source.commit(canonical_name(request.ledger), request.cursor, position)
        return reads.PositionReply(position)

    def _ack_dead_letters(self, request: cursors.AckDeadLetters) -> None:
        self._store.deliveries.ack_dead_letters(request)
        ledger = canonical_name(request.ledger)
        self._source.commit(ledger, request.cursor, self._store.cursors.next_position(ledger, request.cursor))

    def _delete_cursor(self, request: cursors.DeleteCursor) -> None:
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
