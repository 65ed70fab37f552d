"""Exactly-once sink: tasks stage rows, invisible to readers; one commit makes them visible, in one ledger or in
several.

    task      rows → entries, each with the run's id → staged parts, one for each ledger → message
    driver    messages of one batch → CommitRun, or CommitRuns for several ledgers → the broker appends the parts

Invariants
- The query and the batch alone determine the run's id. A batch that any process repeats is the same run, and the broker
  appends it once.
- A write with `txnAppId` and `txnVersion` is batch `txnVersion` of a query that they name. A version that is not above
  the newest is a repetition, and its staged parts are deleted. A task that knows of it pulls no rows; such a batch is
  never committed, because its rows are in no part.
- Spark may repeat a commit after a failure, and this module does so while the broker restarts. Both are harmless.
- The messages carry the query, because the committer has none. Messages that disagree are refused, naming both.
- A failed task leaves a part that no commit names. The broker sweeps it.

Tasks of a batch that the log has already pull no rows, and its commit appends nothing.
- A batch that is not above the newest of its query is a repetition, as for the broker's commit. Batches stay in the log
  as long as the ledger lives, so a repetition stays one.
- For a named write the driver asks once. A streaming write learns its query in its tasks. A process of tasks asks
  before it stages the first batch of a query. It asks again for a batch that is not above its last staged one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_ledger.connector.connection import DRIVER_DEADLINE_MS, DriverConnection
from pyspark_ledger.connector.task_client import require_release, task_client
from pyspark_ledger.connector.write.staging import StagingTask, staged_parts
from pyspark_ledger.connector.write.target import SinkTarget
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.message.run_marker import RunId
from pyspark_ledger.ledger.protocol.commits import (
    AbortRun,
    AskNewestBatch,
    CommitRun,
    CommitRuns,
    CommittedRun,
    CommittedRuns,
    LedgerParts,
    NewestBatch,
    StagedPart,
)

if TYPE_CHECKING:
    from pyspark_ledger.connector.write.target import SinkTarget
    from pyspark_ledger.ledger.client.client import Client


Ask = Callable[[str, AskNewestBatch], NewestBatch]
_staged: dict[tuple[str, str], int] = {}


def is_repetition(ask: Ask, target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a batch is in all of its ledgers."""
    named = target.named
    request = (
        AskNewestBatch("" if named is None else named.name, query, several=True)
        if target.several or named is None
        else AskNewestBatch(named.name, query, named.incarnation)
    )
    return batch <= ask("run.newest", request).batch


