"""Records of a store: its ledgers, their segments, their readers.

A *segment* is one file of a ledger; its id is `ledger_id` in the code, as in Pulsar. A *run* is the entries of one
committed batch. The *epoch* is a number that each new broker raises. The *replay floor* of a cursor is the end of the
last batch that Spark has certainly committed.

    store         one row: id, host with former ids (ledger.ownership.host_text), epoch, next segment id
    ledger        name, name in lower case, incarnation (an id that each creation of a ledger gets), version, and
                  Pulsar's `ManagedLedgerInfo` (properties, end if terminated)
    segment       one row for each segment: Pulsar's `LedgerInfo` and more (ledger.metadata.segment_records)
    run           for each query, the newest of its batches whose entries are in a sealed segment
    manifest      the newest batch of each query that writes to several ledgers (ledger.metadata.manifest_records)
    sequence      the highest sequence id of each producer in sealed segments, for ledgers with de-duplication
    schema        Arrow schemas of a ledger, versions from 0
    cursor        Pulsar's `ManagedCursorInfo`, replay floor, lease (ledger.metadata.cursor_records)
    delivery      the rows of a query's batch, if they are not one range of positions (ledger.metadata.delivery_records)
    delivery_chunk  the parts of large `delivery` rows
    policy        policies of a ledger or a namespace, by its name (ledger.metadata.policy_records)
    unwanted      objects in object storage that must be deleted (ledger.metadata.unwanted_files)
    trimmed       the segments that retention deleted (ledger.metadata.segment_records)
    unwanted_file  files of segments that must be deleted (ledger.metadata.unwanted_files)

Rules
- A change is refused if the record has changed since it was read: each record has a version. A change is also refused
  if the store's epoch differs from this broker's epoch. So an earlier broker cannot change records. A change is durable
  when the call returns.
- Segment ids rise in the whole store and are never used twice.
- Names that differ only in case are refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.database.changed_rows import Replica
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.message.run_marker import CommittedBatch
from pyspark_ledger.ledger.metadata.cursor_records import (
    CURSOR_TABLE,
    CursorRecords,
    own_ledgers_of,
    slowest_of,
)
from pyspark_ledger.ledger.metadata.delivery_records import DELIVERY_CHUNK_TABLE, DELIVERY_TABLE, DeliveryRecords
from pyspark_ledger.ledger.metadata.manifest_records import (
    MANIFEST_TABLE,
    ManifestRecords,
    put_deleted,
    require_none_pending,
)
from pyspark_ledger.ledger.metadata.offload_records import adopt_objects, disown_objects
from pyspark_ledger.ledger.metadata.partition_records import (
    extend_partitioned,
    insert_ledger,
    insert_partitioned,
    require_ledger,
)
from pyspark_ledger.ledger.metadata.policy_records import POLICY_TABLE, PolicyRecords
from pyspark_ledger.ledger.metadata.segment_records import (
    SEGMENT_TABLE,
    TRIMMED_TABLE,
    SegmentRecord,
    SegmentRecords,
    put_segment,
    take_all_segments,
    take_segments,
)
from pyspark_ledger.ledger.metadata.unwanted_files import (
    UNWANTED_FILE_TABLE,
    UNWANTED_TABLE,
    UnwantedFileRecords,
    UnwantedRecords,
    put_made,
    put_unlisted,
)
from pyspark_ledger.ledger.ownership import host_parts, host_text
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo

_IN_LEDGER = "ledger TEXT NOT NULL REFERENCES ledger_row ON DELETE CASCADE"
TABLES = (
    RecordTable(
        "store",
        (
            "id TEXT NOT NULL",
            "host TEXT NOT NULL",
            "created_ms INTEGER NOT NULL",
            "epoch INTEGER NOT NULL",
            "next_ledger_id INTEGER NOT NULL",
            "commits INTEGER NOT NULL DEFAULT 0",
        ),
        rowid=True,
        counted=False,
    ),
    RecordTable(
        "ledger",
        (
            "name TEXT PRIMARY KEY",
            "folded TEXT NOT NULL UNIQUE",
            "incarnation TEXT NOT NULL",
            "version INTEGER NOT NULL",
            "info BLOB NOT NULL",
        ),
    ),
    SEGMENT_TABLE,
    RecordTable(
        "run",
        (_IN_LEDGER, "query TEXT NOT NULL", "batch INTEGER NOT NULL", "body BLOB NOT NULL"),
        "PRIMARY KEY (ledger, query)",
    ),
    MANIFEST_TABLE,
    RecordTable(
        "schema",
        (_IN_LEDGER, "version INTEGER NOT NULL", "body BLOB NOT NULL"),
        "PRIMARY KEY (ledger, version)",
    ),
    RecordTable(
        "sequence",
        (_IN_LEDGER, "producer TEXT NOT NULL", "sequence_id INTEGER NOT NULL", "last_ms INTEGER NOT NULL"),
        "PRIMARY KEY (ledger, producer)",
    ),
    CURSOR_TABLE,
    POLICY_TABLE,
    UNWANTED_TABLE,
    DELIVERY_TABLE,
    DELIVERY_CHUNK_TABLE,
    TRIMMED_TABLE,
    UNWANTED_FILE_TABLE,
)
T = TypeVar("T")
_RUNS = "SELECT body FROM run WHERE ledger = ?"
_COMMITTED = msgspec.json.Decoder(CommittedBatch)


class KnownSequence(msgspec.Struct, frozen=True):
    """Highest durable sequence id of a producer, and the time of its last append."""

    producer: str
    sequence_id: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Identity of the store. `former` are the earlier ids of a copy, oldest first."""

    store_id: str
    host: str
    created_ms: int
    former: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """Record of one managed ledger at one version. `info` has no segments: they are in `SegmentRecords`.

    `new_id` is set if the change to this version allocated a segment id.
    """

    name: str
    incarnation: str
    version: int
    info: ManagedLedgerInfo
    new_id: int | None = None


