"""Goal: exactly the wanted rows of a version are read, and the last published segment is never overstated.

Method: real Delta tables, written as a publisher does. Deletion vectors, which only Databricks writes, are hand-made.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_ledger.ledger.errors import Corrupt, DataLoss, Refused, Unsupported
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.offload.table.limit_splitter import LimitSplitter
from pyspark_ledger.offload.table.rows import FileShare, LogRows, TablePart, read_table_part
from pyspark_ledger.offload.table.snapshot import TableSnapshot, open_table
from pyspark_ledger.offload.table.table_address import TableAddress
from streaming_examples.s3_server import SECRET_KEY, S3Server
from tests.rigs.table import BEGAN_MS, INCARNATION, NAME, application, publish, published

OTHER = "99999999-2222-3333-4444-555555555555"
TARGET = pa.schema([pa.field("n", pa.int64())])
ALL = PositionRange(EARLIEST, LATEST)


def segment(table: Path | str, ledger_id: int, first: int, entries: int = 4, rows: int = 5, **more: object) -> int:
    """Publish a segment of so many entries and rows. Return the number after its last row."""
    places = [(ledger_id, entry, row) for entry in range(entries) for row in range(rows)]
    end = first + len(places)
    incarnation = str(more.pop("incarnation", INCARNATION))
    columns = {"n": pa.array(range(first, end), pa.int64()), **more.pop("columns", {})}  # type: ignore[dict-item]
    publish(table, published(places, columns, incarnation=incarnation), ledger_id, incarnation=incarnation, **more)  # type: ignore[arg-type]
    return end


@pytest.fixture
def table(tmp_path: Path) -> Path:
    end, path = 0, tmp_path / "a täble #1"
    for ledger_id in (3, 5, 9):
        end = segment(path, ledger_id, end)
    return path


def opened(table: Path | str, version: int | None = None, s3: S3Options | None = None) -> TableSnapshot:
    return open_table(TableAddress.of(str(table), s3), version)


def numbers(
    snapshot: TableSnapshot,
    range_: PositionRange = ALL,
    incarnation: str = INCARNATION,
    shares: int = 1,
    target: pa.Schema = TARGET,
) -> list[int]:
    wanted = LogRows(incarnation, range_)
    files = LimitSplitter(snapshot).candidate_files(wanted)
    parts = [
        TablePart(snapshot.address, snapshot.version, tuple(FileShare(file, number, shares) for file in files), wanted)
        for number in range(shares)
    ]
    return sorted(n for part in parts for batch in read_table_part(part, target) for n in batch.column("n").to_pylist())


def test_table_version_says_how_far_it_is_and_is_not_changed_by_commits(table: Path) -> None:
    for version, newest in enumerate((3, 5, 9)):
        snapshot = opened(table, version)
        assert snapshot.published_up_to(INCARNATION, application()) == newest
        assert numbers(snapshot) == list(range(20 * (version + 1)))
    assert opened(table).published_up_to(OTHER, application(incarnation=OTHER)) == -1
    DeltaTable(str(table)).create_checkpoint()
    for commit in (table / "_delta_log").glob("*.json"):
        commit.unlink()
    assert opened(table).published_up_to(INCARNATION, application()) == 9
    assert opened(table).published_up_to(INCARNATION, "an application that the log forgot") == 9
    with pytest.raises(DataLoss, match=r"version 1 of table .* cannot be read any more"):
        opened(table, 1)


def test_ranges_and_incarnations_are_told_apart_in_compacted_files(table: Path) -> None:
    segment(table, 4, 1000, incarnation=OTHER)
    dice = random.Random(3)
    places = [(ledger, entry) for ledger in (3, 5, 9) for entry in range(4)]
    for _ in range(2):
        snapshot = opened(table)
        for _ in range(15):
            first, last = sorted(Position(dice.randint(2, 10), dice.randint(0, 5)) for _ in range(2))
            inside = [at for at, place in enumerate(places) if first <= Position(*place) < last]
            wanted = [5 * at + row for at in inside for row in range(5)]
            assert numbers(snapshot, PositionRange(first, last), shares=dice.randint(1, 3)) == wanted
        assert numbers(snapshot, incarnation=OTHER) == list(range(1000, 1020))
        DeltaTable(str(table)).optimize.z_order(["n"])


def test_quotas_are_cut_at_entries_in_the_order_of_positions(table: Path) -> None:
    for _ in range(2):
        cut = LimitSplitter(opened(table))
        for rows in (1, 5, 9, 10, 20, 21, 59):
            reached = cut.split(LogRows(INCARNATION, ALL), rows, 2**62)
            entry = max(rows // 5, 1) - 1
            assert (reached.rows, reached.whole) == (5 * (entry + 1), False)
            assert reached.end == Position((3, 5, 9)[entry // 4], entry % 4).next()
        assert cut.split(LogRows(INCARNATION, ALL), 60, 2**62).whole
        assert cut.split(LogRows(INCARNATION, ALL), 2**62, 1).rows == 5
        half = PositionRange(Position(5, 2), Position(9, 1))
        assert cut.split(LogRows(INCARNATION, half), 12, 2**62).end == Position(5, 4)
        assert cut.split(LogRows(INCARNATION, half), 15, 2**62) == cut.split(LogRows(INCARNATION, half), 99, 2**62)
        assert cut.find_time(LogRows(INCARNATION, ALL), BEGAN_MS + 5002) == Position(5, 2)
        assert cut.find_time(LogRows(INCARNATION, ALL), BEGAN_MS + 5004) == Position(9, 0)
        assert cut.find_time(LogRows(INCARNATION, ALL), BEGAN_MS + 9999) is None
        DeltaTable(str(table)).optimize.compact()


def test_columns_missing_in_a_file_are_null_and_partition_values_the_logs(table: Path) -> None:
    segment(table, 11, 60, columns={"more": pa.array([1.5] * 20)})
    target = pa.schema(
        [*TARGET, pa.field("more", pa.float64()), pa.field("__publishDate", pa.date32()), pa.field("__key", pa.null())]
    )
    wanted = LogRows(INCARNATION, PositionRange(Position(9, 3), Position(11, 1)))
    snapshot = opened(table)
    part = TablePart(
        snapshot.address,
        snapshot.version,
        tuple(map(FileShare, LimitSplitter(snapshot).candidate_files(wanted))),
        wanted,
    )
    rows = pa.Table.from_batches(read_table_part(part, target)).sort_by("n").to_pylist()
    assert [row["more"] for row in rows] == [None] * 5 + [1.5] * 5
    assert {str(row["__publishDate"]) for row in rows} == {"2023-11-14"}
    segment(table, 12, 1000)
    with pytest.raises(Refused, match=r"column 'n' of .* is int64 and cannot become int8"):
        numbers(opened(table), target=pa.schema([pa.field("n", pa.int8())]))


def test_names_of_any_kind_are_read(tmp_path: Path) -> None:
    values = ["a b/c%", "=ü", "x:y#", None]
    columns = {"n": pa.array(range(4), pa.int64()), "k": pa.array(values)}
    rows = published([(3, entry, 0) for entry in range(4)], columns)
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["k"])
    snapshot, wanted = opened(tmp_path / "t"), LogRows(INCARNATION, ALL)
    part = TablePart(
        snapshot.address, 0, tuple(map(FileShare, LimitSplitter(snapshot).candidate_files(wanted))), wanted
    )
    target = pa.schema([*TARGET, pa.field("k", pa.string())])
    assert {row["n"]: row["k"] for batch in read_table_part(part, target) for row in batch.to_pylist()} == dict(
        enumerate(values)
    )
    with pytest.raises(Unsupported, match="has a '%' in its path"):
        opened(tmp_path / "per%cent")


def test_rows_that_were_deleted_are_not_read(table: Path) -> None:
    deleted = [0, 7, 19]
    log = table / "_delta_log"
    commit = json.loads(next(line for line in (log / f"{1:020}.json").read_text().splitlines() if '"add"' in line))
    vector = _deletion_vector(deleted)
    add = {**commit["add"], "deletionVector": vector}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    lines = [
        {"commitInfo": {"timestamp": 0, "operation": "DELETE"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": add["path"], "deletionTimestamp": 0, "dataChange": True}},
        {"add": add},
    ]
    (log / f"{3:020}.json").write_text("\n".join(map(json.dumps, lines)))
    snapshot = opened(table)
    left = [n for n in range(60) if n - 20 not in deleted]
    assert numbers(snapshot) == left
    assert numbers(snapshot, PositionRange(Position(5, 1), Position(9, 1)), shares=2) == [
        n for n in left if 25 <= n < 45
    ]
    assert LimitSplitter(snapshot).split(LogRows(INCARNATION, ALL), 28, 2**62).rows == 28
    assert snapshot.published_up_to(INCARNATION, application()) == 9


def _deletion_vector(rows: list[int]) -> dict[str, object]:
    """Return an inline vector: z85 of magic and one 32-bit bitmap with one array container."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<IqI", 1681511377, 1, 0) + bitmap
    data += b"\0" * (-len(data) % 4)
    b85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(data).decode().translate(str.maketrans(b85, z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


def test_a_table_that_cannot_be_read_right_is_refused(table: Path) -> None:
    for feature, said in (("columnMapping", "renamed or dropped"), ("fromTheFuture", "fromTheFuture")):
        features = {"readerFeatures": [feature], "writerFeatures": [feature]}
        protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
        commit = table / "_delta_log" / f"{3:020}.json"
        commit.write_text(json.dumps(protocol))
        with pytest.raises(Unsupported, match=said):
            opened(table)
        commit.unlink()
    rows = published([(20, 0, 0)], {"n": pa.array([1], pa.int64())})
    place = rows.schema.get_field_index("__position")
    publish(table, rows.set_column(place, "__position", pa.nulls(1, rows.schema.field(place).type)), 20)
    with pytest.raises(Corrupt, match="a published row has no __position"):
        numbers(opened(table))


def test_a_table_in_a_bucket_is_read_with_the_credentials_of_every_bucket(s3_server: S3Server, bucket: str) -> None:
    provider = "streaming_examples.s3_server:credentials"
    s3 = S3Options(endpoint=s3_server.endpoint, credential_provider=provider)
    storage = s3.object_store_options(bucket)
    segment(bucket, 3, 0, storage=storage)
    segment(bucket, 4, 20, storage=storage)
    snapshot = opened(bucket.replace("s3://", "s3a://"), s3=s3)
    assert snapshot.published_up_to(INCARNATION, application(NAME)) == 4
    assert numbers(snapshot, PositionRange(Position(3, 1), Position(4, 2))) == list(range(5, 30))
    assert SECRET_KEY not in repr(snapshot.address)
