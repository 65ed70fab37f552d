"""Goal: no record is lost, changed or added unseen. Method: damage behind SQLite's back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.database.commit_number import CommitNumber, number_path, read_number
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.file_checks import APPLICATION_ID, FORMAT_VERSION, require_sound_file
from pyspark_ledger.ledger.database.record_tables import RecordTable, connect, create_tables, create_views
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused, Unsupported
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.metadata.segment_records import LedgerInfo
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedCursorInfo, ManagedLedgerInfo

NOW = 1_700_000_000_000
# The file as format 1 had it, without what a ledger or two put into it.
FIRST_FORMAT = """
PRAGMA application_id=1279543122; PRAGMA user_version=1; PRAGMA journal_mode=WAL;
CREATE TABLE store (id TEXT NOT NULL, host TEXT NOT NULL, created_ms INTEGER NOT NULL,
  epoch INTEGER NOT NULL, next_ledger_id INTEGER NOT NULL);
CREATE TABLE ledger (name TEXT PRIMARY KEY, folded TEXT NOT NULL UNIQUE, incarnation TEXT NOT NULL,
  version INTEGER NOT NULL, info BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE segment (ledger_id INTEGER PRIMARY KEY, ledger TEXT NOT NULL REFERENCES ledger ON DELETE CASCADE,
  block_bytes INTEGER NOT NULL, first_row INTEGER NOT NULL, rows INTEGER NOT NULL, file_bytes INTEGER NOT NULL,
  created_ms INTEGER NOT NULL);
CREATE INDEX segment_of_ledger ON segment (ledger);
CREATE TABLE cursor (ledger TEXT NOT NULL REFERENCES ledger ON DELETE CASCADE, name TEXT NOT NULL,
  version INTEGER NOT NULL, info BLOB NOT NULL, floor_ledger INTEGER, floor_entry INTEGER,
  holder TEXT NOT NULL, lease_until_ms INTEGER NOT NULL, PRIMARY KEY (ledger, name)) WITHOUT ROWID;
INSERT INTO store VALUES ('a-store', 'a-host', 1, 7, 12);
INSERT INTO ledger VALUES ('log', 'log', 'i', 3, x'0a020804');
INSERT INTO segment VALUES (4, 'log', 256, 0, 5, 300, 1);
INSERT INTO cursor VALUES ('log', 'c', 2, x'08ffffffffffffffffff01100418ffffffffffffffffff01', NULL, NULL, '', 0);
"""


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
    assert require_sound_file(path, TABLES) == FORMAT_VERSION


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


def test_a_file_of_the_first_format_gets_its_checksums(path: Path) -> None:
    sqlite3.connect(path).executescript(FIRST_FORMAT).close()
    seen = Metadata(MetadataView(path, TABLES), lambda: NOW)
    cursor = seen.cursors.get("log", "c")
    assert cursor is not None
    for _ in range(2):
        opened = Metadata.open(path, lambda: NOW)
        assert (opened.names(), opened.next_ledger_id(), opened._file.epoch()) == (["log"], 12, 7)
        assert (opened.ledger("log").version, [one.ledger_id for one in opened.segments.of("log")]) == (3, [4])
        assert opened.cursors.get("log", "c") == cursor
        opened.close()
    assert require_sound_file(path, TABLES) == FORMAT_VERSION
    assert int.from_bytes(path.read_bytes()[60:64], "big") == FORMAT_VERSION, "an older program refuses it by this"


def second_format(path: Path, *damage: str) -> None:
    """The file as format 2 had it: with checksums, the list of a ledger in its record."""
    listed = ManagedLedgerInfo(ledgerInfo=[LedgerInfo(ledgerId=4, entries=2, size=50, timestamp=9)])
    rows = {
        "store": ("a-store", "a-host", 1, 7, 12, 3),
        "ledger": ("log", "log", "i", 3, listed.SerializeToString()),
        "segment": (4, "log", 256, 0, 5, 300, 1),
        "cursor": ("log", "C", 2, ManagedCursorInfo(
            cursorsLedgerId=-1, markDeleteLedgerId=4, markDeleteEntryId=1).SerializeToString(), 4, 0, "", 0),
    }  # fmt: skip
    tables = [table.of_format(2) for table in TABLES]
    connection = connect(path)
    for pragma in (f"application_id={APPLICATION_ID}", "user_version=2", "journal_mode=WAL"):
        connection.execute(f"PRAGMA {pragma}")
    create_tables(connection, tables)
    create_views(connection, tables)
    for name, values in rows.items():
        connection.execute(f"INSERT INTO {name}_row VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
    for statement in damage:
        connection.execute(statement)
    connection.close()
    CommitNumber(number_path(path), 3).close()


def test_a_file_of_the_second_format_is_read_and_migrated(path: Path) -> None:
    second_format(path)
    before = path.read_bytes()
    for opened in (lambda: Metadata(MetadataView(path, TABLES), lambda: NOW), lambda: Metadata.open(path, lambda: NOW)):
        metadata = opened()
        (row,) = metadata.segments.of("log")
        assert (row.rows, row.row_entries, row.listed().entries, row.listed().timestamp) == (5, -1, 2, 9)
        assert not metadata.ledger("log").info.ledgerInfo
        assert metadata.cursors.slowest("log") == Position(4, 0), "the replay floor"
        if isinstance(metadata._file, MetadataView):
            assert path.read_bytes() == before, "who only looks changes nothing"
        else:
            with pytest.raises(Refused, match="differs from 'C' only in case"):
                metadata.cursors.put(CursorRecord("log", "c", Position(4, 0)), None)
        metadata.close()
    assert require_sound_file(path, TABLES) == FORMAT_VERSION
    again = Metadata.open(path, lambda: NOW)
    assert again.segments.of("log") == [row]
    again.bump_epoch()
    assert read_number(number_path(path)) == 4, "the commits are counted on"
    again.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DROP INDEX segment_row_ledger", "'segment_row_ledger' was created by 'nothing'"),
        ("DELETE FROM segment_row", "lists segment 4, which has no row in the table of segments"),
    ],
)
def test_a_file_of_the_second_format_is_not_migrated_if_damaged(path: Path, damage: str, said: str) -> None:
    second_format(path, damage)
    with pytest.raises(Corrupt, match=said):
        Metadata.open(path, lambda: NOW)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_a_migration_that_was_killed_is_done_again(path: Path) -> None:
    sqlite3.connect(path).executescript(FIRST_FORMAT).close()

    class Killed(Exception):
        pass

    def kill(_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        MetadataFile.open(path, TABLES, kill)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT epoch FROM store").fetchone() == (7,), "the first format as it was"
    connection.close()
    Metadata.open(path, lambda: NOW).close()
    assert require_sound_file(path, TABLES) == FORMAT_VERSION


def test_what_both_formats_lack_is_named(path: Path, metadata: Metadata) -> None:
    metadata.close()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA user_version=4")
    connection.close()
    with pytest.raises(Unsupported, match=r"has format 4, this code reads 1 to 3\. Upgrade"):
        Metadata.open(path, lambda: NOW)


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
