"""Goal: with `ackMode` explicit, rows are redelivered until they are acknowledged, and a planned batch never changes.

Method: Spark's calls over a real embedded broker, with offsets as JSON text. The sink's writer acknowledges rows, as in
tasks and at commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.connector.session.commit_listener import committed
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import LedgerError, Refused
from tests.rigs.explicit import (
    ALL,
    EXPLICIT,
    batch,
    batch_of_all,
    new_name,
    reader,
    say,
)
from tests.rigs.stream import numbers, text


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
    """Pass the source's report and the end of a committed batch to the listener, as Spark does."""
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


def test_rows_that_come_back_do_not_wait_for_new_ones(orders: Ledger) -> None:
    """`minRowsPerTrigger` delays rows that were never delivered."""
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
    """All twelve rows time out and two entries are appended. Only a batch of one entry exceeds the limit."""
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
    """Rows that were acknowledged before they are read do not count in limits, and never stop the reader."""
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


def test_a_run_over_what_is_there_ends_though_nobody_acknowledges(orders: Ledger) -> None:
    """A run of AvailableNow delivers each row once, also after a nack or timeout. The next run delivers the rest."""
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


def test_a_partitioned_ledger_is_acknowledged_by_its_own_name(shared: Path) -> None:
    name = new_name("parts")
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
        with pytest.raises(Refused, match=f"has no segment {ledger_id}"):
            acknowledge(pa.Table.from_pylist([{"__position": place}], schema=wrong.schema))
    stream.stop()


@pytest.mark.parametrize("by", ["ledgers", "ledgersPattern"])
def test_several_ledgers_are_read_together_and_acknowledged_each(shared: Path, by: str) -> None:
    names = [new_name("several") for _ in range(2)]
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


@pytest.mark.thorough
def test_one_query_reads_in_a_subscriptions_name(orders: Ledger) -> None:
    stream = reader(orders, **EXPLICIT)
    start = text(stream.initialOffset())
    with pytest.raises(LedgerError, match="s"):
        reader(orders, **EXPLICIT).initialOffset()
    assert batch(stream, start, text(stream.latestOffset(start, ALL))).num_rows == 12
    stream.stop()
