"""Goal: what a user closes refuses calls and holds nothing, and a store that nobody closes warns as a file does.

Method: a broker, and handles that are closed once, twice, by several threads and while a stream is read.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.resource_warnings import resource_warnings

UNCLOSED = "unclosed ledger store"


def calls_of(ledger: Ledger) -> list[Callable[[], object]]:
    return [
        ledger.read,
        lambda: ledger.append([{"id": 1}]),
        lambda: ledger.append(b"x"),
        ledger.end,
        ledger.describe,
        ledger.schema,
        ledger.trim,
        lambda: ledger.producer(),  # noqa: PLW0108  # may be refused for the ledger's columns before
        lambda: next(iter(ledger.batches())),
        lambda: next(ledger.follow()),
        lambda: ledger.scan().table(),
        lambda: ledger.cursor("c"),
    ]


def require_refused(calls: list[Callable[[], object]], text: str) -> None:
    for call in calls:
        with pytest.raises(Refused, match=f"{text}.* is closed"):
            call()


def test_a_closed_store_refuses_calls_of_all_that_it_has_given(store: LedgerStore) -> None:
    with store:
        orders = store.ledger("orders")
        orders.append([{"id": 1}])
        cursor, scan = orders.cursor("billing"), orders.scan()
        assert scan.table().num_rows == 1
    store.close()
    named = f"the store {store.location}"
    require_refused([store.names, lambda: store.ledger("orders"), lambda: store.create("x")], named)
    require_refused([*calls_of(orders), cursor.read, cursor.state, scan.table, scan.reader], named)
    assert "is closed" in repr(store)
    assert "is closed" in repr(orders)
    with connect(store.location) as again:
        assert again.ledger("orders").read().to_pylist() == [{"id": 1}]


def test_a_closed_ledger_closes_its_cursors_and_not_its_store(store: LedgerStore) -> None:
    with store.ledger("orders") as orders:
        orders.append([{"id": 1}])
        scan, cursor = orders.scan(), orders.cursor("billing")
    orders.close()
    require_refused(calls_of(orders), "the ledger 'orders'")
    assert "the ledger 'orders' is closed" in repr(orders)
    require_refused([pickle.loads(pickle.dumps(orders)).read], "the ledger 'orders'")  # noqa: S301  # of this test
    require_refused([cursor.read, cursor.state], "the ledger 'orders'")
    assert scan.table().num_rows == store.ledger("orders").read().num_rows == 1
    with store.create_partitioned("clicks", 2) as clicks:
        clicks.append([{"n": 1}])
    require_refused([clicks.partitions, clicks.read, lambda: clicks.append([{"n": 1}])], "the ledger 'clicks'")
    assert isinstance(clicks, PartitionedLedger)


def test_a_closed_cursor_keeps_its_position_and_its_ledger_open(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    with orders.cursor("billing") as cursor:
        _, position = cursor.read()
        cursor.acknowledge(position)
    cursor.close()
    calls = [
        cursor.read, cursor.state, cursor.delete, lambda: cursor.acknowledge(position), lambda: cursor.skip(1),
        lambda: cursor.reset(position), lambda: cursor.seek(0), lambda: cursor.acknowledge_rows([(0, 0)]),
        lambda: cursor.read_between(position, position), lambda: cursor.replay([position]),
    ]  # fmt: skip
    require_refused(calls, "the cursor 'billing' of ledger 'orders'")
    assert Cursor(orders, "billing").state().backlog_rows == 0
    assert orders.read().num_rows == 1


def test_a_closed_store_closes_its_producers_after_their_messages(store: LedgerStore) -> None:
    clicks, parts = store.ledger("clicks"), store.create_partitioned("parts", 2)
    producers = [clicks.producer(), parts.producer()]
    sent = [producer.send(b"%d" % number) for producer in producers for number in range(100)]
    clicks.append(b"kept")
    store.close()
    assert all(future.done() and future.exception() is None for future in sent)
    for producer in producers:
        with pytest.raises(Unavailable, match="is closed"):
            producer.send(b"late")
        producer.close()
    with connect(store.location) as again:
        assert (again.ledger("clicks").read().num_rows, again.ledger("parts").read().num_rows) == (101, 100)


def test_threads_close_and_use_a_store_at_the_same_time(store: LedgerStore) -> None:
    orders, together = store.ledger("orders"), threading.Barrier(6)
    orders.append([{"id": 0}])

    def append(_: int) -> LedgerError | None:
        together.wait(30)
        try:
            while True:
                orders.append([{"id": 1}])
        except LedgerError as error:
            return error

    def close(_: int) -> None:
        together.wait(30)
        store.close()

    with ThreadPoolExecutor(6) as pool:
        errors, closed = pool.map(append, range(4)), pool.map(close, range(2))
        assert list(closed) == [None, None]
        assert all("closed" in str(error) for error in errors)


def test_a_stream_of_a_closed_store_ends_with_the_error(store: LedgerStore) -> None:
    noise, wide = np.random.default_rng(0), store.ledger("wide")
    for _ in range(4):
        wide.append(pa.table({"n": noise.integers(0, 2**62, 512 * 1024)}))
    wide.seal()
    for opened in (open_read_only(store.location), store):
        stream = opened.ledger("wide").scan().batches()
        assert next(stream).num_rows
        opened.close()
        with pytest.raises(Refused, match=r"the store .* is closed"):
            list(opened.ledger("wide").batches())
        try:
            assert sum(batch.num_rows for batch in stream) > 0, "the blocks that were mapped already"
        except Refused as error:
            assert "is closed" in str(error)  # noqa: PT017  # either end is right, and none is silent


def test_a_store_that_is_not_closed_warns_when_it_is_freed(store: LedgerStore) -> None:
    def closed() -> None:
        with connect(store.location) as opened:
            opened.ledger("orders").append([{"id": 1}])

    assert resource_warnings(lambda: connect(store.location).names()) == [f"{UNCLOSED} {store.location}"]
    assert resource_warnings(closed) == []
    assert resource_warnings(lambda: open_read_only(store.location).names()) == [], "it has no connection"
    kept = connect(store.location).ledger("orders")
    assert resource_warnings(lambda: kept.read()) == [], "the ledger uses the connection"  # noqa: PLW0108  # not the table
    child = os.fork()
    if not child:
        del kept
        os._exit(bool(resource_warnings(lambda: None)))
    assert os.waitpid(child, 0)[1] == 0, "a fork has not connected"


def test_a_program_that_closes_its_store_gives_no_warning(store: LedgerStore, tmp_path: Path) -> None:
    program = "import sys; from pyspark_ledger import connect\nwith connect(sys.argv[1]) as store: print(store.names())"
    run = [sys.executable, "-W", "error::ResourceWarning", "-X", "dev", "-c", program, store.location]
    found = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert (found.stdout, found.stderr) == ("[]\n", "")
