"""Goal: with `ackMode` explicit every row comes until it is acknowledged, and no batch changes once it was named.
Method: Spark's calls, made by hand over a real embedded broker, offsets through JSON text; rows are acknowledged by the
sink's own writer, as its tasks and its committer do.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.acknowledge_writer import LedgerAcknowledgeWriter
from connector.acknowledging import committed
from connector.data_source import LedgerSource
from connector.schema import METADATA, spark_schema
from connector.stream_reader import LedgerStreamReader
from ledger.api import connect
from ledger.errors import LedgerError, Refused, Unsupported
from ledger.ledger import Ledger
from ledger.protocol import Empty

ALL = ReadAllAvailable()
EXPLICIT = {"subscription": "s", "ackMode": "explicit", "startingPosition": "earliest", "ackTimeout": "0"}
NUMBERS = itertools.count()
PLACES = pa.schema([METADATA.field("__position"), METADATA.field("__messageId")])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store for all: a broker takes seconds to leave clients that are connected."""
    path = tmp_path_factory.mktemp("explicit") / "store"
    yield path
    connect(path).client.call("shutdown", Empty())


@pytest.fixture
def empty(shared: Path) -> Ledger:
    """A ledger of this test alone, without an entry."""
    return connect(shared).ledger(f"orders{next(NUMBERS)}")


@pytest.fixture
def orders(empty: Ledger) -> Ledger:
    """Three entries of four rows, 0 to 11."""
    ledger = empty
    for first in range(0, 12, 4):
        ledger.append(pa.table({"n": pa.array(range(first, first + 4), pa.int64())}))
    return ledger


def reader(orders: Ledger, **options: str) -> LedgerStreamReader:
    source = LedgerSource({**where(orders), **options}, "0.1.0")
    return source.stream_reader(source.schema())


def where(orders: Ledger) -> dict[str, str]:
    return {"path": orders.name, "store": orders.client.hello().store_path}


