"""Changes of a log other than appends: rollover, trim, offload attempts, termination, properties.

A *rollover* seals the open segment: the segment never changes again, and the next append creates a new segment. A
*trim* deletes segments that the policies of retention do not keep. An *attempt* is one upload of a sealed segment to
object storage. A *direct segment* is a segment whose data object a Spark task has put into the bucket. Its *index
objects* state where the entries are in the data object. *Termination* closes the log for appends for good.

Invariants
- Each change runs in the write stage (`ledger.log.append_queue`) while no append waits for its sync. Exception: the
  changes for offloads do not wait for syncs, because they concern sealed segments only.
- Each change is durable in the ledger's metadata record before readers see the change.
- A repeated change has no further effect.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping

from pyspark_ledger.ledger.log.context import LogContext
from pyspark_ledger.ledger.log.retention import RetainedSegment, expendable, local_expendable
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import TrimReply
from pyspark_ledger.ledger.tiering.offloader import LocalSegment

_log = logging.getLogger(__name__)


def is_due(writer: LogWriter, context: LogContext) -> bool:
    """Return whether the open segment has an entry and has reached its maximum age. Any thread may call this."""
    log = writer.opened
    if log is None or not log.index.count:
        return False
    return writer.list.policy.is_due(log.ledger_id, log.age(context.clock()))


def roll_over_if_due(writer: LogWriter, context: LogContext) -> bool:
    """Seal the open segment if `is_due`. Return whether it was sealed."""
    if not is_due(writer, context):
        return False
    writer.seal()
    return True


def roll_over(writer: LogWriter, context: LogContext, older_than_ms: int) -> bool:
    """Seal the open segment if it has an entry and is at least `older_than_ms` old. Return whether it was sealed."""
    log = writer.opened
    if log is None or not log.index.count or log.age(context.clock()) < older_than_ms:
        return False
    writer.seal()
    return True


def may_trim(snapshot: LogSnapshot, writer: LogWriter, context: LogContext) -> bool:
    """Return whether the policies allow the deletion of a segment or of a local copy. Any thread may call this."""
    slowest = context.metadata.cursors.slowest(snapshot.name)
    copies = map(_retained, writer.list.local_copies())
    policy, now = writer.list.policy, context.clock()
    return bool(_expendable(snapshot, slowest, writer, context) or local_expendable(copies, policy, now))


def trim(writer: LogWriter, context: LogContext) -> TrimReply:
    """Remove from the list all segments that retention does not keep. The caller deletes their files.

    Also removes the local copies of segments that were offloaded longer ago than the policy's deletion lag.
    """
    snapshot = writer.list.snapshot(writer.opened)
    # Keep all chunks of an unfinished message, and of a message of which the slowest cursor has read only some chunks.
    needed = context.metadata.cursors.slowest(snapshot.name)
    unread = context.chunks.floor(snapshot, snapshot.end if needed is None else needed, context.clock())
    slowest = unread if needed is not None or unread < snapshot.end else None
    trimmed = _expendable(snapshot, slowest, writer, context)
    ids = [segment.ledger_id for segment in trimmed]
    if ids:
        writer.list.trim(ids)
        writer.publish()
        _log.info("%s: segments %s are trimmed", snapshot.name, ids)
    local = local_expendable(map(_retained, writer.list.local_copies()), writer.list.policy, context.clock())
    if local:
        writer.list.delete_local(local)
        writer.publish()
        _log.info("%s: the local copies of segments %s are deleted", snapshot.name, local)
    start = writer.list.snapshot(writer.opened).start
    entries, size = sum(segment.entries for segment in trimmed), sum(segment.size_bytes for segment in trimmed)
    return TrimReply(snapshot.name, ids, entries, size, start, local)


def prepare_offload(writer: LogWriter, ledger_id: int, attempt: OffloadAttempt) -> LocalSegment | None:
    """Record a new attempt to offload a sealed segment, and return the segment.

    Returns None if the segment is already offloaded.
    """
    return writer.list.prepare_offload(ledger_id, attempt)


def complete_offload(writer: LogWriter, ledger_id: int, attempt: uuid.UUID) -> None:
    """Record that an offload attempt is complete."""
    writer.list.complete_offload(ledger_id, attempt)
    writer.publish()


def lacking_indexes(writer: LogWriter) -> list[tuple[LocalSegment, OffloadAttempt]]:
    """Return the direct segments whose index objects must be put into the bucket now, in order, with their attempts."""
    return writer.list.lacking_indexes()


def complete_indexes(writer: LogWriter, ledger_ids: Collection[int]) -> None:
    """Record that the index objects of direct segments are in the bucket."""
    writer.list.complete_indexes(ledger_ids)


def terminate(writer: LogWriter) -> Position:
    """Seal the open segment and terminate the log. Return the position of the last entry."""
    last = writer.list.terminated
    if last is None:
        writer.seal()
        end = writer.list.snapshot(None).end
        last = Position(end.ledger_id, end.entry_id - 1)
        writer.list.terminate(last)
        writer.publish()
    return last


def change_properties(writer: LogWriter, values: Mapping[str, str], remove: Collection[str]) -> dict[str, str]:
    """Set and remove properties of the ledger. Return all properties."""
    remaining = {name: value for name, value in writer.list.properties.items() if name not in remove}
    writer.list.set_properties({**remaining, **values})
    writer.list.refresh_policy()
    return writer.list.properties


def _expendable(
    snapshot: LogSnapshot, slowest: Position | None, writer: LogWriter, context: LogContext
) -> list[RetainedSegment]:
    segments = snapshot.segments
    size_bytes = segments.size_bytes(0, len(segments))
    return expendable(map(_retained, segments), size_bytes, slowest, writer.list.policy, context.clock())


def _retained(segment: LogSegment) -> RetainedSegment:
    attempt = None if segment.offloaded is None else segment.offloaded.attempt
    return RetainedSegment(segment.ledger_id, segment.entries, segment.size_bytes, segment.close_ms, attempt)
