"""Goal: a checkpoint continues only in the store that wrote it, or in a copy of this store.

Method: Spark's calls over the brokers of two stores with ledgers of the same names.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_ledger.connector.connection import print_once
from pyspark_ledger.connector.read.offsets import StreamOffset
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import Refused
from tests.rigs.broker_thread import BrokerThread, served
from tests.rigs.stream import append, reader, rows, text

ALL = ReadAllAvailable()
KINDS = [{}, {"ledgersPattern": "orders.*"}, {"subscription": "billing"}]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LedgerStore]:
    """Another store, whose ledger `orders` has more rows."""
    with served(tmp_path / "other") as other:
        append(other.ledger("orders"), 100, 130)
        yield other


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strict", ["true", "false"])
def test_checkpoint_of_another_store_is_refused_by_name(
    store: Path, orders: Ledger, other: LedgerStore, kind: dict[str, str], strict: str
) -> None:
    options = {**kind, "failOnDataLoss": strict, "startingPosition": "earliest"}
    stream = reader(store, **options)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    stream.stop()
    ours, theirs = orders.client.store_id, other.client.store_id
    assert end["store"] == start["store"] == {"at": str(store), "id": ours}
    astray = reader(Path(other.location), **options)
    said = rf"is of store {ours} at {store}, the query reads store {theirs} at {other.location}.*{store}"
    with pytest.raises(Refused, match=said):
        astray.latestOffset(end, ALL)
    with pytest.raises(Refused, match=said):
        astray.partitions(start, end)
    assert other.ledger("orders").describe().cursors == [], "a refused query leaves no cursor"
    astray.stop()
    again = reader(store, **options)  # as the hint says
    append(orders, 10, 12)
    assert rows(again, end, text(again.latestOffset(end, ALL))) == [10, 11]
    again.stop()


def test_checkpoint_meets_another_store_at_the_same_place(store: Path, orders: Ledger) -> None:
    stream = reader(store, failOnDataLoss="false")
    start = text(stream.initialOffset())
    start["store"]["id"] = "0f"
    with pytest.raises(Refused, match=rf"of store 0f at {store}, .* Restore the former store here"):
        stream.latestOffset(start, ALL)
    stream.stop()


def test_checkpoint_of_an_earlier_version_is_accepted(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    earlier = {name: value for name, value in end.items() if name != "store"}
    assert stream.latestOffset(earlier, ALL) == earlier, "Spark must see an unchanged offset"
    append(orders, 10, 12)
    after = text(stream.latestOffset(earlier, ALL))
    assert after["store"]["id"] == orders.client.store_id
    assert rows(stream, earlier, after) == rows(stream, end, after) == [10, 11]
    assert json.dumps(stream.latestOffset(after, ALL)) == json.dumps(after)
    stream.stop()


@pytest.mark.parametrize("answer", ["moved", "copied"])
def test_copy_continues_the_checkpoint_and_makes_it_its_own(
    store: Path, orders: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    stream = reader(store, startingPosition="earliest")
    end = text(stream.latestOffset(text(stream.initialOffset()), ALL))
    shutil.copytree(store, tmp_path / "copy")
    print_once.cache_clear()
    with closing(BrokerThread(tmp_path / "copy", "--take-over", answer)):
        copy = connect(tmp_path / "copy")
        append(copy.ledger("orders"), 50, 52)
        copied = reader(tmp_path / "copy")
        after = text(copied.latestOffset(end, ALL))
        assert rows(copied, end, after) == [50, 51]
        assert StreamOffset.from_json(after).store.store_id == copy.client.store_id
        assert ("is a copy of that store" in capsys.readouterr().err) == (answer == "copied")
        copied.stop()
    if answer == "copied":
        with pytest.raises(Refused, match=f"of store {copy.client.store_id} at {tmp_path / 'copy'}"):
            stream.latestOffset(after, ALL)
    stream.stop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["moved", "copied"])
def test_a_checkpoint_that_went_on_after_the_copy_skips_no_new_row(
    store: Path, orders: Ledger, tmp_path: Path, answer: str, kind: dict[str, str]
) -> None:
    """The rows that the query read after the copy was made had a segment id that the copy would use next."""
    shutil.copytree(store, tmp_path / "copy")
    orders.seal()
    append(orders, 10, 13)
    stream = reader(store, **kind, startingPosition="earliest")
    end = text(stream.latestOffset(text(stream.initialOffset()), ALL))
    stream.stop()
    with closing(BrokerThread(tmp_path / "copy", "--take-over", answer)):
        copied = reader(tmp_path / "copy", **kind)
        append(connect(tmp_path / "copy").ledger("orders"), 50, 52)
        assert rows(copied, end, text(copied.latestOffset(end, ALL))) == [50, 51]
        copied.stop()
