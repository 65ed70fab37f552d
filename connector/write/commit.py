"""Exactly-once sink: tasks stage rows, and one commit makes all rows of a batch visible, in one ledger or in several.

A *run* is the entries of one batch in one ledger. Readers see all of them or none. The *incarnation* of a ledger is an
id that changes when the ledger is deleted and created again.

    task      rows → entries, each with the run's id → staged parts, one for each ledger → message
    driver    messages of one batch → CommitRun, or CommitRuns for several ledgers → the broker appends the parts

Invariants
- The query, Spark's run of the query and the batch determine the run's id. So all tasks of a batch agree on it, and no
  later batch has the same id. The id says nothing about repetitions.
- The options `txnAppId` and `txnVersion` name a write. Such a write counts as batch `txnVersion` of a query with the
  name `txnAppId`. Its version is recorded even if it has no rows.
- Spark may repeat a commit after a failure, and this module repeats it while the broker restarts. A repeated commit
  appends nothing.
- The message of a task contains the query, because Spark does not pass the query to `commit`. If the messages of two
  tasks disagree, the commit is refused. The error names the two values.
- A failed task leaves a staged part that no commit names. The broker deletes the part later.

Rules for repeated batches
- Only the broker decides, at the commit (`ledger.log.segments.repeated_batches`). It gets the evidence of what the
  batch has read: offsets from the checkpoint (`connector.write.checkpoint`), or else sums over the rows
  (`connector.write.row_sums`).
- If the offsets can be read, a task may ask the broker for the newest batch. If the task's batch is not above it, the
  task consumes no rows, and stages none. In all other cases a task stages its rows.
- For a named write the driver asks the broker once whether the batch is a repetition.
- In a streaming write only the tasks know the query, so the tasks ask the broker. A Python worker asks before it stages
  its first batch of a query. Later it asks only if a batch's number is not higher than the number of its last batch.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_ledger.connector.connection import DRIVER_DEADLINE_MS, DriverConnection
from pyspark_ledger.connector.task_client import require_release, task_client
from pyspark_ledger.connector.triggers import running_run, running_trigger
from pyspark_ledger.connector.write.checkpoint import Checkpoint
from pyspark_ledger.connector.write.row_sums import RowSums, added, sums_text
from pyspark_ledger.connector.write.staging import StagingTask, staged_parts
from pyspark_ledger.connector.write.target import SinkTarget
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import bucket_of
from pyspark_ledger.ledger.logs.batch import BatchId, in_batch
from pyspark_ledger.ledger.logs.json_lines import log_connector_by
from pyspark_ledger.ledger.logs.steps import Figure, log_step, timed_step
from pyspark_ledger.ledger.message.run_marker import NAMED_WRITE, RunId, query_run
from pyspark_ledger.ledger.protocol.commits import (
    AbortRun,
    AskNewestBatch,
    BatchOrigin,
    CommitRun,
    CommitRuns,
    CommittedRun,
    CommittedRuns,
    LedgerParts,
    RepeatedBatches,
    StagedPart,
)
from pyspark_ledger.ledger.protocol.request import Ask

if TYPE_CHECKING:
    from pyspark_ledger.connector.write.target import SinkTarget
    from pyspark_ledger.ledger.client.client import Client


_log = logging.getLogger(__name__)
_staged: dict[tuple[str, str], int] = {}
_UNKNOWN = Checkpoint("")


def is_repetition(ask: Ask, target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a batch is committed in all of its ledgers."""
    named = target.named
    request = (
        AskNewestBatch("" if named is None else named.name, query, several=True)
        if target.several or named is None
        else AskNewestBatch(named.name, query, named.incarnation)
    )
    return batch <= ask(request).batch


