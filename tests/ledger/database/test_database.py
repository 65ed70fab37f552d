"""Goal: durable, grouped, fenced transactions; a refused file is untouched. Method: real SQLite, statements counted."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.database import database
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.file_checks import APPLICATION_ID, FORMAT_VERSION
from pyspark_ledger.ledger.database.record_tables import RecordTable, connect
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, Fenced, NotFound, Refused, Unavailable, Unsupported
from tests.rigs.log import open_files

TABLES = (
    RecordTable("store", ("epoch INTEGER NOT NULL", "commits INTEGER NOT NULL DEFAULT 0"), rowid=True, counted=False),
    RecordTable("item", ("id INTEGER PRIMARY KEY",)),
)
PATIENCE = 60  # seconds until a hang is called one


@pytest.fixture
def file(path: Path) -> Iterator[MetadataFile]:
    file = create(path)
    yield file
    file.close()


def create(path: Path) -> MetadataFile:
    return MetadataFile.create(path, TABLES, lambda c: c.execute("INSERT INTO store_row VALUES (0, 0)"))


def insert(item: int) -> Callable[[sqlite3.Connection], int]:
    def change(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO item_row VALUES (?)", (item,))
        return item

    return change


def items(file: MetadataFile) -> set[int]:
    return {row[0] for row in file.read(lambda c: c.execute("SELECT id FROM item").fetchall())}


def while_busy(file: MetadataFile, pool: ThreadPoolExecutor, changes: list[Callable[..., Any]]) -> list[Future[Any]]:
    """Hand changes in while a transaction is under way; they have all arrived before it ends."""
    inside, go = threading.Event(), threading.Event()

    def slow(_: sqlite3.Connection) -> None:
        inside.set()
        assert go.wait(PATIENCE)

    first = pool.submit(file.change, slow)
    assert inside.wait(PATIENCE)
    futures = [pool.submit(file.change, change) for change in changes]
    while len(file._waiting) < len(changes):
        threading.Event().wait(0.001)
    go.set()
    first.result(PATIENCE)
    return futures


def test_the_writer_waits_for_the_device(file: MetadataFile) -> None:
    pragmas = ("synchronous", "journal_mode", "foreign_keys", "application_id", "user_version")
    found = file.change(lambda c: [c.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas])
    assert found == [2, "wal", 1, APPLICATION_ID, FORMAT_VERSION]


def test_the_file_is_its_owners_alone(file: MetadataFile, path: Path) -> None:
    assert {p.stat().st_mode & 0o777 for p in path.parent.iterdir()} == {0o600}


def test_changes_that_arrive_together_share_one_transaction(file: MetadataFile) -> None:
    statements: list[str] = []
    file._writer.set_trace_callback(statements.append)
    with ThreadPoolExecutor(33) as pool:
        futures = while_busy(file, pool, [insert(i) for i in range(32)])
        assert {future.result(PATIENCE) for future in futures} == set(range(32))
    assert statements.count("COMMIT") == 2
    assert items(file) == set(range(32))


def test_one_refused_change_of_a_group_takes_nothing_else_with_it(file: MetadataFile) -> None:
    def refused(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO item_row VALUES (99)")
        raise Refused("not this one")

    changes: list[Callable[..., Any]] = [insert(1), refused, insert(2), insert(1), insert(3)]
    with ThreadPoolExecutor(8) as pool:
        futures = while_busy(file, pool, changes)
        outcomes = [type(future.exception(PATIENCE)) for future in futures]
    assert outcomes.count(type(None)) == 3
    assert outcomes.count(Refused) == 2  # the refused one, and of the two that insert 1 the one that came second
    assert items(file) == {1, 2, 3}


def test_a_thread_is_not_kept_to_commit_for_others(file: MetadataFile) -> None:
    """Each change brings the next one before it ends, so that something always waits."""
    returned, chain = threading.Event(), []

    with ThreadPoolExecutor(400) as pool:

        def link(_: sqlite3.Connection) -> None:
            chain.append(1)
            if len(chain) < 300 and not returned.is_set():
                pool.submit(file.change, link)
                while not file._waiting:
                    threading.Event().wait(0.0005)

        file.change(link)
        returned.set()
        assert len(chain) < 300


def test_a_failed_commit_is_told_to_all_and_changes_nothing(
    file: MetadataFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    hasty = MetadataFile.open(path, TABLES)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        hasty.change(insert(1))
    other.execute("ROLLBACK")
    other.close()
    hasty.change(insert(2))
    assert items(file) == {2}
    hasty.close()


def test_a_transaction_that_sqlite_gave_up_fails_for_all(file: MetadataFile) -> None:
    def give_up(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR ROLLBACK INTO item_row VALUES (1)")

    file.change(insert(1))
    with ThreadPoolExecutor(3) as pool:
        futures = while_busy(file, pool, [insert(2), give_up])
        assert {type(future.exception(PATIENCE)) for future in futures} <= {Refused, type(None)}
        assert isinstance(futures[1].exception(), Refused)
        kept = {1} | ({2} if futures[0].exception() is None else set())
    assert items(file) == kept
    file.change(insert(3))
    assert items(file) == {*kept, 3}


def test_another_epoch_fences_every_change_and_writes_nothing(file: MetadataFile, path: Path) -> None:
    assert file.bump_epoch() == 1
    file.require_epoch(1)
    taker = MetadataFile.open(path, TABLES)
    assert taker.bump_epoch() == 2
    with pytest.raises(Fenced, match="epoch 2, this broker has 1"):
        file.require_epoch(1)
    with pytest.raises(Fenced, match="epoch 2, this broker has 1"):
        file.change(insert(1))
    assert items(taker) == set()
    taker.change(insert(2))
    assert items(taker) == {2}
    taker.close()


def test_an_epoch_is_never_given_twice(file: MetadataFile, path: Path) -> None:
    brokers = [MetadataFile.open(path, TABLES) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        given = sorted(pool.map(MetadataFile.bump_epoch, brokers))
    assert given == [1, 2, 3, 4]
    for broker in brokers:
        broker.close()


def test_threads_that_come_and_go_leave_no_open_files(file: MetadataFile) -> None:
    file.epoch()
    before = open_files()
    for _ in range(20):
        thread = threading.Thread(target=file.epoch)
        thread.start()
        thread.join()
    assert open_files() <= before


def test_close_settles_what_waits_and_refuses_what_comes_later(file: MetadataFile) -> None:
    with ThreadPoolExecutor(8) as pool:
        futures = while_busy(file, pool, [insert(i) for i in range(5)])
        closing = [pool.submit(file.close) for _ in range(2)]
        for done in closing:
            done.result(PATIENCE)
        assert {future.result(PATIENCE) for future in futures} == set(range(5))
    with pytest.raises(Unavailable, match="closed"):
        file.change(insert(9))
    with pytest.raises(Unavailable, match="closed"):
        file.epoch()
    again = MetadataFile.open(file.path, TABLES)
    assert items(again) == set(range(5))
    again.close()


def test_close_puts_the_log_into_the_file_however_many_have_read(path: Path) -> None:
    for number in range(40):
        file = create(path) if number == 0 else MetadataFile.open(path, TABLES)
        file.change(insert(number))
        items(file)  # leaves a connection that is closed beside the writer's
        file.close()
        assert not path.with_name(f"{path.name}-wal").exists(), number


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0])
def test_another_format_is_refused_untouched(path: Path, version: int) -> None:
    create(path).close()
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Unsupported, match=f"format {version}, this code reads {FORMAT_VERSION}"):
        MetadataFile.open(path, TABLES)
    assert path.read_bytes() == before


def test_a_foreign_file_is_refused_untouched(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    for content, said in ((path.read_bytes(), "application id 0x0"), (b"", "0x0"), (b"text " * 1000, "damaged")):
        path.write_bytes(content)
        with pytest.raises(Corrupt, match=said):
            MetadataFile.open(path, TABLES)
        assert path.read_bytes() == content
        assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_a_killed_writer_left_is_recovered(path: Path, tmp_path: Path) -> None:
    """The write-ahead log without the shared memory beside it, as a kill between two steps of SQLite leaves them."""
    left = create(path)
    left.change(insert(7))
    copy = tmp_path / "copy.sqlite"
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    left.close()
    assert Path(f"{copy}-wal").stat().st_size > 0
    found = MetadataFile.open(copy, TABLES)
    assert items(found) == {7}
    found.close()


def test_a_locked_file_is_not_called_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(path).close()
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    monkeypatch.setitem(connect.__kwdefaults__, "timeout", 0.05)  # of the look before the file is opened
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable, match="locked"):
        MetadataFile.open(path, TABLES)
    other.close()


def test_a_damaged_page_is_corruption(file: MetadataFile, path: Path) -> None:
    file.change(lambda c: c.executemany("INSERT INTO item_row VALUES (?)", [(i,) for i in range(5000)]))
    file.close()
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(byte ^ 0xFF for byte in data[4096:])
    path.write_bytes(data)
    damaged = path.read_bytes()
    with pytest.raises(Corrupt, match=r"metadata\.sqlite is damaged"):
        MetadataFile.open(path, TABLES)
    assert path.read_bytes() == damaged


def test_a_missing_file_is_named_and_not_made(path: Path) -> None:
    with pytest.raises(NotFound, match=r"metadata\.sqlite is missing"):
        MetadataFile.open(path, TABLES)
    assert not path.exists()


def test_create_never_replaces_a_file(file: MetadataFile, path: Path) -> None:
    file.change(insert(1))
    with pytest.raises(AlreadyExists, match=r"metadata\.sqlite"):
        create(path)
    assert items(file) == {1}
    assert not path.with_name("metadata.sqlite.new").exists()


def test_what_a_killed_create_left_is_cleared_away(path: Path) -> None:
    scratch = path.with_name("metadata.sqlite.new")
    scratch.write_bytes(b"half")
    create(path).close()
    os.link(path, scratch)  # killed between the link and the unlink
    MetadataFile.open(path, TABLES).close()
    assert not scratch.exists()