def is_repeated_task(ask: Ask, target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a task of a streaming batch has nothing to do; asks the broker only if that is likely."""
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
    """Message of a task to the committer: its staged parts by ledger; none for a task without rows."""

    query: str
    batch: int
    store_id: str
    version: str
    staged: tuple[LedgerParts, ...]
    repeated: bool = False
    """The batch was in the log before the task began, and the task pulled no rows."""

    @property
    def parts(self) -> list[StagedPart]:
        return [part for ledger in self.staged for part in ledger.parts]


def run_of(query: str, batch: int) -> RunId:
    """Return the run of a query's batch: the same in every process, both halves unsigned, 64 bits."""
    return RunId(int.from_bytes(hashlib.blake2b(query.encode(), digest_size=8).digest(), "big"), batch)


def application_query(target: SinkTarget, app_id: str) -> str:
    """Return the query of all writes with this `txnAppId`, for each incarnation of a ledger.

    A ledger that was deleted and created again has none of them.
    """
    named = target.named
    where = "*" if named is None else f"{named.name}@{named.incarnation}"
    return f"txn:{where}:{'several' if target.several else 'one'}:{app_id}"


def running_task() -> int:
    """Return the number of the running task; 0 outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def sink_client(target: SinkTarget) -> Client:
    """Return the client of a task that writes. Raises Unsupported if the driver has another release."""
    require_release(target.release)
    return task_client(target.address, target.store_id, target.task_credentials)


def stage_rows(
    target: SinkTarget, version: str, query: str, batch: int, rows: Iterable[pa.RecordBatch], task: int = 0
) -> PartMessage:
    """Write the rows of one task to staged parts of their own, which are invisible before the commit."""
    client = sink_client(target)
    staged = staged_parts(client, target, StagingTask(query, batch, run_of(query, batch), task), rows)
    return PartMessage(query, batch, target.store_id, version, tuple(staged))


def nothing_staged(target: SinkTarget, version: str, query: str, batch: int) -> PartMessage:
    return PartMessage(query, batch, target.store_id, version, (), repeated=True)


def is_written(target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a batch is in the log. Called on the driver."""
    connection = _connection(target)
    return is_repetition(lambda *asked: connection.call(lambda client: client.call(*asked)), target, query, batch)


def commit_parts(
    target: SinkTarget, version: str, messages: Sequence[PartMessage | None], batch: int, *, once: bool = False
) -> CommittedRun | CommittedRuns | None:
    """Append the staged parts of a batch, in the order of its partitions, exactly once; None if there are none.

    `once`: the query has no other batch.
    """
    told = _agreed(target, version, messages, batch)
    if any(message.repeated for message in told):
        _drop_repeated(target, told, batch)
        return None
    staged = _by_ledger(told)
    if not staged:
        return None
    query = told[0].query
    run = run_of(query, batch)
    connection = _connection(target, deadline_ms=target.commit_timeout_ms)
    request: CommitRun | CommitRuns
    if target.several:
        request = CommitRuns(query, batch, run.most, run.least, staged, once)
        several: CommittedRuns = connection.call(lambda client: client.call("runs.commit", request))
        return several
    (only,) = staged
    request = CommitRun(only.ledger, query, batch, run.most, run.least, only.parts, once)
    one: CommittedRun = connection.call(lambda client: client.call("run.commit", request))
    return one


def abort_parts(target: SinkTarget, messages: Sequence[PartMessage | None], batch: int) -> None:
    """Delete the staged parts of the tasks. Messages of failed tasks are None."""
    told = [message for message in messages if message is not None]
    parts = [part.part for message in told for part in message.parts]
    if parts:
        connection = _connection(target)
        connection.call(lambda client: client.call("run.abort", AbortRun(told[0].query, batch, parts)))


def _drop_repeated(target: SinkTarget, told: Sequence[PartMessage], batch: int) -> None:
    """End a batch whose tasks pulled no rows: nothing may be appended, because its rows are in no part."""
    if not is_written(target, told[0].query, batch):
        raise Unavailable(
            f"batch {batch} of {target.ledger} was in the log when its tasks began, and is gone now",
            hint="The ledger was deleted meanwhile: write again",
        )
    abort_parts(target, told, batch)


def _by_ledger(told: Sequence[PartMessage]) -> list[LedgerParts]:
    """Return all parts of each ledger, in the order of the tasks."""
    parts: dict[str, list[StagedPart]] = {}
    for message in told:
        for staged in message.staged:
            parts.setdefault(staged.ledger, []).extend(staged.parts)
    return [LedgerParts(name, found) for name, found in parts.items()]


def _connection(target: SinkTarget, *, deadline_ms: int = DRIVER_DEADLINE_MS) -> DriverConnection:
    return DriverConnection(target.location, deadline_ms=deadline_ms, credentials=target.credentials)


def _agreed(target: SinkTarget, version: str, messages: Sequence[PartMessage | None], batch: int) -> list[PartMessage]:
    told = [message for message in messages if message is not None]
    if len(told) != len(messages):
        raise Refused(f"batch {batch}: {len(messages) - len(told)} of {len(messages)} tasks sent no message")
    for message in told:
        for what, found, wanted in (
            ("query", message.query, told[0].query),
            ("batch", message.batch, batch),
            ("store", message.store_id, target.store_id),
            ("version of pyspark-ledger", message.version, version),
        ):
            if found != wanted:
                raise Refused(
                    f"batch {batch} of {target.ledger}: a task wrote for {what} {found!r}, the commit is of {wanted!r}",
                    hint="Driver and executors need the same package and store",
                )
    return told
