"""Goal: a record of a batch is read as it was stored, or reported as damaged; never shorter. Method: records larger
than a row of the table, changed rows, and a child that kills itself at every statement of a change.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.database.record_tables import connect
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.compression import ZSTD, compress
from pyspark_ledger.ledger.metadata.delivery_records import DEAD, DeliveryRecord
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_chunks import ENTRY_BYTES_MAX
from pyspark_ledger.ledger.protocol.cursors import DeliveredRange

MiB = 1024 * 1024


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[Metadata]:
    made = Metadata.create(tmp_path / "metadata.sqlite", "s", "h", lambda: 1)
    made.create_ledger("log", "i", {}, exist_ok=False)
    yield made
    made.close()


def record(number: int, size: int) -> DeliveryRecord:
    """A record of about so many bytes, which no compression makes less."""
    skip = random.Random(number).randbytes(size)
    share = DeliveredRange(number, PositionRange(Position(1, 0), Position(1, 9)), skip, 7)
    return DeliveryRecord(number, Position(1, 9), [share])


def rows(path: Path) -> list[tuple[int, int, int]]:
    """Return the rows of the tables: record, chunk (-1: its row), bytes."""
    chunks = "SELECT record, chunk, length(body) FROM delivery_chunk_row"
    both = f"{chunks} UNION SELECT record, -1, length(body) FROM delivery_row"  # noqa: S608 — texts of ours
    with sqlite3.connect(path) as file:
        return sorted(file.execute(both).fetchall())


def change(path: Path, statement: str, *values: object) -> None:
    """Change a record as the program does, checksum included."""
    file = connect(path)
    assert file.execute(statement, values).rowcount == 1
    file.close()


@pytest.mark.parametrize("size", [0, 70_000, ENTRY_BYTES_MAX - 1000, ENTRY_BYTES_MAX, 3 * ENTRY_BYTES_MAX + 5])
def test_a_record_is_kept_in_rows_of_a_mebibyte(metadata: Metadata, tmp_path: Path, size: int) -> None:
    kept, path = record(1, size), tmp_path / "metadata.sqlite"
    metadata.deliveries.put("log", "c", kept, 0)
    assert metadata.deliveries.get("log", "c", 1) == metadata.deliveries.newest("log", "c") == kept
    chunks = [length for _, chunk, length in rows(path) if chunk >= 0]
    assert all(length <= ENTRY_BYTES_MAX for _, _, length in rows(path))
    assert len(chunks) == (-(-sum(chunks) // ENTRY_BYTES_MAX) if size >= ENTRY_BYTES_MAX else 0)
    metadata.deliveries.put("log", "c", record(1, 10), 0)
    assert [chunk for _, chunk, _ in rows(path)] == [-1], "the chunks of what is replaced are gone with it"


def test_chunks_go_with_their_record(metadata: Metadata, tmp_path: Path) -> None:
    path, large = tmp_path / "metadata.sqlite", 2 * MiB
    for number in (1, 2, 3):
        metadata.deliveries.put("log", "c", record(number, large), number - 1)
    assert {number for number, _, _ in rows(path)} == {2, 3}
    metadata.deliveries.put_dead("log", "c", record(9, large))
    assert metadata.deliveries.get("log", "c", DEAD) == record(9, large)
    metadata.deliveries.forget("log", "c", dead_only=True)
    assert {number for number, _, _ in rows(path)} == {2, 3}
    metadata.deliveries.put("log", "other", record(4, large), 0)
    metadata.deliveries.forget("log", "c")
    assert {number for number, _, _ in rows(path)} == {4}
    metadata.delete_ledger("log")
    assert rows(path) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM delivery_chunk_row WHERE chunk = 1", "states 3 chunks of"),
        ("DELETE FROM delivery_chunk_row WHERE chunk = 2", "2 of 2097152 bytes exist"),
        ("UPDATE delivery_chunk_row SET body = substr(body, 2) WHERE chunk = 0", "3 of 3000... bytes exist"),
        ("UPDATE delivery_chunk_row SET chunk = 7 WHERE chunk = 1", "states 3 chunks of"),
        ("UPDATE delivery_row SET body = '{\"numParts\":2}'", "begins like a footer and is not a footer"),
        ('UPDATE delivery_row SET body = \'{"numParts":2000000000,"length":2000000000}\'', "states 2000000000 chunks"),
        ("UPDATE delivery_row SET body = 'text'", "is damaged"),
        ("UPDATE delivery_row SET body = x'94'", "is damaged"),
        ("UPDATE delivery_row SET body = x''", "is damaged"),
        ("UPDATE delivery_row SET body = x'0000'", "is damaged"),
    ],
)
def test_chunks_that_are_not_all_there_are_damage(
    metadata: Metadata, tmp_path: Path, statement: str, said: str
) -> None:
    metadata.deliveries.put("log", "c", record(1, 3_000_000), 0)
    change(tmp_path / "metadata.sqlite", statement)
    with pytest.raises(Corrupt, match=said) as raised:
        metadata.deliveries.get("log", "c", 1)
    assert "record 1 of batches of cursor 'c' of 'log'" in raised.value.message


def test_a_record_in_one_row_of_any_size_is_read(metadata: Metadata, tmp_path: Path) -> None:
    """Records were kept so before they were cut."""
    kept = record(1, 3 * MiB)
    body = msgspec.msgpack.encode(kept)
    body = b"\0" + len(body).to_bytes(4, "big") + compress(ZSTD, body, level=1)
    assert len(body) > ENTRY_BYTES_MAX
    metadata.deliveries.put("log", "c", record(1, 10), 0)
    change(tmp_path / "metadata.sqlite", "UPDATE delivery_row SET body = ?", body)
    assert metadata.deliveries.get("log", "c", 1) == kept


def replace_record(path: Path, last: int) -> None:
    """Replace record 1 by record 2, and kill this process before statement `last` of that."""
    metadata, count, large = Metadata.open(path, lambda: 1), 0, record(2, 3_000_000)

    def before(statement: str) -> None:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    metadata._file._writer.set_trace_callback(before)
    metadata.deliveries.put("log", "c", large, 0)
    os._exit(0)


@pytest.mark.fault
def test_a_kill_leaves_the_former_record_or_the_new_one(tmp_path: Path) -> None:
    forked = multiprocessing.get_context("fork")
    for last in range(1, 100):
        path = tmp_path / f"{last}.sqlite"
        made = Metadata.create(path, "s", "h", lambda: 1)
        made.create_ledger("log", "i", {}, exist_ok=False)
        made.deliveries.put("log", "c", record(1, 2_000_000), 0)
        made.close()
        child = forked.Process(target=replace_record, args=(path, last))
        child.start()
        child.join(60)
        after = Metadata.open(path, lambda: 1)
        found = after.deliveries.newest("log", "c")
        after.close()
        if child.exitcode == 0:
            assert found == record(2, 3_000_000)
            assert last > 10, "statements are left out"
            return
        assert child.exitcode == -signal.SIGKILL
        assert found == record(1, 2_000_000)
    raise AssertionError("the change has no end")
