"""Goal: a write with `action` takes all of its rows, and only those that can be meant, or none. Method: the sink's own
writer by hand over a real embedded broker, as its tasks and its committer call it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.rows.metadata_columns import METADATA
from tests.rigs.explicit import (
    ALL,
    PLACES,
    batch,
    batch_of_all,
    reader,
    say,
    where,
    writer,
)
from tests.rigs.stream import text


def test_a_query_that_is_not_explicit_gives_nothing_back(orders: Ledger) -> None:
    stream = reader(orders, subscription="s", startingPosition="earliest", includeMetadata="true")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    first = batch(stream, start, end)
    before = orders.cursor("s").state()
    with pytest.raises(
        Refused, match=r"was delivered to subscription 's' with ackMode 'explicit': no row can be negatively"
    ):
        say(orders, first, action="nack")
    assert orders.cursor("s").state() == before
    say(orders, first)
    assert orders.cursor("s").state().backlog_rows == 0
    stream.stop()


def test_what_cannot_be_meant_is_refused(orders: Ledger) -> None:
    orders.cursor("s")
    rows = pa.schema([pa.field("n", pa.int64())])
    with pytest.raises(Refused, match="needs a column '__position'"):
        writer(orders, rows)
    with pytest.raises(Refused, match="is bigint"):
        writer(orders, pa.schema([pa.field("__position", pa.int64())]))
    with pytest.raises(Refused, match="names no subscription"):
        LedgerSource({**where(orders), "action": "ack"}, "0").batch_writer(
            spark_schema(PLACES, "orders"), overwrite=False
        )
    with pytest.raises(Refused, match="'offloadRegion' has no meaning for a write to the store in"):
        LedgerSource({**where(orders), "subscription": "s", "action": "ack", "offloadRegion": "x"}, "0").batch_writer(
            spark_schema(PLACES, "orders"), overwrite=False
        )
    source = LedgerSource({**where(orders)}, "0")
    with pytest.raises(Refused, match="name of a metadata column"):
        source.batch_writer(spark_schema(PLACES, "orders"), overwrite=False)
    with pytest.raises(Refused, match="no meaning for a write of rows"):
        LedgerSource({**where(orders), "subscription": "s"}, "0").batch_writer(
            spark_schema(rows, "orders"), overwrite=False
        )
    with pytest.raises(Refused, match="without a subscription"):
        reader(orders, ackMode="explicit")
    with pytest.raises(Refused, match="'maxRedeliveries' has no meaning"):
        reader(orders, subscription="s", maxRedeliveries="1")
    sink = writer(orders)
    with pytest.raises(Refused, match="1 of 1 tasks"):
        sink.commit([None])


@pytest.mark.parametrize(
    "wrong", [b"", b"\x08", b"\x08\x01", b"\x08\x01\x10\x02\x99\x01", b"\x10\x02\x18\x01", b"x" * 9]
)
def test_what_is_no_message_id_is_refused(orders: Ledger, wrong: bytes) -> None:
    orders.cursor("s")
    column = pa.schema([METADATA.field("__messageId")])
    sink = writer(orders, column)
    rows = pa.RecordBatch.from_pydict({"__messageId": [b"\x08\x00\x10\x00\x20\x01", wrong]}, schema=column)
    with pytest.raises(Refused, match=r"message id|holds"):
        sink.write(iter([rows]))
    with pytest.raises(Refused, match="is null in row 0"):
        sink.write(iter([pa.RecordBatch.from_pydict({"__messageId": [None]}, schema=column)]))


def test_rows_given_twice_and_whole_entries_are_acknowledged_once(orders: Ledger) -> None:
    everything = batch_of_all(orders)
    cursor = orders.cursor("s")
    places = everything.column("__position").to_pylist()
    whole = {**places[4], "batchIndex": -1}
    rows = pa.Table.from_pylist(
        [{"__position": place} for place in (places[1], places[1], places[5], whole, places[1], whole)],
        schema=pa.schema([METADATA.field("__position")]),
    )
    for _ in range(2):
        say(orders, rows)
        assert cursor.state().backlog_rows == 7
    assert batch_left(cursor) == [0, 2, 3, 8, 9, 10, 11]


def test_the_sink_acknowledges_a_message_with_its_last_chunk(empty: Ledger) -> None:
    with empty.producer("camera", chunk_max_bytes=1024) as producer:
        producer.send(bytes(3000))
    work, end = empty.cursor("s"), empty.end().end
    first, last = ({"ledgerId": end.ledger_id, "entryId": n, "batchIndex": -1} for n in (0, end.entry_id - 1))
    for place, left in ((first, 1), (last, 0)):
        say(empty, pa.Table.from_pylist([{"__position": place}], schema=pa.schema([METADATA.field("__position")])))
        assert work.state().backlog_rows == left == work.read()[0].num_rows


def batch_left(cursor: Any) -> list[int]:
    return cursor.read()[0].column("n").to_pylist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entryId": 3}, "beyond the last entry"),
        ({"entryId": -1}, "beyond the last entry"),
        ({"entryId": 2**62}, "beyond the last entry"),
        ({"ledgerId": 2**62}, "has no segment"),
        ({"ledgerId": -1}, "has no segment"),
        ({"batchIndex": 4}, "has 4 rows"),
        ({"batchIndex": -2}, "has no row -2"),
        ({"batchIndex": 2**31 - 1}, "has no row 2147483647"),
        ({"entryId": None}, "null entryId"),
        (None, "is null in row 2"),
    ],
)
def test_a_position_that_is_none_takes_the_others_with_it(
    orders: Ledger, change: dict[str, int | None] | None, said: str
) -> None:
    places = batch_of_all(orders).column("__position").to_pylist()
    cursor = orders.cursor("s")
    field = METADATA.field("__position")
    loose = pa.struct([part.with_nullable(True) for part in field.type])
    wrong = None if change is None else {**places[2], **change}
    column = pa.array([places[0], places[1], wrong], loose)
    sink = writer(orders)
    with pytest.raises(Refused, match=said):
        sink.commit([sink.write(iter([pa.RecordBatch.from_arrays([column], ["__position"])]))])
    assert cursor.state().backlog_rows == 12
