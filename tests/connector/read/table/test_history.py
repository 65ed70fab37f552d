"""Goal: table and ledger are read as one result without missing or repeated rows, also while a publisher runs.

Method: readers called directly over a real broker and real Delta tables, without a JVM. The reference is a read of only
the ledger.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.rigs.published_history import append_pairs, as_set, place_of, publish_sealed, trim
from tests.rigs.scan import read_rows
from tests.rigs.table import publish, published


def sealing(api: LedgerStore, name: str = "orders", entries: int = 2) -> Ledger:
    """Create a ledger that rolls over after so many entries."""
    api.client.ask(CreateLedger(name, exist_ok=True, max_entries_per_ledger=entries))
    return api.ledger(name)


def numbers(store: Path, **options: str) -> list[int]:
    return sorted(row["n"] for row in read_rows(store, **options))


@pytest.mark.thorough
def test_a_read_is_the_logs_whatever_is_published_of_it(store: Path, api: LedgerStore, table: Path) -> None:
    ledger = sealing(api)
    append_pairs(ledger, 0, 9)
    alone = as_set(read_rows(store, includeMetadata="true"))
    assert sum(alone.values()) == 18
    publish_sealed(store, table, most=1)
    for _ in range(2):
        assert as_set(read_rows(store, includeMetadata="true", history=str(table))) == alone
        publish_sealed(store, table, most=2)
    trim(store)
    assert numbers(store) == [16, 17]
    assert as_set(read_rows(store, includeMetadata="true", history=str(table))) == alone
    assert numbers(store, columns="n", history=str(table), minPartitionBytes="1", targetPartitionBytes="1") == list(
        range(18)
    )
    append_pairs(ledger, 9, 10)
    assert numbers(store, history=str(table)) == list(range(20))
    assert {row["__key"] for row in read_rows(store, columns="__key", history=str(table))} == {None}


@pytest.mark.thorough
def test_any_range_is_that_of_the_log(store: Path, api: LedgerStore, table: Path) -> None:
    ledger = sealing(api, entries=3)
    append_pairs(ledger, 0, 20)
    rows = read_rows(store, includeMetadata="true")
    places = sorted({place_of(row) for row in rows})
    publish_sealed(store, table)
    trim(store)
    dice = random.Random(9)
    for _ in range(12):
        first, last = sorted(dice.sample(places, 2))
        edges = {"startingPosition": "{}:{}".format(*first), "endingPosition": "{}:{}".format(*last)}
        wanted = [row for row in rows if first <= place_of(row) < last]
        found = read_rows(store, includeMetadata="true", history=str(table), **edges)
        assert as_set(found) == as_set(wanted), edges
    since = rows[9]["__publishTime"]
    first = min(place_of(row) for row in rows if row["__publishTime"] >= since)
    wanted = [row["n"] for row in rows if place_of(row) >= first]
    at = str(round(since.timestamp() * 1000))
    assert numbers(store, history=str(table), startingTimestamp=at) == sorted(wanted)
    rest = [row["n"] for row in rows if place_of(row) < first]
    assert numbers(store, history=str(table), endingTimestamp=at) == sorted(rest)
    with pytest.raises(DataLoss, match=r"'endingPosition' is 9999:0, ledger .* ends at"):
        read_rows(store, history=str(table), endingPosition="9999:0")


@pytest.mark.fault
def test_readers_see_every_row_once_while_a_publisher_runs(store: Path, api: LedgerStore, table: Path) -> None:
    ledger = sealing(api)
    append_pairs(ledger, 0, 4)
    publish_sealed(store, table)
    failed: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            own = connect(store).ledger("orders")
            for number in range(4, 40):
                append_pairs(own, number, number + 1)
                if number % 3 == 0:
                    publish_sealed(store, table, most=1 + number % 2)
        except BaseException as error:  # noqa: BLE001 — raised again in the test's thread
            failed.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    rounds = 0
    while not done.is_set() or not rounds:
        found = numbers(store, history=str(table))
        assert found == list(range(len(found)))
        rounds += 1
    writer.join()
    assert not failed
    assert numbers(store, history=str(table)) == list(range(80))


def test_a_partitioned_ledger_is_read_by_partition(store: Path, api: LedgerStore, table: Path) -> None:
    api.client.ask(CreateLedger("clicks", partitions=2, max_entries_per_ledger=1))
    for number in range(6):
        part = api.ledger(f"clicks-partition-{number % 2}")
        part.append(pa.table({"n": pa.array([number], pa.int64())}))
    alone = as_set(read_rows(store, "clicks", includeMetadata="true"))
    assert sum(alone.values()) == 6
    publish_sealed(store, table, "clicks-partition-1")
    assert as_set(read_rows(store, "clicks", includeMetadata="true", history=str(table))) == alone
    publish_sealed(store, table, "clicks-partition-0", most=1)
    trim(store, "clicks-partition-1")
    DeltaTable(str(table)).optimize.compact()
    assert as_set(read_rows(store, "clicks", includeMetadata="true", history=str(table))) == alone


def test_rows_of_another_life_of_the_ledger_are_not_read(store: Path, api: LedgerStore, table: Path) -> None:
    append_pairs(sealing(api), 0, 5)
    publish_sealed(store, table)
    api.delete("orders")
    ledger = sealing(api)
    append_pairs(ledger, 100, 105)
    assert numbers(store, history=str(table)) == list(range(200, 210))
    trim(store)
    with pytest.raises(Refused, match=r"has no rows of ledger .*/orders, incarnation .* the log begins at"):
        read_rows(store, history=str(table))
    append_pairs(ledger, 105, 109)
    publish_sealed(store, table)
    trim(store)
    assert numbers(store, history=str(table)) == list(range(208, 218))


def test_columns_grow_and_types_do_not_change(store: Path, api: LedgerStore, table: Path) -> None:
    ledger = sealing(api)
    append_pairs(ledger, 0, 4)
    publish_sealed(store, table)
    trim(store)
    columns = StructType().add("n", LongType()).add("s", StringType()).add("more", DoubleType())
    writer = LedgerSource({"path": "orders", "store": str(store), "mergeSchema": "true"}, "0").batch_writer(
        columns, overwrite=False
    )
    more = pa.RecordBatch.from_pydict({"n": pa.array([8], pa.int64()), "s": ["x"], "more": pa.array([1.5])})
    writer.commit([writer.write(iter([more]))])
    found = sorted(read_rows(store, history=str(table)), key=lambda row: row["n"])
    assert [row["more"] for row in found] == [None] * 8 + [1.5]
    assert set(found[0]) == {"n", "s", "more"}
    assert [row["more"] for row in read_rows(store, columns="more", history=str(table))] == [None] * 8 + [1.5]
    told = ledger.describe()
    other = table.parent / "other"
    rows = published([(told.segments[0].ledger_id, 0, 0)], {"n": pa.array(["one"])}, incarnation=told.incarnation)
    publish(other, rows, 0, incarnation=told.incarnation)
    with pytest.raises(Refused, match=r"column 'n' is string in version 0 of table .* and bigint in ledger"):
        read_rows(store, history=str(other))
    strange = table.parent / "strange"
    publish(strange, rows.rename_columns([*rows.column_names[:-1], "k"]), 0, incarnation=told.incarnation)
    with pytest.raises(Refused, match=r"has none of the columns of ledger '.*/orders': n, s, more"):
        read_rows(store, history=str(strange))


def test_a_value_of_the_table_is_not_null_in_a_read_without_its_type(
    store: Path, api: LedgerStore, table: Path
) -> None:
    ledger = sealing(api, entries=1)
    for number, note in enumerate([None, None, "gift", None]):
        ledger.append([{"n": number, "note": note}])
        if number == 1:
            source = LedgerSource({"path": "orders", "store": str(store), "history": str(table)}, "0")
            publish_sealed(store, table, most=1)
            planned = source.schema()
            stale = source.batch_reader(planned)
    publish_sealed(store, table)
    trim(store)
    found = sorted(read_rows(store, history=str(table)), key=lambda row: row["n"])
    assert [row["note"] for row in found] == [None, None, "gift", None]
    with pytest.raises(Refused, match=r"'note' .* is string, but it was null .*Start again"):
        [batch for part in stale.partitions() for batch in stale.read(part)]
    with pytest.raises(Refused, match=r"is string, the read was planned with void. Call load"):
        source.batch_reader(planned)


def test_what_is_in_neither_place_is_a_loss(store: Path, api: LedgerStore, table: Path) -> None:
    ledger = sealing(api)
    append_pairs(ledger, 0, 9)
    publish_sealed(store, table, most=2)
    trim(store)
    with pytest.raises(DataLoss, match=r"ledger 'orders' has lost \[.*retention deleted them"):
        read_rows(store, history=str(table))
    assert numbers(store, history=str(table), failOnDataLoss="false") == [*range(8), 16, 17]
    for part in table.glob("__publishDate=*/*.parquet"):
        part.unlink()
        break
    with pytest.raises(DataLoss, match=r"of version 1 of table .* is gone: VACUUM"):
        read_rows(store, history=str(table), failOnDataLoss="false")


def test_a_table_that_was_changed_by_others_is_refused(store: Path, api: LedgerStore, table: Path) -> None:
    append_pairs(sealing(api), 0, 6)
    publish_sealed(store, table)
    DeltaTable(str(table)).optimize.compact()
    assert numbers(store, history=str(table)) == list(range(12))
    DeltaTable(str(table)).restore(0)
    with pytest.raises(Refused, match=r"changed by RESTORE in version \d+ after segment \d+ was published"):
        read_rows(store, history=str(table))
    other = table.parent / "other"
    publish_sealed(store, other)
    write_deltalake(str(other), DeltaTable(str(other)).to_pyarrow_table().slice(0, 1), mode="overwrite")
    with pytest.raises(Refused, match=r"changed by WRITE \(overwrite\) in version"):
        read_rows(store, history=str(other))


def test_a_change_while_a_publisher_worked_is_refused_until_one_has_looked(
    store: Path, api: LedgerStore, table: Path
) -> None:
    append_pairs(sealing(api), 0, 9)
    publish_sealed(store, table, most=2, after=-1)
    DeltaTable(str(table)).restore(0)  # version 2, written without the publisher
    publish_sealed(store, table, most=1, after=-1)
    with pytest.raises(Refused, match=r"changed by RESTORE in version 2 after segment \d+ was published"):
        read_rows(store, history=str(table))
    publish_sealed(store, table, most=1, after=3)  # with the option that accepts the change
    assert numbers(store, history=str(table)) == [n for n in range(18) if n not in range(4, 8)]


def test_what_cannot_be_read_says_what_to_do(
    store: Path, api: LedgerStore, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_pairs(sealing(api), 0, 3)
    with pytest.raises(NotFound, match="there is no Delta table at"):
        read_rows(store, history=str(table))
    with pytest.raises(Refused, match=r"'history' is 'main.default.orders'.*history_of\(spark"):
        read_rows(store, history="main.default.orders")
    write_deltalake(str(table), pa.table({"n": [1]}))
    with pytest.raises(Refused, match=r"has no column '__position' or '__incarnation'"):
        read_rows(store, history=str(table))
    for options, said in (
        ({"table": "segments"}, "option 'table' has no meaning with 'history'"),
        ({"offload": "/tmp"}, "option 'store' has no meaning with 'offload'"),  # noqa: S108 — never opened
    ):
        with pytest.raises(Refused, match=said):
            read_rows(store, history=str(table), **options)
    with pytest.raises(Refused, match="option 'ledgers' has no meaning with 'history'"):
        LedgerSource({"ledgers": "a,b", "store": str(store), "history": str(table)}, "0")
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(Refused, match=r"needs deltalake.*pip install 'pyspark-ledger\[history\]'"):
        read_rows(store, history=str(table))
