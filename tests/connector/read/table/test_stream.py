"""Goal: a stream from a table to the ledger loses and repeats no row, wherever it is stopped.

Method: Spark's calls over a real broker and real Delta tables, with offsets as JSON text. A new reader plans every
batch again, as a new process does.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import DataLoss, Refused, Unsupported
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.rigs.published_history import append_pairs, publish_sealed, trim
from tests.rigs.stream import rows, text

ALL, SOME = ReadAllAvailable(), ReadMaxRows(1)


@pytest.fixture
def orders(store: Path) -> Ledger:
    """Ledger with eleven entries of two rows each, and two entries per segment."""
    api = connect(store)
    api.client.ask(CreateLedger("orders", max_entries_per_ledger=2))
    append_pairs(api.ledger("orders"), 0, 11)
    return api.ledger("orders")


def reader(store: Path, table: Path, **options: str) -> LedgerStreamReader:
    source = LedgerSource({"path": "orders", "store": str(store), "history": str(table), **options}, "0.1.0")
    return source.stream_reader(source.schema())


def test_a_backfill_goes_on_in_the_log_and_stops_nowhere_between(store: Path, orders: Ledger, table: Path) -> None:
    publish_sealed(store, table, most=3)
    stream = reader(store, table)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    assert end["history"]["version"] == 2
    assert end["v"] == 2
    assert sorted(rows(stream, start, end)) == list(range(22))
    assert sorted(rows(reader(store, table), start, end)) == list(range(22))
    assert json.dumps(stream.latestOffset(end, ALL)) == json.dumps(end)
    append_pairs(orders, 11, 13)
    after = text(stream.latestOffset(end, ALL))
    assert after["history"] == {"id": end["history"]["id"]}
    assert rows(stream, end, after) == [22, 23, 24, 25]
    assert stream.partitions(end, end) == []
    lossy, other = reader(store, table, failOnDataLoss="false"), {"store": {"at": "/elsewhere", "id": "0f"}}
    for offset in (end, after):
        with pytest.raises(
            Refused, match=f"is of store 0f at /elsewhere, .* store {orders.client.store_id} at {store}"
        ):
            lossy.latestOffset({**offset, **other}, ALL)
        with pytest.raises(Refused, match="is of store 0f at /elsewhere"):
            lossy.partitions(start, {**offset, **other})
    stream.stop()


@pytest.mark.thorough
def test_limits_split_a_backfill_at_entries_and_batches_are_repeatable(
    store: Path, orders: Ledger, table: Path
) -> None:
    publish_sealed(store, table)
    trim(store)
    stream = reader(store, table, maxRowsPerTrigger="3")
    start, found, batches = text(stream.initialOffset()), [], 0
    while (end := text(stream.latestOffset(start, SOME))) != start:
        batch = rows(stream, start, end)
        assert sorted(rows(reader(store, table, maxRowsPerTrigger="3"), start, end)) == sorted(batch)
        assert len(batch) == 2
        ended = "all there was" if 21 in batch else "maxRowsPerTrigger"
        assert stream.reportLatestOffset()["batch"]["endedBy"] == ended
        start, found, batches = end, found + batch, batches + 1
    assert sorted(found) == list(range(22))
    assert batches == 11
    stream.stop()


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(4))
def test_a_stream_that_is_stopped_anywhere_reads_every_row_once(
    store: Path, orders: Ledger, table: Path, seed: int
) -> None:
    """Publishing, trimming of published segments, compaction and restarts in random order lose no row."""
    dice = random.Random(seed)
    publish_sealed(store, table, most=2)
    written, found = 11, []
    options = {"maxRowsPerTrigger": str(dice.randint(1, 9))}
    stream = reader(store, table, **options)
    start = text(stream.initialOffset())
    for _ in range(16):
        what = dice.choice(["write", "publish", "publish and trim", "compact", "restart", "read", "read"])
        if what == "write":
            append_pairs(orders, written, written + 3)
            written += 3
        elif what.startswith("publish"):
            publish_sealed(store, table, most=100 if "trim" in what else 1)
            if "trim" in what:
                trim(store)
        elif what == "compact":
            DeltaTable(str(table)).optimize.compact()
        elif what == "restart":
            stream = reader(store, table, **options)
            text(stream.initialOffset())
        end = text(stream.latestOffset(start, dice.choice([ALL, SOME])))
        if end != start:
            if dice.random() < 0.4:  # the batch fails, and another process runs it again
                stream = reader(store, table, **options)
            found += rows(stream, start, end)
            start = end
    while (end := text(stream.latestOffset(start, ALL))) != start:
        found += rows(stream, start, end)
        start = end
    assert sorted(found) == list(range(2 * written))
    stream.stop()


def test_what_the_log_let_go_of_while_nobody_read_is_in_the_table(store: Path, orders: Ledger, table: Path) -> None:
    publish_sealed(store, table, most=1)
    stream = reader(store, table)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    append_pairs(orders, 11, 16)
    after = text(
        stream.latestOffset(end, ALL)
    )  # planned from the ledger, whose entries are trimmed when the batch runs
    publish_sealed(store, table)
    trim(store)
    assert sorted(rows(reader(store, table), end, after)) == list(range(22, 32))
    again = reader(store, table)
    assert sorted(rows(again, end, text(again.latestOffset(end, ALL)))) == list(range(22, 32))
    append_pairs(orders, 16, 20)
    trim(store)  # not published
    with pytest.raises(DataLoss, match="retention deleted them"):
        reader(store, table).latestOffset(after, ALL)


def test_available_now_ends_where_the_log_ended(store: Path, orders: Ledger, table: Path) -> None:
    publish_sealed(store, table, most=4)
    stream = reader(store, table, maxRowsPerTrigger="5")
    stream.prepareForTriggerAvailableNow()
    start, found = text(stream.initialOffset()), []
    append_pairs(orders, 11, 15)
    publish_sealed(store, table)
    trim(store)
    while (end := text(stream.latestOffset(start, SOME))) != start:
        found += rows(stream, start, end)
        start = end
    assert sorted(found) == list(range(22))
    following = reader(store, table)
    assert sorted(rows(following, start, text(following.latestOffset(start, ALL)))) == list(range(22, 30))


def test_ends_and_starts_hold_in_the_table_too(store: Path, orders: Ledger, table: Path) -> None:
    publish_sealed(store, table)
    first = orders.describe().segments[0].ledger_id
    trim(store)
    stream = reader(store, table, startingPosition=f"{first}:1", endingPosition=f"{first + 1}:1")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    assert rows(stream, start, end) == [2, 3, 4, 5]
    assert text(stream.latestOffset(end, ALL)) == end
    tail = reader(store, table, startingPosition="latest")
    start = text(tail.initialOffset())
    append_pairs(orders, 11, 12)
    end = text(tail.latestOffset(start, ALL))
    assert rows(tail, start, end) == [22, 23]
    assert "version" not in end["history"]


def test_another_table_or_a_file_that_is_gone_is_an_error(store: Path, orders: Ledger, table: Path) -> None:
    publish_sealed(store, table)
    trim(store)
    stream = reader(store, table, maxRowsPerTrigger="4")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, SOME))
    parts = stream.partitions(start, end)
    copy = table.parent / "copy"
    shutil.copytree(table, copy)
    for file in table.glob("*/*.parquet"):
        file.unlink()
    with pytest.raises(DataLoss, match=r"file .* of version \d+ of table .* is gone: VACUUM"):
        list(stream.read(parts[0]))
    DeltaTable(str(copy)).optimize.compact()
    DeltaTable(str(copy)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    shutil.rmtree(table)
    copy.rename(table)
    again = reader(store, table)
    with pytest.raises(DataLoss, match=r"is gone: VACUUM"):
        rows(again, start, end)
    assert sorted(rows(again, end, text(again.latestOffset(end, ALL)))) == list(range(4, 22))
    assert sorted(rows(reader(store, table, failOnDataLoss="false"), start, end)) == [0, 1, 2, 3]
    known = end["history"]["id"]
    shutil.rmtree(table)
    publish_sealed_again(store, table)
    with pytest.raises(Refused, match=rf"its id is .*, the reader began with {known}"):
        reader(store, table).latestOffset(end, ALL)


def publish_sealed_again(store: Path, table: Path) -> None:
    append_pairs(connect(store).ledger("orders"), 11, 15)
    publish_sealed(store, table)


def test_options_and_checkpoints_that_do_not_go_together_are_refused(store: Path, orders: Ledger, table: Path) -> None:
    publish_sealed(store, table)
    for options in ({"subscription": "billing"}, {"subscription": "billing", "ackMode": "explicit"}):
        with pytest.raises(Refused, match="option 'subscription' has no meaning with 'history'"):
            reader(store, table, **options)
    stream = reader(store, table)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    source = LedgerSource({"path": "orders", "store": str(store)}, "0.1.0")
    plain = source.stream_reader(source.schema())
    with pytest.raises(Refused, match=r"reads version \d+ of table .*names no table"):
        plain.partitions(start, end)
    append_pairs(orders, 11, 12)
    after = text(plain.latestOffset(end, ALL))
    assert rows(plain, end, after) == [22, 23]
    with pytest.raises(Unsupported, match="version 1, this release reads versions 1 and 2"):
        stream.partitions(start, {**end, "v": 1})
