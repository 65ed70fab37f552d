"""Goal: exactly the sealed segments are listed, per partition, and segments deleted before publication are a loss.

Method: a real store, without Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.connector.publish.segments import StoreSegments, segment_source
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.offload.table.commit_metadata import NO_SEGMENT


def test_sealed_segments_of_every_partition(store: Path) -> None:
    clicks = connect(store).create_partitioned("clicks", 2)
    source = StoreSegments("clicks", {"store": str(store)}, 2**27)
    for partition in clicks.partitions():
        partition.append([{"id": 1}, {"id": 2}])
    assert [log.segments for log in source.logs()] == [(), ()], "nothing is sealed"
    source.seal(3_600_000)
    assert [log.segments for log in source.logs()] == [(), ()], "no segment is old enough"
    source.seal(0)
    assert not clicks.seal(), "nothing is left to seal"
    clicks.partitions()[0].append([{"id": 3}])
    logs = source.logs()
    assert [log.name.rpartition("/")[2] for log in logs] == ["clicks-partition-0", "clicks-partition-1"]
    assert [[(one.entries, one.rows) for one in log.segments] for log in logs] == [[(1, 2)], [(1, 2)]]
    assert logs[0].topic == "persistent://public/default/clicks-partition-0"


def test_what_is_gone_and_what_is_wrong(store: Path) -> None:
    orders = connect(store).ledger("orders")
    source = segment_source("orders", {"store": str(store)}, 2**27)
    with pytest.raises(NotFound):
        source.logs()
    for number in range(3):
        orders.append([{"id": number}])
        orders.seal()
    (log,) = source.logs()
    first, second, third = (one.ledger_id for one in log.segments)
    orders.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    orders.trim()  # the broker's own check of retention may be first
    assert {segment.ledger_id for segment in orders.describe().segments}.isdisjoint({first, second, third})
    source.require_whole(log, NO_SEGMENT)
    with pytest.raises(DataLoss, match="retention deleted"):
        source.require_whole(log, first)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingPosition", "0:0"), ("startingPositions", '{"orders": "0:0"}'), ("startingTimestamps", "{}"),
        ("ENDINGPOSITIONS", '{"orders": "0:0"}'), ("endingTimestamps", "{}"), ("history", "./tables/orders"),
        ("table", "cursors"),
    ],
)  # fmt: skip
def test_no_option_makes_a_published_segment_shorter(store: Path, option: str, value: str) -> None:
    with pytest.raises(Refused, match=f"{option!r} is set by the publisher"):
        segment_source("orders", {"store": str(store), option: value}, 2**27)


@pytest.mark.parametrize("name", ["__incarnation", "__rescued", "__index"])
def test_a_column_of_a_name_that_tables_have_is_not_dropped_in_silence(store: Path, name: str) -> None:
    orders = connect(store).ledger("orders")
    orders.append([{"id": 1, name: "mine"}])
    orders.seal()
    source = segment_source("orders", {"store": str(store)}, 2**27)
    (log,) = source.logs()
    with pytest.raises(
        Refused, match=f"column '{name}' of ledger .* has the name of a column that the publisher makes"
    ):
        source.rows(None, log, log.segments[0], rescue=False)  # type: ignore[arg-type]  # refused before it is asked
