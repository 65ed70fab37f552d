"""Goal: no record is lost, changed or added unseen. Method: damage behind SQLite's back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.database.commit_number import CommitNumber, number_path, read_number
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.file_checks import require_sound_file
from pyspark_ledger.ledger.database.record_tables import RecordTable, connect, create_tables, create_views
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Unsupported
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.position import Position

NOW = 1_700_000_000_000


@pytest.fixture
def metadata(path: Path) -> Iterator[Metadata]:
    made = Metadata.create(path, "a-store", "a-host", lambda: NOW)
    made.bump_epoch()
    for name in ("log", "other"):
        made.create_ledger(name, f"i-{name}", {}, exist_ok=False)
        for cursor in ("a", "b"):
            made.cursors.put(CursorRecord(name, cursor, Position(0, 3)), None)
    yield made
    made.close()


def behind_its_back(path: Path, *statements: str) -> None:
    """Change records as damage does: neither triggers nor checksums are kept."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.create_function("record_sum", -1, lambda *_: 7, deterministic=True)
        connection.create_function("checked", -1, lambda stated, *_: stated, deterministic=True)
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in (*statements, *(sql for _, sql in triggers)):
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("table", [table for table in TABLES if table.counted], ids=lambda table: table.name)
def test_a_query_by_any_column_compares_the_records_that_it_asks_for(tmp_path: Path, table: RecordTable) -> None:
    """SQLite puts a constant in place of a column where it can: other records must not be compared with it."""
    connection = connect(tmp_path / "file")
    create_tables(connection, [table])
    create_views(connection, [table])
    columns = [column.split()[:2] for column in table.columns]
    value = {"TEXT": lambda row: f"t{row}", "INTEGER": lambda row: row, "BLOB": lambda row: bytes([row])}
    for row in (1, 2, 3):
        given = [value[kind](row) for _, kind in columns]
        marks = ", ".join("?" * len(given))
        connection.execute(f"INSERT INTO {table.row_name} ({table.names()}) VALUES ({marks})", given)  # noqa: S608
    last, kind = columns[-1]
    for name, own in columns:
        query = f"SELECT * FROM {table.name} WHERE {name} = ?"  # noqa: S608 — names of ours
        assert connection.execute(query, (value[own](2),)).fetchall() == [tuple(value[kind](2) for _, kind in columns)]
        both = f"SELECT count(*) FROM {table.name} WHERE {name} = ? AND {last} = ?"  # noqa: S608 — as above
        assert connection.execute(both, (value[own](3), value[kind](3))).fetchone() == (1,)
        assert connection.execute(both, (value[own](3), value[kind](1))).fetchone() == (0,)
    connection.close()


def test_accounts_follow_every_kind_of_change(path: Path, metadata: Metadata) -> None:
    metadata.cursors.put(CursorRecord("log", "a", Position(0, 9)), 0)
    metadata.cursors.delete("log", "b")
    metadata.policies.change("log", values={"x": 1}, forget=(), check=lambda _: None, ledger=True)
    metadata.policies.change("log", values={"x": 2}, forget=(), check=lambda _: None, ledger=True)  # replaces
    metadata.register_schema("other", b"s", -1)
    metadata.delete_ledger("other")  # cascades
    metadata._file.close()
    require_sound_file(path, TABLES)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE cursor_row SET info = x'00' WHERE name = 'a' AND ledger = 'log'",
        "DELETE FROM cursor_row WHERE name = 'a'",
        "INSERT INTO cursor_row VALUES ('log', 'new', 0, x'', NULL, NULL, '', 0, '', -1, 0)",
        "UPDATE account SET digest = digest + 1 WHERE name = 'segment'",
        "DELETE FROM account WHERE name = 'segment'",
        "UPDATE store_row SET next_ledger_id = 0",
        "DELETE FROM store_row",
        "CREATE TABLE theirs (x)",
        "DROP VIEW run",
    ],
)
def test_a_record_that_was_changed_lost_or_added_is_an_error(path: Path, metadata: Metadata, damage: str) -> None:
    metadata._file.close()
    behind_its_back(path, damage)
    before = path.read_bytes()
    with pytest.raises(Corrupt, match=r"metadata\.sqlite"):
        Metadata.open(path, lambda: NOW)
    with pytest.raises(Corrupt, match=r"metadata\.sqlite"):
        MetadataView(path, TABLES)
    assert path.read_bytes() == before


