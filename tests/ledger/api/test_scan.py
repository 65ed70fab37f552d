"""Goal: a scan gives each consumer of Arrow the rows, the columns and the errors of a ledger. Method: a broker, and
DuckDB, Polars and pyarrow as consumers."""

from __future__ import annotations

import gc
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client import append_transport
from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Outdated, Refused, Unavailable
from pyspark_ledger.ledger.message import arrow_payload
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, ListLedgers
from pyspark_ledger.ledger.rows.message_groups import MESSAGES
from pyspark_ledger.offload.home_view import open_read_only

ROWS = 3_000
MIB = 1024 * 1024


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {"id": pa.array(numbers, pa.int64()), "item": [("tea", "salt")[n % 2] for n in numbers], "price": [1.5] * rows}
    )


@pytest.fixture
def orders(store: LedgerStore) -> Ledger:
    """A ledger of three entries with a thousand rows each."""
    ledger = store.ledger("orders")
    for first in range(0, ROWS, 1_000):
        ledger.append(table(first, 1_000))
    return ledger


def test_duckdb_groups_rows_and_scans_again_in_one_line(orders: Ledger) -> None:
    scan = orders.scan()  # noqa: F841  # DuckDB finds the variable
    query = "select item, sum(id), count(*) from scan group by item order by item"
    for _ in range(2):
        assert duckdb.sql(query).fetchall() == [("salt", 2_250_000, 1_500), ("tea", 2_248_500, 1_500)]
    orders.append(table(ROWS, 10))
    assert duckdb.sql("select count(*), max(id) from scan").fetchall() == [(ROWS + 10, ROWS + 9)]
    joined = "select count(*) from scan a join scan b using (id) where a.id >= 10"
    assert duckdb.sql(joined).fetchall() == [(ROWS,)], "two streams of one scan in one query"