class Metadata:
    """Records of a store. Any thread may call any method."""

    def __init__(self, file: MetadataFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self.cursors = CursorRecords(file)
        self.policies = PolicyRecords(file)
        self.manifests = ManifestRecords(file)
        self.unwanted = UnwantedRecords(file)
        self.deliveries = DeliveryRecords(file)
        self.segments = SegmentRecords(file)
        self.unwanted_files = UnwantedFileRecords(file)

    @classmethod
    def create(cls, path: Path, store_id: str, host: str, clock: Clock) -> Self:
        """Create the metadata of a new store."""
        row = (store_id, host, clock())
        file = MetadataFile.create(
            path, TABLES, lambda c: c.execute("INSERT INTO store_row VALUES (?, ?, ?, 0, 0, 0)", row)
        )
        return cls(file, clock)

    @classmethod
    def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        behind: bool = False,
        replica: Replica | None = None,
    ) -> Self:
        """Open the metadata of an existing store. With `behind`, a file that lacks the newest commits is accepted.

        `replica` makes the changed rows of each transaction durable in a bucket (`ledger.database.changed_rows`).
        """
        file = MetadataFile.open(path, TABLES, behind=behind, replica=replica)
        return cls(file, clock)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def store_record(self) -> StoreRecord:
        """Return the identity of this store."""
        store_id, text, created = self._file.read(
            lambda c: c.execute("SELECT id, host, created_ms FROM store").fetchone()
        )
        host, former = host_parts(text)
        return StoreRecord(store_id, host, created, former)

    def adopt(self, host: str, new_id: str = "", skipped_ids: int = 0) -> None:
        """Record that the store is on this host, in one transaction.

        With `new_id`, the store is a copy: it gets this id, and the objects in object storage stay its original's.
        `skipped_ids` segment ids are never used here, because another history of the store may have used them.
        """
        record = self.store_record()

        def adopt(c: sqlite3.Connection) -> None:
            c.execute("UPDATE store_row SET next_ledger_id = next_ledger_id + ?", (skipped_ids,))
            if new_id:
                disown_objects(c, record.store_id)
            former = (*record.former, record.store_id) if new_id else record.former
            values = (new_id or record.store_id, host_text(host, former))
            c.execute("UPDATE store_row SET id = ?, host = ?", values)

        self._file.change(adopt)

    def adopt_objects(self, name: str) -> int:
        """Record that the objects of a log that a former id wrote are this store's. Return the number of segments."""
        return self._file.change(lambda c: adopt_objects(c, name))

    def read_at_rest(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run an SQL query on the last committed state. Changes wait until the query has ended."""
        return self._file.read_at_rest(query)

    def bump_epoch(self) -> int:
        """Raise the epoch durably, which fences the previous broker. Return the new epoch."""
        return self._file.bump_epoch()

    def require_epoch(self, mine: int) -> None:
        """Raise Fenced if another broker has taken the store over."""
        self._file.require_epoch(mine)

    @property
    def require_ours(self) -> Callable[[], None]:
        """Function that raises Fenced if another broker has taken the store over since `bump_epoch`. It is cheap."""
        return self._file.require_ours

    def allocate_ledger_id(self) -> int:
        """Return a segment id that was never used and will never be used again."""
        return self.allocate_ledger_ids(1)[0]

    def allocate_ledger_ids(self, count: int) -> list[int]:
        """Return ascending segment ids that were never used and will never be used again."""
        return self._file.change(lambda c: _allocate(c, count))

    def reserve_ledger_ids(self, count: int) -> int:
        """Reserve consecutive segment ids for segments without local files, and return the first id."""

        def reserve(c: sqlite3.Connection) -> int:
            c.execute("UPDATE store_row SET next_ledger_id = next_ledger_id + ?", (count,))
            return int(c.execute("SELECT next_ledger_id FROM store").fetchone()[0]) - count

        return self._file.change(reserve)

    def abandon_ledger_ids(self, ledger_ids: Sequence[int]) -> None:
        """Record as unwanted the files of allocated ids that no ledger lists. The caller then deletes the files."""
        self._file.change(lambda c: put_unlisted(c, ledger_ids))

    def give_ledger_ids_after(self, last: int) -> None:
        """Allocate only segment ids after `last` from now on, because files with the id `last` exist."""
        self._file.change(
            lambda c: c.execute("UPDATE store_row SET next_ledger_id = max(next_ledger_id, ?)", (last + 1,))
        )

    def ledger_ids(self) -> set[int]:
        """Return the ids of all listed segments, and of the logs in which cursors store acknowledgements."""
        return self.segments.ledger_ids() | self.cursors.ledger_ids()

    def next_ledger_id(self) -> int:
        """Return the id of the next segment. All lower ids were allocated."""
        return int(self._file.read(lambda c: c.execute("SELECT next_ledger_id FROM store").fetchone()[0]))

    def names(self) -> list[str]:
        """Return the names of all managed ledgers, sorted."""
        return [
            row[0] for row in self._file.read(lambda c: c.execute("SELECT name FROM ledger ORDER BY name").fetchall())
        ]

    def exists(self, name: str) -> bool:
        """Return whether a managed ledger has this name."""
        return (
            self._file.read(lambda c: c.execute("SELECT 1 FROM ledger WHERE name = ?", (name,)).fetchone()) is not None
        )

    def ledger(self, name: str) -> LedgerRecord:
        """Return the record of a managed ledger."""
        row = self._file.read(
            lambda c: c.execute(
                "SELECT name, incarnation, version, info FROM ledger WHERE name = ?", (name,)
            ).fetchone()
        )
        if row is None:
            raise NotFound(f"there is no ledger {name!r}")
        return LedgerRecord(row[0], row[1], row[2], ManagedLedgerInfo.FromString(row[3]))

    def create_ledger(self, name: str, incarnation: str, properties: dict[str, str], *, exist_ok: bool) -> None:
        """Create a managed ledger without segments. Raises AlreadyExists if it exists, unless `exist_ok` is set."""
        self._file.change(lambda c: insert_ledger(c, name, incarnation, properties, exist_ok=exist_ok))

    def create_partitioned(
        self,
        name: str,
        partitions: int,
        properties: Mapping[str, str],
        new_incarnation: Callable[[], str],
        *,
        exist_ok: bool,
    ) -> None:
        """Create a partitioned ledger and its partitions, in one transaction."""
        self._file.change(
            lambda c: insert_partitioned(c, name, partitions, properties, new_incarnation, exist_ok=exist_ok)
        )

    def extend_partitioned(self, name: str, partitions: int, new_incarnation: Callable[[], str]) -> None:
        """Add partitions to a partitioned ledger, in one transaction."""
        self._file.change(lambda c: extend_partitioned(c, name, partitions, new_incarnation))

    def update_ledger(
        self,
        record: LedgerRecord,
        info: ManagedLedgerInfo,
        *,
        put: Collection[SegmentRecord] = (),
        gone: Collection[int] = (),
        committed: Collection[CommittedBatch] = (),
        forgotten: Collection[str] = (),
        trimmed_to: Position | None = None,
        sequences: list[KnownSequence] | None = None,
        allocate: bool = False,
    ) -> LedgerRecord:
        """Change a record and its segments, if the record still has the version and incarnation of `record`.

        - `put` are the new or changed segments, `gone` the ids of removed segments.
        - `committed` are the newest batches of queries. The batches of `forgotten` queries are deleted.
        - `sequences` replace all sequence ids of the ledger's producers.
        - With `trimmed_to`, raises Refused if a cursor needs an earlier entry.
        - With `allocate`, the change also allocates a segment id, as `allocate_ledger_id` does.
        """
        name = record.name

        def update(c: sqlite3.Connection) -> LedgerRecord:
            done = c.execute(
                "UPDATE ledger_row SET version = version + 1, info = ? "
                "WHERE name = ? AND version = ? AND incarnation = ?",
                (info.SerializeToString(), name, record.version, record.incarnation),
            )
            if done.rowcount != 1:
                raise _lost(c, record)
            if info.HasField("terminatedPosition") and not record.info.HasField("terminatedPosition"):
                require_none_pending(c, name)
            slowest = None if trimmed_to is None else slowest_of(c, name)
            if slowest is not None and trimmed_to is not None and slowest < trimmed_to:
                raise Refused(f"{name!r} cannot be trimmed to {trimmed_to}: a cursor was reset to {slowest} meanwhile")
            take_segments(c, name, gone, trimmed=trimmed_to is not None)
            for segment in put:
                put_segment(c, name, segment)
            c.executemany(
                "INSERT OR REPLACE INTO run_row VALUES (?, ?, ?, ?)",
                [(name, batch.query, batch.batch, msgspec.json.encode(batch)) for batch in committed],
            )
            c.executemany("DELETE FROM run_row WHERE ledger = ? AND query = ?", [(name, query) for query in forgotten])
            if sequences is not None:
                _put_sequences(c, name, sequences)
            new_id = _allocate(c, 1)[0] if allocate else None
            return LedgerRecord(name, record.incarnation, record.version + 1, info, new_id)

        return self._file.change(update)

    def delete_ledger(self, *names: str, unsaved: Collection[tuple[str, CommittedBatch]] = ()) -> set[int]:
        """Delete ledgers with all their records, in one transaction. Return the ids of their segments.

        `unsaved` are newest batches of ledgers, which the metadata may lack.
        """
        rows = [(name,) for name in names]

        def delete(c: sqlite3.Connection) -> set[int]:
            for name in names:
                stored = [_COMMITTED.decode(row[0]) for row in c.execute(_RUNS, (name,))]
                known = {batch.query: batch for batch in stored} | {b.query: b for at, b in unsaved if at == name}
                put_deleted(c, name, [batch for batch in known.values() if batch.is_of_stream], self._clock())
            gone = {ledger_id for name in names for ledger_id in own_ledgers_of(c, name)}
            put_unlisted(c, gone)
            gone |= take_all_segments(c, names)
            c.executemany("DELETE FROM ledger_row WHERE name = ?", rows)
            c.executemany("DELETE FROM policy_row WHERE scope = ?", rows)
            return gone

        return self._file.change(delete)

    def committed_batches(self, name: str) -> list[CommittedBatch]:
        """Return the newest batch of each query in sealed segments."""
        rows = self._file.read(lambda c: c.execute(_RUNS, (name,)).fetchall())
        return [_COMMITTED.decode(row[0]) for row in rows]

    def sequences(self, name: str) -> list[KnownSequence]:
        """Return the highest sequence id of each producer in sealed segments."""
        rows = self._file.read(
            lambda c: c.execute(
                "SELECT producer, sequence_id, last_ms FROM sequence WHERE ledger = ?", (name,)
            ).fetchall()
        )
        return [KnownSequence(*row) for row in rows]

    def schema(self, name: str, version: int) -> tuple[int, bytes]:
        """Return a registered schema with its version. Version -1 means the newest schema.

        If the ledger has no schema, return `(-1, b"")` for version -1. Raises NotFound for any other missing version.
        """
        row = self._file.read(
            lambda c: c.execute(
                "SELECT version, body FROM schema WHERE ledger = ? AND (version = ? OR ? = -1) "
                "ORDER BY version DESC LIMIT 1",
                (name, version, version),
            ).fetchone()
        )
        if row is None and version != -1:
            raise NotFound(f"ledger {name!r} has no schema of version {version}")
        return (-1, b"") if row is None else (row[0], row[1])

    def register_schema(
        self, name: str, body: bytes, after: int, check: Callable[[list[bytes]], object] = lambda _: None
    ) -> tuple[int, bytes]:
        """Register a schema as the version after `after`. If the newest version is not `after`, return the newest.

        Before the change, calls `check` with all versions. Raises the error of `check`.
        """

        def register(c: sqlite3.Connection) -> tuple[int, bytes]:
            require_ledger(c, name)
            bodies = _schemas(c, name)
            found = len(bodies) - 1
            if bodies and (bodies[-1] == body or found != after):
                return found, bodies[-1]
            if found != after:
                raise Refused(f"ledger {name!r} has no schema, so none can be registered after version {after}")
            check(bodies)
            c.execute("INSERT INTO schema_row VALUES (?, ?, ?)", (name, found + 1, body))
            return found + 1, body

        return self._file.change(register)

    def restore_schema(self, name: str, count: Callable[[list[bytes]], int]) -> tuple[int, bytes]:
        """Keep the first `count` versions of a schema, and delete all later ones. Return the newest version.

        `count` gets all versions.
        """

        def restore(c: sqlite3.Connection) -> tuple[int, bytes]:
            require_ledger(c, name)
            bodies = _schemas(c, name)
            kept = bodies[: count(bodies)]
            c.execute("DELETE FROM schema_row WHERE ledger = ? AND version >= ?", (name, len(kept)))
            return (len(kept) - 1, kept[-1]) if kept else (-1, b"")

        return self._file.change(restore)


def _schemas(c: sqlite3.Connection, name: str) -> list[bytes]:
    """Return all versions of a ledger's schema, from version 0 on."""
    return [row[0] for row in c.execute("SELECT body FROM schema WHERE ledger = ? ORDER BY version", (name,))]


def _allocate(c: sqlite3.Connection, count: int) -> list[int]:
    """Allocate ascending segment ids, and record that no ledger lists them yet."""
    c.execute("UPDATE store_row SET next_ledger_id = next_ledger_id + ?", (count,))
    end = int(c.execute("SELECT next_ledger_id FROM store").fetchone()[0])
    allocated = list(range(end - count, end))
    for ledger_id in allocated:
        put_made(c, ledger_id)
    return allocated


def _put_sequences(c: sqlite3.Connection, name: str, sequences: list[KnownSequence]) -> None:
    """Replace the sequence ids of producers. Only changed rows are written, because few producers have changed."""
    before = set(c.execute("SELECT producer, sequence_id, last_ms FROM sequence WHERE ledger = ?", (name,)))
    after = {(sequence.producer, sequence.sequence_id, sequence.last_ms) for sequence in sequences}
    gone = {row[0] for row in before} - {row[0] for row in after}
    c.executemany("DELETE FROM sequence_row WHERE ledger = ? AND producer = ?", [(name, producer) for producer in gone])
    c.executemany("INSERT OR REPLACE INTO sequence_row VALUES (?, ?, ?, ?)", [(name, *row) for row in after - before])


def _lost(c: sqlite3.Connection, record: LedgerRecord) -> Refused:
    row = c.execute("SELECT version, incarnation FROM ledger WHERE name = ?", (record.name,)).fetchone()
    found = "missing" if row is None else f"at version {row[0]} of incarnation {row[1]}"
    return Refused(
        f"the record of ledger {record.name!r} is {found}, "
        f"the change expects version {record.version} of incarnation {record.incarnation}"
    )