def text(offset: object) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def batch(stream: LedgerStreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    parts = [pickle.loads(pickle.dumps(part)) for part in stream.partitions(text(start), text(end))]  # noqa: S301 — our own bytes
    copy = pickle.loads(pickle.dumps(stream))  # noqa: S301 — as above
    found = [rows for part in parts for rows in copy.read(part)]
    return pa.Table.from_batches(found, found[0].schema) if found else pa.table({"n": pa.array([], pa.int64())})


def writer(orders: Ledger, columns: pa.Schema = PLACES, **options: str) -> LedgerAcknowledgeWriter:
    given = {**where(orders), "action": "ack", "subscription": "s", **options}
    made = LedgerSource(given, "0.1.0").batch_writer(spark_schema(columns, "orders"), overwrite=False)
    assert isinstance(made, LedgerAcknowledgeWriter)
    return made


def say(orders: Ledger, rows: pa.Table, action: str = "ack", column: str = "__position") -> None:
    rows = rows.select([column])
    sink = pickle.loads(pickle.dumps(writer(orders, rows.schema, action=action)))  # noqa: S301 — as above
    half = rows.num_rows // 2
    tasks = [sink.write(iter(part.to_batches())) for part in (rows.slice(0, half), rows.slice(half))]
    sink.commit([*tasks, sink.write(iter(()))])


def numbers(rows: pa.Table) -> list[int]:
    return rows.column("n").to_pylist()


@pytest.mark.parametrize("column", ["__position", "__messageId"])
def test_rows_come_back_until_they_are_acknowledged(orders: Ledger, column: str) -> None:
    stream = reader(orders, **EXPLICIT)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    first = batch(stream, start, end)
    assert numbers(first) == list(range(12))
    assert first.column("__redeliveryCount").to_pylist() == [0] * 12
    say(orders, first.filter(pc.is_in(first["n"], pa.array([0, 1, 2, 3, 5, 9]))), column=column)
    second_end = text(stream.latestOffset(end, ALL))
    second = batch(stream, end, second_end)
    assert numbers(second) == [4, 6, 7, 8, 10, 11]
    assert second.column("__redeliveryCount").to_pylist() == [1] * 6
    say(orders, second, column=column)
    assert batch(stream, end, second_end).equals(second), "a batch stays what it was, whatever is acknowledged since"
    last = stream.latestOffset(second_end, ALL)
    assert json.dumps(last) == json.dumps(second_end)
    state = orders.cursor("s").state()
    assert (state.backlog_rows, state.acknowledged_ranges) == (0, 0)
    stream.stop()


def test_nobody_who_listens_to_progress_acknowledges_for_the_rows(orders: Ledger) -> None:
    """Spark hands the listener what the source reports, and the end of a batch that is committed."""
    for options, acknowledged in ((EXPLICIT, False), ({**EXPLICIT, "ackMode": "checkpoint"}, True)):
        known = {name: value for name, value in options.items() if acknowledged is False or name != "ackTimeout"}
        stream = reader(orders, **known)
        end = text(stream.latestOffset(text(stream.initialOffset()), ALL))
        progress = {"latestOffset": json.dumps(stream.reportLatestOffset()), "endOffset": json.dumps(end)}
        assert bool(committed(progress)) == acknowledged
        stream.stop()


def test_a_repeated_batch_is_the_same_in_another_process(orders: Ledger) -> None:
    stream = reader(orders, **EXPLICIT)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    before = batch(stream, start, end)
    say(orders, before)
    stream.stop()
    again = reader(orders, **EXPLICIT)
    assert batch(again, start, end).equals(before)
    assert json.dumps(again.latestOffset(end, ALL)) == json.dumps(end)
    again.stop()


def test_rows_that_are_given_back_come_at_once(orders: Ledger) -> None:
    stream = reader(orders, **{**EXPLICIT, "ackTimeout": "1h"})
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    first = batch(stream, start, end)
    assert json.dumps(stream.latestOffset(end, ALL)) == json.dumps(end)
    say(orders, first.filter(pc.is_in(first["n"], pa.array([3, 7]))), action="nack")
    again = text(stream.latestOffset(end, ALL))
    assert numbers(batch(stream, end, again)) == [3, 7]
    stream.stop()


def test_a_query_that_is_not_explicit_gives_nothing_back(orders: Ledger) -> None:
    stream = reader(orders, subscription="s", startingPosition="earliest", includeMetadata="true")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    first = batch(stream, start, end)
    before = orders.cursor("s").state()
    with pytest.raises(Refused, match=r"was delivered to subscription 's' with ackMode 'explicit': none can be given"):
        say(orders, first, action="nack")
    assert orders.cursor("s").state() == before
    say(orders, first)
    assert orders.cursor("s").state().backlog_rows == 0
    stream.stop()


def test_rows_that_come_back_do_not_wait_for_new_ones(orders: Ledger) -> None:
    """`minRowsPerTrigger` holds up rows that nobody has seen yet."""
    given = {**EXPLICIT, "ackTimeout": "1h"}
    stream = reader(orders, **given)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    first = batch(stream, start, end)
    stream.stop()
    stream = reader(orders, **given, minRowsPerTrigger="100", maxTriggerDelay="1h")
    limit = stream.getDefaultReadLimit()
    orders.append(pa.table({"n": pa.array([12], pa.int64())}))
    assert json.dumps(stream.latestOffset(end, limit)) == json.dumps(end)
    say(orders, first.slice(3, 1), action="nack")
    again = text(stream.latestOffset(end, limit))
    assert sorted(numbers(batch(stream, end, again))) == [3, 12]
    stream.stop()


def test_a_spark_that_says_no_start_is_refused(orders: Ledger) -> None:
    """Before 4.2 a source is not told which batch was committed."""
    with pytest.raises(Unsupported, match=r"needs Spark 4\.2"):
        reader(orders, **EXPLICIT).latestOffset()


def test_a_query_without_its_checkpoint_goes_on_and_loses_nothing(orders: Ledger) -> None:
    stream = reader(orders, **EXPLICIT)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    say(orders, batch(stream, start, end).slice(0, 11))
    stream.stop()
    orders.append(pa.table({"n": pa.array([12], pa.int64())}))
    other = reader(orders, **EXPLICIT)
    begun = text(other.initialOffset())
    assert numbers(batch(other, begun, text(other.latestOffset(begun, ALL)))) == [11, 12]
    other.stop()


@pytest.mark.parametrize("most", [4, 8, 3])
def test_what_comes_back_is_within_the_limit_of_a_trigger(orders: Ledger, most: int) -> None:
    """All twelve rows time out, two new entries come: no batch is above the limit, but for one entry alone."""
    stream = reader(orders, **EXPLICIT, maxRowsPerTrigger=str(most))
    here = text(stream.initialOffset())
    limit = stream.getDefaultReadLimit()
    left, before = set(range(12)), 0
    for number in range(24):
        end = text(stream.latestOffset(here, limit))
        if end == here:
            break
        rows = batch(stream, here, end)
        assert rows.num_rows <= max(most, 4)
        here = end
        if number < 4:
            continue
        if before == 0:
            before = len(left)
            for first in (12, 16):
                orders.append(pa.table({"n": pa.array(range(first, first + 4), pa.int64())}))
            left |= set(range(12, 20))
        left -= set(numbers(rows))
        say(orders, rows)
    assert left == set()
    assert orders.cursor("s").state().backlog_rows == 0
    stream.stop()


def test_a_limit_is_of_rows_that_are_left(orders: Ledger) -> None:
    """Rows that are acknowledged ahead of the reader take no room, and never stop it, however many they are."""
    options = {"subscription": "s", "startingPosition": "earliest", "maxRowsPerTrigger": "4", "includeMetadata": "true"}
    everything = batch_of_all(orders)
    orders.cursor("s")
    for acknowledged, expected in (([*range(8)], [8, 9, 10, 11]), ([8, 9, 12, 14], [10, 11])):
        stream = reader(orders, **options)
        start = text(stream.initialOffset())
        say(orders, everything.filter(pc.is_in(everything["n"], pa.array(acknowledged))))
        end = text(stream.latestOffset(start, stream.getDefaultReadLimit()))
        assert numbers(batch(stream, start, end)) == expected
        stream.stop()


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
    """Columns, key, event time and properties; of a ledger of messages and of one of columns."""
    rows = connect(shared).ledger(f"rows{next(NUMBERS)}")
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


def given_up(stream: LedgerStreamReader, here: dict[str, Any], batches: int = 4) -> dict[str, Any]:
    """Nobody acknowledges: so many batches later."""
    for _ in range(batches):
        here = text(stream.latestOffset(here, ALL) or here)
    return here


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
def test_dead_letters_that_no_ledger_could_take_fail_the_query_when_it_starts(
    orders: Ledger, subscription: str
) -> None:
    options = {**EXPLICIT, "subscription": subscription}
    with pytest.raises(Refused, match="which no ledger can be called"):
        reader(orders, **options, maxRedeliveries="3").initialOffset()
    assert orders.describe().cursors == []
    stream = reader(orders, **options)
    start = text(stream.initialOffset())
    assert batch(stream, start, text(stream.latestOffset(start, ALL))).num_rows == 12
    stream.stop()


def test_dead_letters_do_not_come_back_to_a_query_over_a_pattern(shared: Path) -> None:
    name = f"matched{next(NUMBERS)}"
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
    name = f"parts{next(NUMBERS)}"
    for number, part in enumerate(connect(shared).create_partitioned(name, 3).partitions()):
        part.append([{"n": number}])
    source = LedgerSource({"path": name, "store": str(shared), **EXPLICIT, "maxRedeliveries": "1"}, "0.1.0")
    stream = source.stream_reader(source.schema())
    given_up(stream, text(stream.initialOffset()), 5)
    found = connect(shared).ledger(f"{name}-s-DLQ").read().column("n").to_pylist()
    assert sorted(found) == [0, 1, 2]
    stream.stop()


def test_a_run_over_what_is_there_ends_though_nobody_acknowledges(orders: Ledger) -> None:
    """Each row comes once in it, given back or timed out or not; the next run brings what is left."""
    for run, expected in enumerate((list(range(12)), [0, 1, *range(3, 12)])):
        stream = reader(orders, **EXPLICIT, maxRowsPerTrigger="8")
        stream.prepareForTriggerAvailableNow()
        here, seen, rows = text(stream.initialOffset()), [], None
        for _ in range(9):
            end = text(stream.latestOffset(here, stream.getDefaultReadLimit()))
            if end == here:
                break
            rows = batch(stream, here, end)
            assert set(rows.column("__redeliveryCount").to_pylist()) == {run}
            seen += numbers(rows)
            say(orders, rows.filter(pc.equal(rows["n"], 1)), action="nack")
            here = end
        assert sorted(seen) == expected
        stream.stop()
        say(orders, batch_of_all(orders).slice(2, 1))


def test_a_stream_by_checkpoint_passes_over_what_is_acknowledged(orders: Ledger) -> None:
    options = {"subscription": "s", "startingPosition": "earliest", "includeMetadata": "true"}
    cursor = orders.cursor("s")
    everything = batch_of_all(orders)
    say(orders, everything.filter(pc.is_in(everything["n"], pa.array([1, 4, 5, 6, 7, 8]))))
    stream = reader(orders, **options)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    assert numbers(batch(stream, start, end)) == [0, 2, 3, 9, 10, 11]
    say(orders, everything)
    assert numbers(batch(stream, start, end)) == [0, 2, 3, 9, 10, 11]
    stream.commit(end)
    assert json.dumps(stream.latestOffset(end, ALL)) == json.dumps(end)
    assert cursor.state().backlog_rows == 0
    stream.stop()


def test_messages_of_batches_are_acknowledged_one_by_one(empty: Ledger) -> None:
    orders = empty
    with orders.producer() as producer:
        for number in range(20):
            producer.send(b"%d" % number)
    orders.cursor("s")
    stream = reader(orders, **EXPLICIT)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    first = batch(stream, start, end)
    assert first.num_rows == 20
    say(orders, first.filter(pc.not_equal(first["value"], b"7")))
    again = text(stream.latestOffset(end, ALL))
    assert batch(stream, end, again).column("value").to_pylist() == [b"7"]
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


def test_a_partitioned_ledger_is_acknowledged_by_its_own_name(shared: Path) -> None:
    name = f"parts{next(NUMBERS)}"
    other = connect(shared).ledger(f"{name}-other")
    other.append([{"n": 1}])
    whole = connect(shared).create_partitioned(name, 3)
    for number, part in enumerate(whole.partitions()):
        part.append(pa.table({"n": pa.array(range(4 * number, 4 * number + 4), pa.int64())}))
    given = {"path": name, "store": str(shared), **EXPLICIT, "maxRowsPerTrigger": "8"}
    source = LedgerSource(given, "0.1.0")
    stream = source.stream_reader(source.schema())
    here, seen, counts = text(stream.initialOffset()), set(range(12)), dict.fromkeys(range(12), 0)

    def acknowledge(rows: pa.Table) -> None:
        options = {"path": name, "store": str(shared), "action": "ack", "subscription": "s"}
        columns = rows.select(["__position"])
        sink = LedgerSource(options, "0.1.0").batch_writer(spark_schema(columns.schema, name), overwrite=False)
        sink.commit([sink.write(iter(columns.to_batches()))])

    for _ in range(12):
        end = text(stream.latestOffset(here, stream.getDefaultReadLimit()))
        if end == here:
            break
        rows = batch(stream, here, end)
        assert rows.num_rows <= 8
        for n, count in zip(numbers(rows), rows.column("__redeliveryCount").to_pylist(), strict=True):
            assert count == counts[n]
            counts[n] += 1
        chosen = rows.filter(pc.is_in(rows["n"], pa.array([n for n in numbers(rows) if (n + counts[n]) % 2])))
        acknowledge(chosen)
        seen -= set(numbers(chosen))
        here = end
    assert seen == set()
    assert [part.cursor("s").state().backlog_rows for part in whole.partitions()] == [0, 0, 0]
    wrong = rows.slice(0, 0).select(["__position"])
    for ledger_id in (10**6, other.describe().segments[0].ledger_id):
        place = {"ledgerId": ledger_id, "entryId": 0, "batchIndex": 0}
        with pytest.raises(Refused, match=f"has no ledger {ledger_id}"):
            acknowledge(pa.Table.from_pylist([{"__position": place}], schema=wrong.schema))
    stream.stop()


@pytest.mark.parametrize("by", ["ledgers", "ledgersPattern"])
def test_several_ledgers_are_read_together_and_acknowledged_each(shared: Path, by: str) -> None:
    names = [f"several{next(NUMBERS)}" for _ in range(2)]
    ledgers = [connect(shared).ledger(name) for name in names]
    for number, ledger in enumerate(ledgers):
        ledger.append(pa.table({"n": pa.array(range(4 * number, 4 * number + 4), pa.int64())}))
    of_them = {"ledgers": ",".join(names)} if by == "ledgers" else {"ledgersPattern": "|".join(names)}
    source = LedgerSource({"store": str(shared), **EXPLICIT, **of_them}, "0.1.0")
    stream = source.stream_reader(source.schema())
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    rows = batch(stream, start, end)
    assert sorted(numbers(rows)) == list(range(8))
    for name, ledger in zip(names, ledgers, strict=True):
        of_it = pc.equal(rows["__topic"], f"persistent://public/default/{name}")
        say(ledger, rows.filter(pc.and_(of_it, pc.not_equal(rows["n"], 5))))
    again = text(stream.latestOffset(end, ALL))
    rows = batch(stream, end, again)
    assert (numbers(rows), rows.column("__redeliveryCount").to_pylist()) == ([5], [1])
    stream.stop()


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


def batch_left(cursor: Any) -> list[int]:
    return cursor.read()[0].column("n").to_pylist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entryId": 3}, "beyond the last entry"),
        ({"entryId": -1}, "beyond the last entry"),
        ({"entryId": 2**62}, "beyond the last entry"),
        ({"ledgerId": 2**62}, "has no ledger"),
        ({"ledgerId": -1}, "has no ledger"),
        ({"batchIndex": 4}, "has 4 rows"),
        ({"batchIndex": -2}, "row -2 of entry"),
        ({"batchIndex": 2**31 - 1}, "row 2147483647 of entry"),
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


def test_one_query_reads_in_a_subscriptions_name(orders: Ledger) -> None:
    stream = reader(orders, **EXPLICIT)
    start = text(stream.initialOffset())
    with pytest.raises(LedgerError, match="s"):
        reader(orders, **EXPLICIT).initialOffset()
    assert batch(stream, start, text(stream.latestOffset(start, ALL))).num_rows == 12
    stream.stop()


def batch_of_all(orders: Ledger) -> pa.Table:
    source = LedgerSource({**where(orders), "includeMetadata": "true"}, "0.1.0")
    read = source.batch_reader(source.schema())
    return pa.Table.from_batches([rows for part in read.partitions() for rows in read.read(part)])
