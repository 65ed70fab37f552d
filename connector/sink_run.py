"""The exactly-once sink: tasks stage rows out of sight, one commit makes them visible as a run.

    task      rows → entries of about `entryBytes`, each with the run's id → a staged part → message
    driver    messages of one batch → CommitRun → the broker appends the parts, closed by a marker, with one sync

Invariants
- The run's id is made of the query and the batch alone: a batch that is repeated, by any process, is the same run, and
  the broker appends it once.
- Spark may repeat a commit after a failure, and so does this module while the broker is away; both are harmless.
- The query travels in the messages, because the committer has none: messages that disagree are refused, naming both.
- A task that fails leaves a part that nobody commits; the broker sweeps it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from connector.connection import DRIVER_DEADLINE_MS, DriverConnection
from connector.options import LedgerOptions, require_ledger
from connector.schema import columns_to_write, require_writable
from ledger.api import store_location
from ledger.arrow_payload import arrow_metadata, encode_rows
from ledger.clock import system_clock_ms
from ledger.columns import ColumnFit, schema_bytes, schema_from_bytes
from ledger.entry import STAMP_BYTES_MAX, Buffer, encode_entry
from ledger.errors import NotFound, Refused
from ledger.names import canonical_name
from ledger.protocol import CreateLedger, GetSchema, LedgerDescription, NameLedger, RegisterSchema
from ledger.run import RunId
from ledger.run_calls import AbortRun, CommitRun, CommittedRun, StagedPart
from ledger.segment_format import entry_bytes_max

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ledger.broker.client import Client
    from ledger.broker.credentials import Credentials

_BLOCK_BYTES = "ledger.blockBytes"


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """Where rows go and how, as a task needs to know it. Pickled into every task."""

    address: str
    store_id: str
    location: str
    ledger: str
    columns: bytes
    schema_version: int
    entry_bytes: int
    entry_bytes_most: int
    compression: Any
    commit_timeout_ms: int
    credentials: Credentials


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """What a task tells the committer. `part` is None for a task without rows."""

    query: str
    batch: int
    store_id: str
    version: str
    part: StagedPart | None


def prepare_target(options: LedgerOptions, schema: StructType) -> SinkTarget:
    """Create the ledger and register its columns, or compare them; nothing is staged before that has passed."""
    name = canonical_name(require_ledger(options))
    location = store_location(options.store)
    columns = columns_to_write(schema, name)
    # Against themselves, before anything is made: a type that comes back as another one could be written never again.
    require_writable(schema, columns, name)
    connection = DriverConnection(location, create=True, credentials=options.credentials())
    described = connection.call(lambda client: _described(client, name))
    found = connection.call(lambda client: client.call("schema.get", GetSchema(name)))
    if found.version < 0:
        if described.entries:
            raise Refused(
                f"ledger {name} holds {described.entries} entries of messages without columns, "
                f"rows with columns {', '.join(columns.names)} were given",
                hint="Write rows to a ledger of their own",
            )
        request = RegisterSchema(name, schema_bytes(columns))
        found = connection.call(lambda client: client.call("schema.register", request))
    require_writable(schema, schema_from_bytes(found.arrow_schema), name)
    most = _entry_bytes_most(described, options.entry_bytes)
    client = connection.client
    return SinkTarget(
        client.address, client.store_id, location, name, found.arrow_schema, found.version,
        options.entry_bytes, most, options.compression, options.commit_timeout_ms,
        client.credentials,
    )  # fmt: skip


def _described(client: Client, name: str) -> LedgerDescription:
    """The ledger, created if need be: every batch asks, and only the first has to write."""
    try:
        described: LedgerDescription = client.call("describe", NameLedger(name))
    except NotFound:
        described = client.call("create", CreateLedger(name, exist_ok=True))
    return described


def run_of(query: str, batch: int) -> RunId:
    """The run of a batch of a query: the same in every process, both halves unsigned, 64 bits."""
    return RunId(int.from_bytes(hashlib.blake2b(query.encode(), digest_size=8).digest(), "big"), batch)


def stage_rows(target: SinkTarget, version: str, query: str, batch: int, rows: Iterable[pa.RecordBatch]) -> PartMessage:
    """Write the rows of one task to a staged part of their own; nobody sees it before the commit."""
    from ledger.broker.client import client_for

    writer, ordinal = None, 0
    producer = f"spark-{query}"
    run = run_of(query, batch)
    for piece in _pieces(target, rows):
        for entry, count in _entries(target, producer, ordinal, run, piece):
            if writer is None:
                writer = client_for(target.address, target.store_id, target.credentials).stage_part(query, batch)
            writer.write(entry, count)
            ordinal += 1
    part = None if writer is None else writer.close()
    return PartMessage(query, batch, target.store_id, version, part)


def commit_parts(
    target: SinkTarget, version: str, messages: Sequence[PartMessage | None], batch: int, *, once: bool = False
) -> CommittedRun | None:
    """Append the staged parts of a batch, in the order of its partitions, exactly once. None: it had no rows.

    `once`: the query has no other batch.
    """
    told = _agreed(target, version, messages, batch)
    parts = [message.part for message in told if message.part is not None]
    if not parts:
        return None
    query = told[0].query
    run = run_of(query, batch)
    request = CommitRun(target.ledger, query, batch, run.most, run.least, parts, once)
    connection = _connection(target, deadline_ms=target.commit_timeout_ms)
    committed: CommittedRun = connection.call(lambda client: client.call("run.commit", request))
    return committed


def abort_parts(target: SinkTarget, messages: Sequence[PartMessage | None], batch: int) -> None:
    """Throw away what the tasks staged; messages of tasks that failed are None."""
    parts = [message.part.part for message in messages if message is not None and message.part is not None]
    query = next((message.query for message in messages if message is not None), None)
    if query is not None and parts:
        connection = _connection(target)
        connection.call(lambda client: client.call("run.abort", AbortRun(query, batch, parts)))


def _connection(target: SinkTarget, *, deadline_ms: int = DRIVER_DEADLINE_MS) -> DriverConnection:
    given = None if target.credentials.empty else target.credentials
    return DriverConnection(target.location, deadline_ms=deadline_ms, credentials=given)


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


def _pieces(target: SinkTarget, rows: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """The rows with the ledger's columns, gathered and cut into runs of about one entry's bytes."""
    fit = ColumnFit(schema_from_bytes(target.columns))
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        fitted = fit.fit(batch, f"what is written to {target.ledger}")
        per_entry = max(1, fitted.num_rows * target.entry_bytes // max(fitted.nbytes, 1))
        for at in range(0, fitted.num_rows, per_entry):
            piece = fitted.slice(at, per_entry)
            if gathered and size + piece.nbytes > target.entry_bytes:
                yield gathered
                gathered, size = [], 0
            gathered.append(piece)
            size += piece.nbytes
    if gathered:
        yield gathered


def _entries(
    target: SinkTarget, producer: str, ordinal: int, run: RunId, batches: list[pa.RecordBatch]
) -> Iterator[tuple[list[Buffer], int]]:
    """The entry of these rows; halved where it does not fit a block, down to a row that never will."""
    count = sum(batch.num_rows for batch in batches)
    metadata = arrow_metadata(producer, ordinal, system_clock_ms(), count, target.schema_version, (run.most, run.least))
    entry = encode_entry(metadata, encode_rows(batches, compression=target.compression))
    size = sum(memoryview(buffer).nbytes for buffer in entry)
    if size <= target.entry_bytes_most:
        yield entry, count
        return
    if count == 1:
        raise Refused(
            f"one row for {target.ledger} takes {size} bytes, an entry holds at most {target.entry_bytes_most}",
            hint="Split the value, or create the ledger with larger blocks",
        )
    table = pa.Table.from_batches(batches)
    for half in (table.slice(0, count // 2), table.slice(count // 2)):
        yield from _entries(target, producer, ordinal, run, half.to_batches())


def _entry_bytes_most(described: LedgerDescription, entry_bytes: int) -> int:
    """The largest entry of a ledger; an `entryBytes` beyond it is refused with both numbers."""
    block = int(described.properties.get(_BLOCK_BYTES, 64 * 1024 * 1024))
    most = entry_bytes_max(block) - STAMP_BYTES_MAX
    if entry_bytes > most:
        raise Refused(
            f"option 'entryBytes' is {entry_bytes}, blocks of {block} bytes of {described.name} hold entries of {most}",
            hint=f"Give at most {most}",
        )
    return most
