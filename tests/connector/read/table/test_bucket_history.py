"""Goal: table and bucket are read as one result without a broker, and options that need a broker are refused.

Method: readers called directly over real Delta tables, and over objects offloaded by a broker or a real Pulsar. The
reference is a read of only the ledger or only the bucket.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.bucket.scan import BucketRead
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.ledger.message.test_fixtures_pulsar import ROOT, TRANSACTIONS
from tests.rigs.bucket import kafka_batch
from tests.rigs.published_history import append_pairs, as_set, place_of, publish_sealed
from tests.rigs.scan import read_bucket, read_rows
from tests.rigs.table import publish


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def orders(store: Path, bucket: Path) -> Ledger:
    """Ledger with six segments of two entries with two rows each."""
    api: LedgerStore = connect(store)
    api.offload_to(str(bucket))
    api.client.ask(CreateLedger("orders", max_entries_per_ledger=2))
    append_pairs(api.ledger("orders"), 0, 12)
    return api.ledger("orders")


def joined(bucket: Path, table: Path, name: str = "orders", **options: str) -> list[dict[str, Any]]:
    return read_bucket(bucket, name, history=str(table), **options)


def lose(bucket: Path, ledger_id: int) -> None:
    """Delete the objects of a segment from the bucket."""
    gone = [path for path in bucket.iterdir() if re.search(rf"-ledger-{ledger_id}(\D.*)?$", path.name)]
    assert len(gone) >= 2
    for path in gone:
        path.unlink()


def test_table_and_bucket_are_the_log_however_far_each_is(
    store: Path, orders: Ledger, bucket: Path, table: Path
) -> None:
    alone = as_set(read_rows(store, includeMetadata="true"))
    publish_sealed(store, table, most=2)
    orders.offload(seal=True)
    for _ in range(3):
        assert as_set(joined(bucket, table, includeMetadata="true")) == alone
        publish_sealed(store, table, most=2)
    # Only in the table: published segments whose objects were deleted.
    segments = [one.ledger_id for one in orders.describe().segments if one.entries]
    for segment in segments[:3]:
        lose(bucket, segment)
    assert as_set(joined(bucket, table, includeMetadata="true")) == alone
    assert sum(as_set(read_bucket(bucket, "orders", columns="n")).values()) < sum(alone.values())
    # Segments that are published before they are offloaded.
    append_pairs(orders, 12, 15)
    orders.seal()
    assert len(publish_sealed(store, table)) == 2
    assert sorted(row["n"] for row in joined(bucket, table, columns="n")) == list(range(30))


def test_record_batches_of_kafka_after_the_table_are_unsupported(store: Path, bucket: Path, table: Path) -> None:
    api: LedgerStore = connect(store)
    api.offload_to(str(bucket))
    topic = api.ledger("topic")
    with topic.producer() as producer:
        producer.send(b"first").result()
    topic.seal()
    publish_sealed(store, table, "topic")
    with topic.client.producer(topic.name) as producer:
        producer.append(kafka_batch(1)).result()
    topic.offload(seal=True)
    for read in (lambda: read_rows(store, "topic", history=str(table)), lambda: joined(bucket, table, "topic")):
        with pytest.raises(Unsupported, match=r"stored by KoP with entry.format=kafka"):
            read()


def test_places_and_times_are_in_either(store: Path, orders: Ledger, bucket: Path, table: Path) -> None:
    orders.offload(seal=True)
    rows = read_rows(store, includeMetadata="true")
    publish_sealed(store, table, most=3)
    segments = [one.ledger_id for one in orders.describe().segments if one.close_ms]
    lose(bucket, segments[0])  # in the table only
    places = [(segments[0], 1), (segments[2], 1), (segments[4], 1)]
    for first, last in ((0, 1), (0, 2), (1, 2), (1, 1)):
        edges = {"startingPosition": "{}:{}".format(*places[first]), "endingPosition": "{}:{}".format(*places[last])}
        wanted = [row["n"] for row in rows if places[first] <= place_of(row) < places[last]]
        assert sorted(row["n"] for row in joined(bucket, table, columns="n", **edges)) == sorted(wanted), edges
    for row in (rows[2], rows[9], rows[-1]):
        at = str(round(row["__publishTime"].timestamp() * 1000))
        since = [one["n"] for one in rows if one["__publishTime"] >= row["__publishTime"]]
        assert set(since) <= {one["n"] for one in joined(bucket, table, columns="n", startingTimestamp=at)}
        before = {one["n"] for one in joined(bucket, table, columns="n", endingTimestamp=at)}
        assert len(before) + len(joined(bucket, table, columns="n", startingTimestamp=at)) == len(rows)
    with pytest.raises(DataLoss, match=r"'startingPosition' is 9999:0, .*, and version 2 of table .* does not have it"):
        joined(bucket, table, startingPosition="9999:0")


@pytest.mark.parametrize("folder", ["01-plain", TRANSACTIONS])
def test_a_real_pulsars_topic_of_which_the_first_ledgers_are_published(folder: str, table: Path, bucket: Path) -> None:
    shutil.copytree(ROOT / folder / "objects", bucket)
    name = f"persistent://public/fx/{folder}"
    read = BucketRead(read_options({"offload": str(bucket), "path": name}, "batch read"))
    (log,) = read.logs
    columns = ",".join(field for field in ("value", *_BESIDE))
    alone = read_bucket(bucket, name, columns=columns)
    newest = log.topic.segments[len(log.topic.segments) // 2].ledger_id
    published = [row for row in alone if row["__position"]["ledgerId"] <= newest]
    _publish(table, published, newest, canonical_name(name), log.incarnation)
    found = joined(bucket, table, name, columns=columns)
    assert as_set(found) == as_set(alone)
    lose(bucket, newest)
    if newest != log.topic.segments[-1].ledger_id:
        assert as_set(joined(bucket, table, name, columns=columns)) == as_set(alone)


_BESIDE = ("__position", "__publishTime", "__eventTime", "__key", "__topic", "__messageProperties")


def _publish(table: Path, rows: list[dict[str, Any]], segment: int, name: str, life: str) -> None:
    from pyspark_ledger.ledger.rows.metadata_columns import METADATA

    kinds = [METADATA.field(one) for one in _BESIDE] + [pa.field("value", pa.binary())]
    made = pa.Table.from_pylist(
        [{**row, "__messageProperties": list(row["__messageProperties"].items())} for row in rows], pa.schema(kinds)
    )
    made = made.append_column("__incarnation", pa.array([life] * len(rows)))
    day = made.column("__publishTime").cast(pa.date32())
    publish(table, made.append_column("__publishDate", day), segment, name=name, incarnation=life)


def test_what_only_a_broker_could_say_is_refused(store: Path, orders: Ledger, bucket: Path, table: Path) -> None:
    orders.offload(seal=True)
    publish_sealed(store, table, most=1)
    source = LedgerSource({"offload": str(bucket), "path": "orders", "history": str(table)}, "0.1.0")
    with pytest.raises(Unsupported, match="'history' continues in the log, and with 'offload' it has no broker"):
        source.stream_reader(source.schema())
    with pytest.raises(Refused, match=r"'history' has no meaning for a read that lists a bucket.*Name the ledger"):
        LedgerSource({"offload": str(bucket), "history": str(table)}, "0.1.0")
    with pytest.raises(Refused, match="__producer"):
        joined(bucket, table, columns="n,__producer")
    strange = table.parent / "strange"
    write_deltalake(str(strange), pa.table({"n": [1]}))
    with pytest.raises(Refused, match="has no column '__position'"):
        joined(bucket, strange)
    connect(store).client.ask(CreateLedger("clicks", max_entries_per_ledger=1))
    append_pairs(connect(store).ledger("clicks"), 0, 2)
    publish_sealed(store, table.parent / "clicks", "clicks")
    with pytest.raises(Refused, match=r"has rows, and nothing of what the bucket has: .*/orders of incarnation"):
        joined(bucket, table.parent / "clicks")
    for path in bucket.iterdir():
        path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(NotFound, match=r"holds no offloaded ledger.*read only the table, with format\('delta'\)"):
        joined(bucket, table)