def is_repeated_task(ask: Ask, target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a streaming batch is a repetition. Asks the broker only if this is possible."""
    key = target.store_id, query
    last = _staged.get(key)
    if last is not None and batch > last:
        _staged[key] = batch
        return False
    if is_repetition(ask, target, query, batch):
        return True
    _staged[key] = batch
    return False


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """Message of a task to the committer, with the task's staged parts. A task without rows has no parts."""

    query: str
    batch: int
    store_id: str
    version: str
    staged: tuple[LedgerParts, ...]
    trigger: str = field(default="", kw_only=True)
    """`QUERY:BATCH` as Spark names the task's trigger, for logs; empty outside of a streaming query."""
    repeated: bool = False
    """Whether the task found that the batch is a repetition, and consumed no rows."""
    run: RunId | None = field(default=None, kw_only=True)
    """Id of the batch's run, which the task has written into its parts; None if the task has staged none."""
    sums: tuple[int, ...] = field(default=(), kw_only=True)
    """Sums over the task's rows; empty if the offsets of the batch decide."""

    @property
    def parts(self) -> list[StagedPart]:
        return [part for ledger in self.staged for part in ledger.parts]


@dataclass(frozen=True, slots=True)
class BatchEvidence:
    """Evidence that the driver has of a batch, and the value of option `repeatedBatches`.

    `query` is set if the driver knows the query without the tasks' messages, as in a batch write. `named` is set for a
    write whose number is a version that its writer has chosen.
    """

    checkpoint: Checkpoint = _UNKNOWN
    repeated: RepeatedBatches = "refuse"
    query: str = ""
    named: bool = False

    def origin(self, query: str, batch: int, messages: Sequence[PartMessage]) -> BatchOrigin:
        """Return the evidence for the broker. It has the offsets of the batch and of the batch before."""
        offsets: dict[int, str] = {}
        if self.checkpoint.query() == query:
            offsets = {number: self.checkpoint.offsets(number) for number in (batch, batch - 1)}
        if not offsets.get(batch):
            offsets = {}
        staged = not any(message.repeated for message in messages)
        sums: Sequence[int] = ()
        for message in messages if staged else ():
            sums = added(sums, message.sums)
        return BatchOrigin(offsets, sums_text(sums), self.repeated, staged, self.named)


def run_of(query: str, batch: int, spark_run: str = "") -> RunId:
    """Return the id of the run for a query's batch. `spark_run` is Spark's id of the running streaming query.

    The id is equal in every task of the batch. Both numbers are unsigned 64 bits.
    """
    if not spark_run:
        return query_run(query, batch)
    run = int.from_bytes(hashlib.blake2b(spark_run.encode(), digest_size=4).digest(), "big")
    return query_run(query, run << 32 | batch & 0xFFFF_FFFF)


def application_query(target: SinkTarget, app_id: str) -> str:
    """Return the query name of all writes with this `txnAppId` to this ledger.

    The name contains the ledger's incarnation. So batches that were written to a deleted ledger do not count as written
    to a ledger that was created again under the same name.
    """
    named = target.named
    where = "*" if named is None else f"{named.name}@{named.incarnation}"
    return f"{NAMED_WRITE}{where}:{'several' if target.several else 'one'}:{app_id}"


def running_task() -> int:
    """Return the number of the running task, 0 outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def sink_client(target: SinkTarget) -> Client:
    """Return the client of a task that writes. Raises Unsupported if the driver has another release."""
    require_release(target.release)
    bucket = bucket_of(Path(target.location))
    return task_client(target.address, target.store_id, target.task_credentials, bucket)


def stage_rows(
    target: SinkTarget,
    version: str,
    query: str,
    batch: int,
    rows: Iterable[pa.RecordBatch],
    task: int = 0,
    *,
    summed: bool = False,
) -> PartMessage:
    """Write the rows of one task to staged parts, and return the message to the committer.

    If `summed` is set, the message has sums over the rows.
    """
    log_connector_by()
    trigger = running_trigger()
    run, sums = run_of(query, batch, running_run() if trigger else ""), RowSums()
    with in_batch(BatchId.of_write(query, batch, trigger)), timed_step("stage", task=task) as figures:
        client = sink_client(target)
        counted = sums.counted(rows) if summed else rows
        staged = staged_parts(client, target, StagingTask(query, batch, run, task), counted)
        message = PartMessage(
            query, batch, target.store_id, version, tuple(staged), trigger=trigger, run=run, sums=sums.sums
        )
        figures.update(_sums(message.parts))
    return message


def _sums(parts: Sequence[StagedPart]) -> dict[str, Figure]:
    """Return the number, entries, rows and bytes of all parts, and of the parts that tasks put into a bucket."""
    direct = [part.length for part in parts if part.object is not None]
    return {
        "parts": len(parts),
        "entries": sum(part.entries for part in parts),
        "rows": sum(part.rows for part in parts),
        "bytes": sum(part.length for part in parts),
        "direct_parts": len(direct),
        "direct_bytes": sum(direct),
    }


def nothing_staged(target: SinkTarget, version: str, query: str, batch: int) -> PartMessage:
    log_connector_by()
    trigger = running_trigger()
    with in_batch(BatchId.of_write(query, batch, trigger)):
        log_step("stage", repeated=True)
    return PartMessage(query, batch, target.store_id, version, (), trigger=trigger, repeated=True)


def is_written(target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a batch is committed. Called on the driver."""
    connection = _connection(target)
    return is_repetition(connection.ask, target, query, batch)


def commit_parts(
    target: SinkTarget,
    version: str,
    messages: Sequence[PartMessage | None],
    batch: int,
    evidence: BatchEvidence = BatchEvidence(),
    *,
    once: bool = False,
) -> CommittedRun | CommittedRuns | None:
    """Append the staged parts of a batch exactly once, in the order of tasks. Returns None if there is no part.

    `once` means that the query has only this batch.
    """
    agreed = _agreed(target, version, messages, batch)
    log_connector_by()
    first = agreed[0] if agreed else None
    identity = None if first is None else BatchId.of_write(first.query, batch, first.trigger)
    with in_batch(identity), timed_step("commit") as figures:
        figures.update(_sums([part for message in agreed for part in message.parts]))
        return _commit(target, agreed, batch, evidence, once=once)


def _commit(
    target: SinkTarget, agreed: Sequence[PartMessage], batch: int, evidence: BatchEvidence, *, once: bool
) -> CommittedRun | CommittedRuns | None:
    staged = _by_ledger(agreed)
    if not (staged or evidence.named or any(message.repeated for message in agreed)):
        return None
    query = evidence.query or agreed[0].query
    origin = evidence.origin(query, batch, agreed)
    run = next((message.run for message in agreed if message.run is not None), run_of(query, batch))
    connection = _connection(target, deadline_ms=target.commit_timeout_ms)
    while True:
        answer = _send(connection, target, _Run(query, batch, run, once), staged, origin)
        if answer.warning:
            _log.warning("%s", answer.warning)
        if answer.asked < 0:
            return answer
        known = {**origin.offsets, answer.asked: evidence.checkpoint.offsets(answer.asked)}
        origin = msgspec.structs.replace(origin, offsets=known)


class _Run(NamedTuple):
    query: str
    batch: int
    id: RunId
    once: bool


def _send(
    connection: DriverConnection, target: SinkTarget, run: _Run, staged: list[LedgerParts], origin: BatchOrigin
) -> CommittedRun | CommittedRuns:
    query, batch, (most, least), once = run.query, run.batch, (run.id.most, run.id.least), run.once
    if target.several or target.named is None:
        return connection.ask(CommitRuns(query, batch, most, least, staged, once, origin))
    parts = [part for ledger in staged for part in ledger.parts]
    return connection.ask(CommitRun(target.named.name, query, batch, most, least, parts, once, origin))


def abort_parts(target: SinkTarget, messages: Sequence[PartMessage | None], batch: int) -> None:
    """Delete the staged parts of the tasks. Messages of failed tasks are None.

    This function does not delete data objects in the bucket. The broker deletes them after a later commit, or at the
    age at which it deletes staged parts.
    """
    existing = [message for message in messages if message is not None]
    parts = [part.part for message in existing for part in message.parts if part.object is None]
    if parts:
        connection = _connection(target)
        connection.ask(AbortRun(existing[0].query, batch, parts))


def _by_ledger(messages: Sequence[PartMessage]) -> list[LedgerParts]:
    """Return all parts of each ledger, in the order of the tasks."""
    parts: dict[str, list[StagedPart]] = {}
    for message in messages:
        for staged in message.staged:
            parts.setdefault(staged.ledger, []).extend(staged.parts)
    return [LedgerParts(name, ledger_parts) for name, ledger_parts in parts.items()]


def _connection(target: SinkTarget, *, deadline_ms: int = DRIVER_DEADLINE_MS) -> DriverConnection:
    return DriverConnection(target.location, deadline_ms=deadline_ms, credentials=target.credentials)


def _agreed(target: SinkTarget, version: str, messages: Sequence[PartMessage | None], batch: int) -> list[PartMessage]:
    """Return the messages of all tasks. Raises Refused if a message is missing or two messages disagree."""
    existing = [message for message in messages if message is not None]
    if len(existing) != len(messages):
        raise Refused(f"batch {batch}: {len(messages) - len(existing)} of {len(messages)} tasks sent no message")
    for message in existing:
        for what, found, wanted in (
            ("query", message.query, existing[0].query),
            ("batch", message.batch, batch),
            ("store", message.store_id, target.store_id),
            ("version of pyspark-ledger", message.version, version),
            ("run", message.run or existing[0].run, existing[0].run or message.run),
        ):
            if found != wanted:
                raise Refused(
                    f"batch {batch} of {target.ledger}: a task wrote for {what} {found!r}, the commit is of {wanted!r}",
                    hint="Use the same version of the package and the same store on driver and executors",
                )
    return existing
