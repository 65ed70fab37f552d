"""Changes of a log itself, beside its entries: a rollover by age, a trim, its end, its properties.

Invariants: each is made in the writing turn with nothing in flight, so that no append races with it; each is one change
of the record, durable before readers see it; made again, it changes nothing more.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping

from pyspark_ledger.ledger.log.log_segments import LogSegment
from pyspark_ledger.ledger.log.retention import RetainedSegment, expendable, local_expendable
from pyspark_ledger.ledger.log.segment_list import LogContext
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import TrimReply
from pyspark_ledger.ledger.tiering.offloader import LocalSegment

_log = logging.getLogger(__name__)


def is_due(writer: LogWriter, context: LogContext) -> bool:
    """Whether the open ledger holds an entry and has come of age. May be asked by any thread."""
    log = writer.opened
    if log is None or not log.index.count:
        return False
    return writer.list.policy.is_due(log.ledger_id, log.age(context.clock()))


def roll_over_if_due(writer: LogWriter, context: LogContext) -> bool:
    """Seal the open ledger if it is due; the next append opens another."""
    if not is_due(writer, context):
        return False
    writer.seal()
    return True


def roll_over(writer: LogWriter, context: LogContext, older_than_ms: int) -> bool:
    """Seal the open ledger if it holds an entry and is at least so old; the next append opens another."""
    log = writer.opened
    if log is None or not log.index.count or log.age(context.clock()) < older_than_ms:
        return False
    writer.seal()
    return True


def may_trim(snapshot: LogSnapshot, writer: LogWriter, context: LogContext) -> bool:
    """Whether retention lets anything go. May be asked by any thread."""
    slowest = context.metadata.cursors.slowest(snapshot.name)
    copies = map(_held, writer.list.local_copies())
    policy, now = writer.list.policy, context.clock()
    return bool(_expendable(snapshot, slowest, writer, context) or local_expendable(copies, policy, now))


def trim(writer: LogWriter, context: LogContext) -> TrimReply:
    """Take what retention lets go off the list: its files are nobody's any more."""
    snapshot = writer.list.snapshot(writer.opened)
    # No message is left without its first chunk: not one that a cursor stands in, nor one that is still to be finished.
    needed = context.metadata.cursors.slowest(snapshot.name)
    unread = context.chunks.floor(snapshot, snapshot.end if needed is None else needed, context.clock())
    slowest = unread if needed is not None or unread < snapshot.end else None
    gone = _expendable(snapshot, slowest, writer, context)
    ids = [ledger.ledger_id for ledger in gone]
    if ids:
        writer.list.trim(ids)
        writer.publish()
        _log.info("%s: ledgers %s are trimmed", snapshot.name, ids)
    local = local_expendable(map(_held, writer.list.local_copies()), writer.list.policy, context.clock())
    if local:
        writer.list.delete_local(local)
        writer.publish()
        _log.info("%s: the local copies of ledgers %s are deleted", snapshot.name, local)
    start = writer.list.snapshot(writer.opened).start
    entries, size = sum(ledger.entries for ledger in gone), sum(ledger.size_bytes for ledger in gone)
    return TrimReply(snapshot.name, ids, entries, size, start, local)


def prepare_offload(writer: LogWriter, ledger_id: int, attempt: OffloadAttempt) -> LocalSegment | None:
    """State a new attempt to offload a sealed ledger; None when it is offloaded."""
    return writer.list.prepare_offload(ledger_id, attempt)


def complete_offload(writer: LogWriter, ledger_id: int, attempt: uuid.UUID) -> None:
    """State that an attempt is complete."""
    writer.list.complete_offload(ledger_id, attempt)
    writer.publish()


def terminate(writer: LogWriter) -> Position:
    """Seal the open ledger and end the log; the position of the last entry it will ever have."""
    last = writer.list.terminated
    if last is None:
        writer.seal()
        end = writer.list.snapshot(None).end
        last = Position(end.ledger_id, end.entry_id - 1)
        writer.list.terminate(last)
        writer.publish()
    return last


def change_properties(writer: LogWriter, values: Mapping[str, str], remove: Collection[str]) -> dict[str, str]:
    """Set and remove properties of the record."""
    kept = {name: value for name, value in writer.list.properties.items() if name not in remove}
    writer.list.set_properties({**kept, **values})
    writer.list.refresh_policy()
    return writer.list.properties


def _expendable(
    snapshot: LogSnapshot, slowest: Position | None, writer: LogWriter, context: LogContext
) -> list[RetainedSegment]:
    segments = snapshot.segments
    size_bytes = segments.size_bytes(0, len(segments))
    return expendable(map(_held, segments), size_bytes, slowest, writer.list.policy, context.clock())


def _held(part: LogSegment) -> RetainedSegment:
    attempt = None if part.offloaded is None else part.offloaded.attempt
    return RetainedSegment(part.ledger_id, part.entries, part.size_bytes, part.close_ms, attempt)
