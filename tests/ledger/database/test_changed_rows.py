"""Goal: captured rows make a copy the same. Method: random changes with failures, applied to a copy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.database.changed_rows import ChangedRow, apply_rows, decode_rows, encode_rows
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.record_tables import RecordTable, connect, require_sound
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord

CLOCK = lambda: 1_000  # noqa: E731


def copy_of(path: Path, target: Path) -> sqlite3.Connection:
    """A copy of a metadata file, to which changes can be applied."""
    with sqlite3.connect(path) as source:
        copy = connect(target)
        source.backup(copy)
    return copy


def records(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    return {table.name: sorted(connection.execute(f"SELECT * FROM {table.row_name}"), key=repr) for table in TABLES}  # noqa: S608


class Replica:
    """Copy that gets the rows of each transaction before it commits, and can fail."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "metadata.sqlite"
        Metadata.create(self.path, "id", "host", CLOCK).close()
        self.copy = copy_of(self.path, directory / "copy.sqlite")
        self.fails = False
        self.seen: list[list[ChangedRow]] = []
        self.metadata = Metadata.open(self.path, CLOCK, replica=self)

    def replicate(self, data: bytes) -> None:
        if self.fails:
            raise Unavailable("the bucket does not answer")
        rows = decode_rows(data, "the log")
        self.seen.append(rows)
        self.copy.execute("BEGIN")
        apply_rows(self.copy, rows, TABLES, "the log")
        self.copy.execute("COMMIT")

    def diverged(self, error: BaseException) -> None:
        self.seen.append([ChangedRow("diverged", "put", [str(error)])])

    def require_same(self) -> None:
        self.metadata.close()
        with sqlite3.connect(self.path) as found:
            assert records(self.copy) == records(found)
        require_sound(self.copy, self.path, TABLES)  # type: ignore[arg-type]


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)


steps = st.lists(
    st.tuples(st.sampled_from(["create", "segment", "gone", "schema", "delete", "wrong", "away"]), st.integers(0, 2)),
    max_size=25,
)


@given(steps)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@pytest.mark.thorough
def test_a_copy_that_gets_all_rows_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    replica = Replica(tmp_path_factory.mktemp("replica"))
    metadata = replica.metadata
    for step, number in steps:
        name = f"ledger-{number}"
        replica.fails = step == "away"
        try:
            if step in ("create", "away"):
                metadata.create_ledger(name, f"incarnation-{number}", {"a": "b"}, exist_ok=False)
            elif step == "delete":
                metadata.delete_ledger(name)
            elif step == "schema":
                metadata.register_schema(name, bytes([number]) * 9, -1)
            else:
                record = metadata.ledger(name)
                wrong = step == "wrong"
                ids = [row.ledger_id for row in metadata.segments.of(name)]
                put = [] if step == "gone" else [SegmentRecord(metadata.allocate_ledger_id(), 1, 0, 0, 0, 5)]
                stale = record if not wrong else type(record)(name, "other", record.version, record.info)
                metadata.update_ledger(stale, record.info, put=put, gone=ids[:1] if step == "gone" else [])
        except LedgerError:
            pass
    replica.fails = False
    replica.require_same()


def test_readers_see_a_change_after_its_copy_is_durable(replica: Replica) -> None:
    seen: list[bool] = []
    replicate = replica.replicate
    replica.metadata.close()

    def look(data: bytes) -> None:
        seen.append(metadata.exists("orders"))
        replicate(data)

    replica.replicate = look  # type: ignore[method-assign]
    metadata = replica.metadata = Metadata.open(replica.path, CLOCK, replica=replica)
    metadata.create_ledger("orders", "i", {}, exist_ok=False)
    assert (seen, metadata.exists("orders")) == ([False], True)
    replica.require_same()


def test_a_change_whose_copy_fails_is_not_made(replica: Replica) -> None:
    replica.fails = True
    with pytest.raises(Unavailable, match="the bucket does not answer"):
        replica.metadata.create_ledger("orders", "i", {}, exist_ok=False)
    assert not replica.metadata.exists("orders")
    replica.fails = False
    replica.metadata.create_ledger("bills", "i", {}, exist_ok=False)
    assert [row.table for row in replica.seen[-1]].count("ledger") == 1
    replica.require_same()


def test_a_refused_change_leaves_no_row(replica: Replica) -> None:
    replica.metadata.create_ledger("orders", "i", {}, exist_ok=False)
    before = len(replica.seen)
    with pytest.raises(Refused):
        replica.metadata.create_ledger("ORDERS", "j", {}, exist_ok=False)
    assert len(replica.seen) == before
    replica.require_same()


def test_rows_that_do_not_fit_a_copy_are_refused(replica: Replica) -> None:
    table = RecordTable("schema", ("ledger TEXT", "version INTEGER", "body BLOB"))
    gone = ChangedRow("schema", "delete", ["orders", 0, b"body"])
    with pytest.raises(Corrupt, match=r"0 rows of 'schema' are .*orders"):
        apply_rows(replica.copy, [gone], [table], "wal/7")
    with pytest.raises(Corrupt, match="there is no such table"):
        apply_rows(replica.copy, [ChangedRow("schema", "put", [1])], [table], "wal/7")
    with pytest.raises(Corrupt, match="wal/7: changed rows"):
        decode_rows(encode_rows([gone])[:-1], "wal/7")
    replica.metadata.close()
    assert isinstance(replica.metadata._file, MetadataFile)