def test_polars_collects_a_lazy_frame_again(orders: Ledger) -> None:
    frame = orders.scan().polars()
    for rows in (ROWS, ROWS + 10):
        by_item = frame.group_by("item").agg(pl.col("id").count()).collect()
        assert dict(by_item.rows()) == {"tea": rows // 2, "salt": rows // 2}
        assert frame.select(pl.len()).collect().item() == rows
        orders.append(table(rows, 10))
    assert frame.filter(pl.col("id") == 1_500).select("price", "id").collect().rows() == [(1.5, 1_500)]
    assert frame.head(1_001).collect()["id"].to_list() == list(range(1_001))
    assert pl.DataFrame(orders.scan(["id"])).columns == ["id"]


def test_polars_decodes_the_columns_of_its_query_only(orders: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = watch_columns(monkeypatch)
    assert orders.scan().polars().select("price").sum().collect().item() == 1.5 * ROWS
    assert decoded == {"price"}


def test_pyarrow_takes_a_scan_as_reader_table_and_dataset(orders: Ledger, tmp_path: Path) -> None:
    scan = orders.scan()
    assert pa.table(scan).equals(orders.read().combine_chunks())
    assert scan.table().equals(orders.read())
    assert pa.RecordBatchReader.from_stream(scan).schema == scan.schema == orders.schema()
    assert ds.Scanner.from_batches(scan.reader()).count_rows() == ROWS
    ds.write_dataset(scan.reader(), tmp_path / "out", format="parquet")
    assert ds.dataset(tmp_path / "out").count_rows() == ROWS
    narrow = pa.schema([("id", pa.int32()), ("item", pa.string()), ("price", pa.float32())])
    assert pa.RecordBatchReader.from_stream(scan, narrow).read_all().schema == narrow


def test_pandas_takes_a_scan_in_one_line(orders: Ledger) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: make test-connect")
    for frame in (pandas.DataFrame.from_arrow(orders.scan()), orders.scan().table().to_pandas()):
        assert (frame.shape, frame["id"].sum()) == ((ROWS, 3), sum(range(ROWS)))


def watch_columns(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the columns that Arrow decodes from now on."""
    names: set[str] = set()
    decode = arrow_payload._decoded

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        names.update(batch.schema.names)
        return decode(batch)

    monkeypatch.setattr(arrow_payload, "_decoded", decoded)
    return names


def test_only_the_named_columns_are_decoded_in_their_order(orders: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = watch_columns(monkeypatch)
    found = orders.scan(["price", "id"]).table()
    assert decoded == {"id", "price"}
    assert found.equals(orders.read().select(["price", "id"]))


def test_metadata_columns_are_read_on_request_for_rows(orders: Ledger) -> None:
    found = orders.scan(["__position", "id", "__topic"]).table()
    assert found.schema.names == ["__position", "id", "__topic"]
    places = [(at["ledgerId"], at["entryId"], at["batchIndex"]) for at in found["__position"].to_pylist()]
    assert places[998:1_002] == [(0, 0, 998), (0, 0, 999), (0, 1, 0), (0, 1, 1)]
    only = orders.scan(["__publishTime"]).table()
    assert (only.num_rows, only["__publishTime"].null_count) == (ROWS, 0)


def test_bounds_select_entries_by_position_and_by_time(orders: Ledger) -> None:
    def ids(**bounds: Any) -> list[int]:
        return orders.scan(["id"], **bounds).table()["id"].to_pylist()

    start = orders.end().start
    second, third = start.next(), start.next().next()
    assert ids(start=second) == list(range(1_000, 3_000))
    assert ids(start=second, end=third) == list(range(1_000, 2_000))
    assert ids(end=LATEST) == list(range(3_000))
    assert ids(start=LATEST) == ids(end=EARLIEST) == ids(start=third, end=third) == []
    assert ids(since="2020-01-01", end=second) == list(range(1_000))
    times = orders.scan(["__publishTime"]).table()["__publishTime"]
    until = int(times[-1].as_py().timestamp() * 1000) + 60_000
    assert ids(since=0, until=until) == list(range(3_000))
    assert ids(since=until) == ids(until=datetime(2020, 1, 1, tzinfo=UTC)) == []


def test_wrong_arguments_are_refused_and_name_the_value(orders: Ledger) -> None:
    for wrong, text in (
        ({"columns": "id"}, "columns is 'id', expected a list of names"),
        ({"columns": 7}, "columns is 7, expected"),
        ({"columns": ["id", 7]}, "columns has 7, expected a name"),
        ({"columns": ["id", "id"]}, "columns names 'id' 2 times"),
        ({"columns": []}, "columns is empty"),
        ({"start": 5}, "start is 5, expected a position"),
        ({"end": "1:0"}, "end is '1:0', expected a position"),
        ({"since": "yesterday"}, "since is 'yesterday', expected milliseconds"),
        ({"until": 1.5}, "until is 1.5, expected milliseconds"),
        ({"start": Position(0, 1), "since": 0}, "start is 0:1 and since is 0, expected one of them"),
        ({"end": Position(0, 1), "until": 0}, "end is 0:1 and until is 0, expected one of them"),
        ({"start": Position(0, 2), "end": Position(0, 1)}, "'orders' begins at 0:2 and ends before it, at 0:1"),
        ({"since": 7, "until": 6}, "'orders' begins at 7 and ends before it, at 6"),
    ):
        with pytest.raises(Refused, match=text):
            orders.scan(**wrong)  # type: ignore[arg-type]


def test_an_unknown_column_is_refused_with_the_nearest_name(orders: Ledger) -> None:
    with pytest.raises(Refused, match=r"columns names 'itme', but ledger 'orders' has no such column.*mean 'item'"):
        orders.scan(["id", "itme"]).schema  # noqa: B018
    with pytest.raises(Refused, match=r"'quantum'.*The columns are "):
        orders.scan(["quantum"]).table()


def test_a_scan_asks_nothing_until_it_is_used(store: LedgerStore) -> None:
    scan = store.ledger("later").scan(["id"], since=5)
    assert repr(scan) == "Scan('later', columns=['id'], since=5)"
    with pytest.raises(NotFound, match="'later'"):
        scan.table()
    store.ledger("later").append([{"id": 1}])
    assert scan.table().to_pylist() == [{"id": 1}], "the failure is not kept"


def test_columns_that_are_added_later_are_left_out(store: LedgerStore) -> None:
    notes = store.ledger("notes")
    notes.append([{"id": 1, "note": None}])
    scan = notes.scan()
    assert scan.schema.field("note").type == pa.null()
    notes.append([{"id": 2, "note": "gift"}])
    with pytest.raises(Outdated, match=r"column 'note' .* is string, but it was null .*Make the scan again"):
        scan.table()
    assert notes.scan().table()["note"].to_pylist() == [None, "gift"]


def test_a_ledger_that_was_created_again_is_an_error(store: LedgerStore, orders: Ledger) -> None:
    scan = orders.scan()
    assert scan.table().num_rows == ROWS
    store.delete("orders")
    with pytest.raises(NotFound, match="there is no ledger 'orders'"):
        scan.table()
    orders.append([{"other": 1}])
    with pytest.raises(DataLoss, match="'orders' was deleted and created again"):
        scan.table()
    assert orders.scan().table().to_pylist() == [{"other": 1}]


def test_messages_have_value_and_metadata_columns(store: LedgerStore) -> None:
    clicks = store.ledger("clicks")
    with clicks.producer() as producer:
        for number in range(100):
            producer.send(b"%d" % number, key=f"k{number % 3}")
    assert clicks.scan().schema == MESSAGES
    assert clicks.scan().table().equals(clicks.read())
    some = clicks.scan(["__key", "value"]).table()
    assert some.equals(clicks.read().select(["__key", "value"]))
    assert store.create("empty").scan().table().schema == MESSAGES
    keys = clicks.scan(["__key"])  # noqa: F841  # DuckDB finds the variable
    assert duckdb.sql("select __key, count(*) from keys group by 1 order by 1").fetchall()[0] == ("k0", 34)


def test_a_partitioned_ledger_is_scanned_as_a_whole(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 3)
    clicks.append([{"n": 0, "note": None}])
    for number in range(1, 7):
        clicks.append([{"n": number, "note": "x"}])
    scan = clicks.scan()
    assert scan.schema == clicks.schema()
    assert sorted(scan.table()["n"].to_pylist()) == list(range(7))
    assert clicks.scan(["note"]).table()["note"].null_count == 1
    assert clicks.scan(since=0).table().num_rows == 7
    for bounds in ({"start": Position(0, 0)}, {"end": Position(0, 0)}):
        with pytest.raises(Refused, match="'clicks' was requested, but this ledger has partitions"):
            clicks.scan(**bounds).table()  # type: ignore[arg-type]
    clicks.increase_partitions(4)
    assert scan.table().num_rows == 7


def test_a_read_only_store_scans_the_same_rows(store: LedgerStore, orders: Ledger) -> None:
    scan = open_read_only(store.location).ledger("orders").scan(["id", "__position"])
    assert scan.table().equals(orders.scan(["id", "__position"]).table())
    assert scan.polars().select(pl.col("id").max()).collect().item() == ROWS - 1
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(scan)


def test_a_scan_is_pickled_with_its_columns_and_bounds(orders: Ledger) -> None:
    scan = orders.scan(["id"], start=orders.end().start.next())
    other = pickle.loads(pickle.dumps(scan))  # noqa: S301  # of this test
    assert repr(other) == repr(scan)
    assert other.table().equals(scan.table())


def test_threads_open_one_scan_at_the_same_time(orders: Ledger) -> None:
    scan, together = orders.scan(), threading.Barrier(8)

    def read(_: int) -> pa.Table:
        together.wait(30)
        return scan.table()

    with ThreadPoolExecutor(8) as pool:
        assert all(found.equals(orders.read()) for found in pool.map(read, range(8)))


def test_a_stream_keeps_the_end_of_its_opening(orders: Ledger) -> None:
    begun, late = orders.scan().batches(), orders.scan().reader()
    orders.append(table(ROWS, 10))
    assert sum(batch.num_rows for batch in begun) == late.read_all().num_rows == ROWS
    assert orders.scan().table().num_rows == ROWS + 10


def test_columns_are_aligned_and_keep_no_block_in_memory(store: LedgerStore) -> None:
    noise = np.random.default_rng(0).integers(0, 2**62, 100_000)
    store.ledger("noise").append(pa.table({"a": noise, "b": noise[::-1].copy()}))
    batches = list(store.ledger("noise").scan(["b"]).batches())
    assert pa.Table.from_batches(batches)["b"].to_numpy().tolist() == noise[::-1].tolist()
    before = pa.total_allocated_bytes()
    assert {batch.column(0).buffers()[1].address % 64 for batch in batches} == {0}
    del batches
    assert before - pa.total_allocated_bytes() >= noise.nbytes, "Arrow's pool had the column, and no mapped file"


def test_a_stream_holds_a_few_entries_in_memory(store: LedgerStore) -> None:
    noise = np.random.default_rng(0)
    wide = store.ledger("wide")
    for _ in range(8):
        wide.append(pa.table({"n": noise.integers(0, 2**62, 512 * 1024)}))  # 4 MiB, which no encoding shrinks
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in wide.scan().reader():
        most = max(most, pa.total_allocated_bytes() - before)
        rows += batch.num_rows
    assert rows == 8 * 512 * 1024
    assert most <= 12 * MIB


def test_an_error_in_a_stream_reaches_each_consumer(store: LedgerStore, orders: Ledger, tmp_path: Path) -> None:
    orders.seal()
    copy = tmp_path / "copy"
    shutil.copytree(store.location, copy, ignore=shutil.ignore_patterns("*-shm"))
    scan = open_read_only(copy).ledger("orders").scan()
    assert scan.table().num_rows == ROWS
    for path in (copy / "ledgers").glob("*.ledger"):
        data = bytearray(path.read_bytes())
        end = len(data.rstrip(b"\0"))
        data[end - 2_000] ^= 0xFF
        path.write_bytes(data)
    text = r"\[LEDGER_CORRUPT\].*0:2"
    with pytest.raises(LedgerError, match=text):
        scan.table()
    with pytest.raises(LedgerError, match=text):
        scan.reader().read_all()
    with pytest.raises(pa.ArrowException, match=text):
        pa.table(scan)
    with pytest.raises(duckdb.Error, match=text):
        duckdb.sql("select count(id) from scan").fetchall()
    with pytest.raises(LedgerError, match=text):
        scan.polars().select(pl.col("id").max()).collect()


def test_a_dropped_stream_gives_its_place_at_the_broker_back(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is as on another host: the broker sends the blocks in one long call, and allows one such call."""
    monkeypatch.setattr(append_transport, "_same_user_socket", lambda _: None)
    monkeypatch.setattr(type(store.client), "same_host_token", lambda *_, **__: "")
    noise = np.random.default_rng(0).bytes(4 * MIB)
    wide = store.ledger("wide")
    for _ in range(8):
        wide.append([{"body": noise}])
    store.client.close()
    scan = wide.scan()
    for consume in (lambda reader: reader.read_next_batch(), lambda reader: next(iter(reader))):
        reader = scan.reader()
        assert consume(reader).num_rows == 1
        store.client.ask(ChangeSetting("maxConcurrentRequests", 1))
        with pytest.raises(Unavailable, match="this broker has 1 calls"):
            store.client.ask(ListLedgers(), deadline_ms=0)
        del reader
        gc.collect()
        assert store.client.ask(ListLedgers(), deadline_ms=30_000).names, "the call has ended"
        store.client.ask(ChangeSetting("maxConcurrentRequests", 100))
