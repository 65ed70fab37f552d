"""Records (rows of the metadata) of a store that moves. Only a copy is changed. The source keeps its records.

metadata.sqlite ─▶ copy: segments are uploaded, no durability `os` ─▶ snapshot
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark_ledger.ledger.bucket_store.snapshots import snapshot_of
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.database.file_checks import read_committed
from pyspark_ledger.ledger.database.record_tables import CheckedConnection, connect
from pyspark_ledger.ledger.log.policy import DURABILITY
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.metadata.segment_records import LedgerInfo
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.transport.moved_store import METADATA


def records_of(directory: Path) -> Metadata:
    """Open the records of a store for reading."""
    return Metadata(MetadataView(directory / METADATA, TABLES), system_clock_ms)


def ledgers_without_syncs(records: Metadata) -> list[str]:
    """Return the ledgers with durability `os`. A store in a bucket cannot have such ledgers."""
    return [name for name in records.names() if _durability(records.ledger(name).info) == "os"]


@contextmanager
def copied_records(directory: Path) -> Iterator[CheckedConnection]:
    """Yield a copy of the records of a store."""
    with tempfile.TemporaryDirectory(prefix="ledger-move-") as scratch:
        path = Path(scratch) / METADATA
        read_committed(directory / METADATA, lambda c: c.execute("VACUUM INTO ?", (str(path),)).fetchall())
        with closing(connect(path)) as connection:
            yield connection


def arriving_snapshot(connection: CheckedConnection, attempts: Mapping[int, OffloadAttempt]) -> bytes:
    """Change the copied records for the store in the bucket. Return them as a snapshot.

    `attempts` has the complete upload of each segment, by segment id. Ledgers with durability `os` become durable.
    """
    connection.execute("BEGIN")
    for ledger_id, info in connection.execute("SELECT ledger_id, info FROM segment").fetchall():
        listed = LedgerInfo.FromString(info)
        attempts[ledger_id].put(listed)
        values = (listed.SerializeToString(), ledger_id)
        connection.execute("UPDATE segment_row SET info = ? WHERE ledger_id = ?", values)
    for name, body in connection.execute("SELECT name, info FROM ledger").fetchall():
        record = ManagedLedgerInfo.FromString(body)
        if _durability(record) == "os":
            kept = [pair for pair in record.properties if pair.key != DURABILITY]
            del record.properties[:]
            record.properties.extend(kept)
            connection.execute("UPDATE ledger_row SET info = ? WHERE name = ?", (record.SerializeToString(), name))
    connection.execute("COMMIT")
    return snapshot_of(connection)


def _durability(info: ManagedLedgerInfo) -> str:
    return {pair.key: pair.value for pair in info.properties}.get(DURABILITY, "")
