"""Goal: `repr` and the pictures show the present state of a store, and never raise.

Method: a real store with a bucket, whose broker is stopped, suspended and killed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.api.views import ledger_view
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import StopBroker
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.broker import BrokerRig, run_directory, session_run_directory
from tests.rigs.broker import rig as broker
from tests.rigs.broker_process import serving
from tests.rigs.deadline import wait_until
from tests.rigs.pictures import drawings, texts

__all__ = ["broker", "run_directory", "session_run_directory"]


def broker_ends(store: LedgerStore) -> None:
    wait_until(lambda: not serving(Path(store.location)), "the broker ends")


@pytest.fixture
def orders(store: LedgerStore, tmp_path: Path) -> Ledger:
    """Ledger with a segment in the bucket, a local one and an open one."""
    store.offload_to(tmp_path / "bucket")
    orders = store.ledger("orders")
    for number in range(3):
        for row in range(4):
            orders.append([{"id": number * 4 + row}])
        if number < 2:
            orders.seal()
        if number == 0:
            orders.offload()
    return orders


def test_a_ledger_shows_segments_cursors_and_gaps(store: LedgerStore, orders: Ledger) -> None:
    billing = orders.cursor("billing")
    first, second, third = (segment.ledger_id for segment in orders.describe().segments)
    billing.acknowledge(Position(first, 2))
    billing.acknowledge_rows([(second, 1), (third, 0)])
    lines = repr(orders).splitlines()
    assert lines[0].startswith("Ledger(public/default/persistent/orders): 12 rows in 12 entries")
    assert lines[1] == "  [blo] b in the bucket and local 1, l local 1, o open 1"
    assert lines[2] == f"  cursor billing: at {first}:2: 8 rows behind, 2 ranges acknowledged out of order"
    assert repr(billing).startswith("Cursor(public/default/persistent/orders, billing): at 0:2: 8 rows behind")
    strip, track = drawings(orders._repr_html_())
    assert len(strip.findall("*")) == 4, "three segments and a cursor"
    assert len(track.findall("*")) == 5, "two ranges"
    assert "8 rows behind, 2 ranges acknowledged out of order" in texts(billing._repr_html_())
    assert "orders" in texts(store._repr_html_())
    assert repr(store).splitlines()[1].startswith("  orders: 12 rows in 12 entries")


def test_a_partitioned_ledger_shows_its_partitions(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 20)
    clicks.append(b"home")
    text = repr(clicks)
    assert text.startswith("PartitionedLedger(public/default/persistent/clicks): 1 row in 1 entry, ")
    assert "clicks-partition-15: " in text
    assert "and 4 more partitions" in text
    assert "and 4 more partitions" in texts(clicks._repr_html_())
    assert len(drawings(clicks._repr_html_())) == 16


def test_a_missing_ledger_and_cursor_are_said(store: LedgerStore, orders: Ledger) -> None:
    for missing in (store.ledger("order"), Cursor(orders, "bill")):
        assert "there is no" in repr(missing) or "has no" in repr(missing)
        assert "⚠ " in texts(missing._repr_html_())


def test_a_store_without_a_broker_is_shown_from_its_files(store: LedgerStore, orders: Ledger) -> None:
    orders.cursor("billing")
    read_only = open_read_only(store.location)
    assert repr(read_only.ledger("orders")) == repr(orders)
    assert repr(read_only) == repr(store)


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_private_broker_that_has_exited_is_started_for_a_display(store: LedgerStore, orders: Ledger) -> None:
    assert "12 rows" in repr(orders)
    store.client.ask(StopBroker())
    broker_ends(store)
    assert "12 rows" in repr(orders)


@pytest.mark.thorough
def test_a_broker_that_is_away_is_said(broker: BrokerRig) -> None:
    child = broker.start("--create")
    store = LedgerStore(broker.client())
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    billing = orders.cursor("billing")
    whole = ledger_view(store.client, orders.name)
    assert whole.problem == ""
    for suspend in (True, False):
        if suspend:
            broker.halt(child.pid)
        else:
            child.kill()
            child.wait()
        for shown in (orders,) if suspend else (store, orders, billing):
            text = repr(shown)
            assert text.startswith(f"{type(shown).__name__}(")
            assert store.client.address in text
            assert "⚠ " in texts(shown._repr_html_())


def test_many_cursors_are_bounded(store: LedgerStore, orders: Ledger) -> None:
    for number in range(14):
        orders.cursor(f"c{number:02}")
    assert "and 2 more cursors" in repr(orders)
    assert len(drawings(orders._repr_html_())) == 13


def test_a_position_shows_segment_and_entry() -> None:
    assert texts(Position(3, 17)._repr_html_()).split("\n") == ["segment 3", "entry 17"]
    assert texts(EARLIEST._repr_html_()) == "before the first entry"
    assert texts(LATEST._repr_html_()) == "after the last entry"
    assert repr(Position(3, 17)) == "Position(ledger_id=3, entry_id=17)"
