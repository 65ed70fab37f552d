"""Goal: a row with too many redeliveries becomes one dead letter with all fields. Method: as `test_explicit_stream`,
with queries that do not acknowledge.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Refused
from tests.rigs.explicit import (
    ALL,
    EXPLICIT,
    batch,
    batch_of_all,
    given_up,
    new_name,
    reader,
    say,
    where,
)
from tests.rigs.stream import numbers, text


def test_dead_letters_are_written_once_and_acknowledged(orders: Ledger) -> None:
    stream = reader(orders, **EXPLICIT, maxRedeliveries="1")
    here = text(stream.initialOffset())
    for expected in (list(range(12)), [5]):
        end = text(stream.latestOffset(here, ALL))
        rows = batch(stream, here, end)
        assert numbers(rows) == expected
        say(orders, rows.filter(pc.not_equal(rows["n"], 5)))
        here = end
    for _ in range(3):
        assert json.dumps(stream.latestOffset(here, ALL)) == json.dumps(here)
    assert connect(where(orders)["store"]).ledger(f"{orders.name}-s-DLQ").read().to_pylist() == [{"n": 5}]
    assert orders.cursor("s").state().backlog_rows == 0
    stream.stop()


def test_dead_letters_say_all_that_their_rows_said_and_where_they_were(empty: Ledger, shared: Path) -> None:
    """Dead letters have columns, key, event time and properties, for ledgers of messages and of columns."""
    rows = connect(shared).ledger(new_name("rows"))
    written = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int64()),
            "__key": ["a", None, "c"],
            "__messageProperties": pa.array([[("x", "y"), ("z", "")], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    sink = LedgerSource(where(rows) | {"path": rows.name}, "0").batch_writer(
        spark_schema(written.schema, "rows"), overwrite=False
    )
    sink.commit([sink.write(iter(written.to_batches()))])
    with empty.producer() as producer:
        producer.send(b"one", key="k", properties={"x": "y"}, event_time_ms=7)
        producer.send(b"two")
    for ledger in (rows, empty):
        before = batch_of_all(ledger)
        stream = reader(ledger, **EXPLICIT, maxRedeliveries="1")
        here = text(stream.initialOffset())
        end = text(stream.latestOffset(here, ALL))
        say(ledger, batch(stream, here, end).slice(1, 1))
        given_up(stream, end)
        stream.stop()
        dead = batch_of_all(connect(shared).ledger(f"{ledger.name}-s-DLQ"))
        expected = before.take([0, *range(2, before.num_rows)])
        own = [name for name in before.column_names if not name.startswith("__")]
        assert dead.select([*own, "__key", "__eventTime"]).equals(expected.select([*own, "__key", "__eventTime"]))
        for found, said in zip(dead.to_pylist(), expected.to_pylist(), strict=True):
            place = ":".join(str(number) for number in said["__position"].values())
            origin = [("REAL_TOPIC", said["__topic"]), ("ORIGIN_MESSAGE_ID", place)]
            assert found["__messageProperties"] == [*(said["__messageProperties"] or []), *origin]


def test_dead_letters_of_a_ledger_that_grew_have_its_new_columns(orders: Ledger) -> None:
    dead = connect(where(orders)["store"])
    for number, more in enumerate(({}, {"m": 7})):
        if more:
            grown = LedgerSource({**where(orders), "mergeSchema": "true"}, "0.1.0")
            rows = pa.table({"n": pa.array([12], pa.int64()), "m": pa.array([7], pa.int64())})
            sink = grown.batch_writer(spark_schema(rows.schema, orders.name), overwrite=False)
            sink.commit([sink.write(iter(rows.to_batches()))])
        stream = reader(orders, **EXPLICIT, maxRedeliveries="0")
        given_up(stream, text(stream.initialOffset()))
        assert dead.ledger(f"{orders.name}-s-DLQ").read().num_rows == 12 + number
        stream.stop()
    assert dead.ledger(f"{orders.name}-s-DLQ").read().to_pylist()[-1] == {"n": 12, "m": 7}
    assert orders.cursor("s").state().backlog_rows == 0


@pytest.mark.parametrize("subscription", ["team/billing", "x" * 250])
def test_dead_letters_to_an_impossible_ledger_name_fail_the_query_at_start(orders: Ledger, subscription: str) -> None:
    options = {**EXPLICIT, "subscription": subscription}
    with pytest.raises(Refused, match="which is no valid name of a ledger"):
        reader(orders, **options, maxRedeliveries="3").initialOffset()
    assert orders.describe().cursors == []
    stream = reader(orders, **options)
    start = text(stream.initialOffset())
    assert batch(stream, start, text(stream.latestOffset(start, ALL))).num_rows == 12
    stream.stop()


def test_dead_letters_do_not_come_back_to_a_query_over_a_pattern(shared: Path) -> None:
    name = new_name("matched")
    connect(shared).ledger(name).append([{"n": 1}])
    options = {"store": str(shared), **EXPLICIT, "ledgersPattern": f"{name}.*", "maxRedeliveries": "0"}
    source = LedgerSource(options, "0.1.0")
    stream = source.stream_reader(source.schema())
    given_up(stream, text(stream.initialOffset()), 8)
    stream.stop()
    assert [one for one in connect(shared).names() if name in one] == [
        f"public/default/persistent/{name}",
        f"public/default/persistent/{name}-s-DLQ",
    ]
    other = LedgerSource({**options, "subscription": "audit"}, "0.1.0")
    stream = other.stream_reader(other.schema())
    start = text(stream.initialOffset())
    assert batch(stream, start, text(stream.latestOffset(start, ALL))).num_rows == 2
    stream.stop()


def test_dead_letters_of_all_partitions_go_to_one_ledger(shared: Path) -> None:
    name = new_name("parts")
    for number, part in enumerate(connect(shared).create_partitioned(name, 3).partitions()):
        part.append([{"n": number}])
    source = LedgerSource({"path": name, "store": str(shared), **EXPLICIT, "maxRedeliveries": "1"}, "0.1.0")
    stream = source.stream_reader(source.schema())
    given_up(stream, text(stream.initialOffset()), 5)
    found = connect(shared).ledger(f"{name}-s-DLQ").read().column("n").to_pylist()
    assert sorted(found) == [0, 1, 2]
    stream.stop()