def test_a_name_that_is_no_text_any_more_is_damage(path: Path, metadata: Metadata) -> None:
    metadata._file.close()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET name = CAST(name AS BLOB) WHERE name = 'run'")
    connection.close()
    with pytest.raises(Corrupt, match=r"metadata\.sqlite"):
        MetadataView(path, TABLES)


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.cursors.get("log", "a"),
        lambda m: m.cursors.slowest("log"),
        lambda m: m.cursors.put(CursorRecord("log", "a", Position(0, 9)), 0),
        lambda m: m.cursors.delete("log", "a"),
        lambda m: m.delete_ledger("log"),
    ],
)
def test_a_damaged_record_is_not_read_replaced_or_deleted(
    path: Path, metadata: Metadata, use: Callable[[Metadata], object]
) -> None:
    """Also when the damage came after the file was opened."""
    behind_its_back(path, "UPDATE cursor_row SET version = 0 WHERE ledger = 'log' AND name = 'a'")
    with pytest.raises(Corrupt, match=r"metadata\.sqlite: a record of 'cursor' has checksum"):
        use(metadata)
    assert metadata.cursors.get("other", "a") is not None


def test_metadata_that_lack_a_commit_are_an_error_until_they_are_accepted(path: Path, metadata: Metadata) -> None:
    older = path.with_name("older")
    metadata._file._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    older.write_bytes(path.read_bytes())
    metadata.create_ledger("newest", "i", {}, exist_ok=False)
    metadata.close()
    path.write_bytes(older.read_bytes())
    with pytest.raises(
        Corrupt, match=r"metadata\.sqlite-wal end with commit \d+, .*metadata\.commit states commit \d+"
    ):
        Metadata.open(path, lambda: NOW)
    with pytest.raises(Corrupt, match=r"metadata\.commit"):
        MetadataView(path, TABLES)
    assert path.read_bytes() == older.read_bytes()
    accepted = MetadataFile.open(path, TABLES, behind=True)
    accepted.bump_epoch()
    accepted.close()
    Metadata.open(path, lambda: NOW).close()


@pytest.mark.thorough
def test_a_commit_number_has_two_places_and_is_asked_for(path: Path, metadata: Metadata) -> None:
    metadata.close()
    number, whole = number_path(path), number_path(path).read_bytes()
    assert read_number(number)
    for at in range(len(whole)):
        for bit in range(8):
            number.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert read_number(number) == read_number(number)
            Metadata.open(path, lambda: NOW).close() if bit == at % 8 else None
    for content, said in ((b"\0" * 128, "both of its numbers"), (b"", "0 bytes"), (None, "is missing")):
        number.unlink(missing_ok=True)
        if content is not None:
            number.write_bytes(content)
        with pytest.raises(Corrupt, match=rf"metadata\.commit.*{said}"):
            Metadata.open(path, lambda: NOW)


def test_a_broker_that_lost_the_store_no_longer_writes_the_number(path: Path, metadata: Metadata) -> None:
    taker = Metadata.open(path, lambda: NOW)
    taker.bump_epoch()
    taker.allocate_ledger_id()
    number = read_number(number_path(path))
    assert metadata._file._number is not None
    metadata._file._number.write(3)
    assert read_number(number_path(path)) == number
    taker.close()


def test_the_number_goes_up_with_every_commit_and_only_with_those(path: Path, metadata: Metadata) -> None:
    def number() -> int:
        found = read_number(number_path(path))
        assert found is not None
        return found

    before = number()
    metadata.allocate_ledger_id()
    assert number() == before + 1
    assert not metadata.cursors.delete("log", "nobody")
    with pytest.raises(LedgerError):
        metadata.create_ledger("log", "i", {}, exist_ok=False)
    assert number() == before + 1


@pytest.mark.parametrize(("version", "hint"), [(4, "Upgrade"), (2, "Read its ledgers with the version")])
def test_another_format_is_refused_by_number(path: Path, metadata: Metadata, version: int, hint: str) -> None:
    metadata.close()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    for opened in (lambda: MetadataView(path, TABLES), lambda: Metadata.open(path, lambda: NOW)):
        with pytest.raises(Unsupported, match=rf"has format {version}, this code reads 3\. {hint}"):
            opened()


def test_a_number_is_replaced_whole_by_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "metadata.commit"
    first = CommitNumber(path, 5)
    second = CommitNumber(path, 7)
    first.write(6)
    assert read_number(path) == 7
    second.write(8)
    assert read_number(path) == 8
    first.close()
    second.close()
    assert [one.name for one in tmp_path.iterdir()] == ["metadata.commit"]
