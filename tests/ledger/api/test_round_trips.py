"""Goal: calls of the Python API need few round trips. Method: a real broker, and a client whose transport counts every
action, read, stream and message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client import append_transport, broker_connection
from pyspark_ledger.ledger.client.append_transport import FlightStream, RingStream
from pyspark_ledger.ledger.errors import NotFound, Refused

Trips = list[str]


class CountedFlight:
    """A Flight client that notes what it is asked, and asks it."""

    def __init__(self, real: Any, trips: Trips) -> None:
        self._real, self._trips = real, trips

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name == "close":
            return real

        def called(*given: Any, **named: Any) -> Any:
            self._trips.append(f"{name} {given[0].type}" if name == "do_action" else name)
            return real(*given, **named)

        return called


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """Calls of the client's transport, in order. Request this fixture before `store`."""
    noted: Trips = []
    connect = broker_connection.flight.connect

    def counted(*given: Any, **named: Any) -> CountedFlight:
        return CountedFlight(connect(*given, **named), noted)

    monkeypatch.setattr(broker_connection.flight, "connect", counted)
    for stream in (RingStream, FlightStream):
        for name in ("__init__", "send", "finish"):
            monkeypatch.setattr(stream, name, noting(getattr(stream, name), f"{stream.__name__}.{name}", noted))
    return noted


def noting(real: Callable[..., Any], name: str, noted: Trips) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        noted.append(name)
        return real(*given, **named)

    return called


@pytest.fixture(params=["here", "elsewhere"])
def counted(trips: Trips, store: LedgerStore, request: pytest.FixtureRequest, monkeypatch: Any) -> Iterator[Any]:
    """A store with a client on its broker's host, or on another: without shared memory, sockets and files."""
    if request.param == "elsewhere":
        monkeypatch.setattr(append_transport, "_same_user_socket", lambda _: None)
        monkeypatch.setattr(type(store.client), "same_host_token", lambda *_, **__: "")
    yield store, trips, request.param == "elsewhere"
    store.client.close()


def test_a_second_append_is_one_message_of_a_stream(counted: Any) -> None:
    store, trips, elsewhere = counted
    orders, log = store.ledger("orders"), store.ledger("log")
    orders.append([{"id": 0}])
    log.append(b"0")
    trips.clear()
    for again in (lambda: orders.append([{"id": 1}]), lambda: orders.append(pa.table({"id": [2]}))):
        again()
    log.append(b"1")
    assert trips == ["FlightStream.send" if elsewhere else "RingStream.send"] * 3
    assert orders.read().column("id").to_pylist() == [0, 1, 2]
    assert log.read().column("value").to_pylist() == [b"0", b"1"]


def test_an_append_to_a_partition_that_was_written_is_one_message(counted: Any) -> None:
    store, trips, elsewhere = counted
    clicks = store.create_partitioned("clicks", 2)
    for number in range(2):
        clicks.append([{"id": number}])
    trips.clear()
    for number in range(2, 6):
        clicks.append([{"id": number}])
    assert trips == ["FlightStream.send" if elsewhere else "RingStream.send"] * 4
    assert sorted(clicks.read().column("id").to_pylist()) == list(range(6))
    assert {partition.read().num_rows for partition in clicks.partitions()} == {3}


def test_an_append_to_deleted_partitions_creates_none(counted: Any) -> None:
    store, _, _ = counted
    clicks = store.create_partitioned("clicks", 2)
    for number in range(4):
        clicks.append([{"id": number}])
    store.delete("clicks")
    for rows in ([{"id": 4}], [{"id": 5}], b"6"):
        with pytest.raises(NotFound):
            clicks.append(rows)
    assert store.names() == []
    store.create_partitioned("clicks", 3)
    for number in range(3):
        clicks.append([{"id": number}])
    assert [partition.read().num_rows for partition in clicks.partitions()] == [1, 1, 1]


def test_rows_that_do_not_fit_name_the_whole_ledger(counted: Any) -> None:
    store, _, _ = counted
    clicks = store.create_partitioned("clicks", 1)
    clicks.append([{"id": 0}])
    with pytest.raises(Refused, match="clicks") as refused:
        clicks.append([{"id": 1, "other": "a"}])
    assert "partition-0" not in str(refused.value)
    clicks.append([{"id": 1}])
    assert clicks.read().column("id").to_pylist() == [0, 1]


def test_a_read_is_one_call_and_the_read_itself(counted: Any) -> None:
    store, trips, elsewhere = counted
    orders, log = store.ledger("orders"), store.ledger("log")
    orders.append([{"id": 0}])
    log.append(b"0")
    assert orders.read().num_rows == 1
    for read in (orders.read, log.read, lambda: list(orders.batches())):
        trips.clear()
        assert len(read()) == 1
        assert trips == ["do_action read.open", *["do_get"] * elsewhere]
    trips.clear()
    assert orders.read(orders.end().end).num_rows == 0
    assert trips == ["do_action end", "do_action read.open"]


def test_a_cursor_reads_by_two_and_acknowledges_by_one(counted: Any) -> None:
    store, trips, elsewhere = counted
    orders = store.ledger("orders")
    orders.append([{"id": 0}, {"id": 1}])
    orders.append([{"id": 2}])
    billing = orders.cursor("billing")
    billing.read()
    billing.acknowledge_rows([(0, 0, 0)])
    for left in ([1, 2], []):
        trips.clear()
        rows, end = billing.read()
        assert rows.column("id").to_pylist() == left
        assert trips == ["do_action read.open", *["do_get"] * (elsewhere and bool(left))]
        assert end == orders.end().end
        trips.clear()
        billing.acknowledge(end)
        assert trips == ["do_action cursor.mark_delete"]
    trips.clear()
    assert billing.read_between(orders.end().start, end)[0].num_rows == 0
    assert trips == ["do_action end", "do_action read.open"]
    assert billing.state().next_position == end
