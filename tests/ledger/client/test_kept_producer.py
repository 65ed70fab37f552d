"""Goal: appends that share kept producers lose and double no row. Method: a real broker, killed at chosen moments.

An answer is lost by killing the broker when the answer has arrived, before the producer sees it.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client import append_transport, kept_producer
from pyspark_ledger.ledger.client.append_transport import FlightStream, RingStream
from pyspark_ledger.ledger.client.kept_producer import KeptProducer, KeptProducers
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.protocol.actions import RegisterSchema
from tests.rigs.broker_process import kill_broker
from tests.rigs.deadline import wait_until

Stream = type[RingStream] | type[FlightStream]
ENTRY_ROWS = 20


def row(number: int) -> list[dict[str, object]]:
    return [{"id": number}]


def ids(ledger: Ledger) -> list[int]:
    found: list[int] = ledger.read().column("id").to_pylist()
    return found


@pytest.fixture(params=["ring", "flight"])
def stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The kind of stream that appends take."""
    if request.param == "ring":
        return RingStream
    monkeypatch.setattr(append_transport, "_same_user_socket", lambda _: None)
    return FlightStream


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[..., Any], skip: int = 0) -> None:
    """Have `act` take the place of one call of a method, after `skip` calls."""
    real, left = getattr(owner, name), [skip]

    def called(*given: Any) -> Any:
        left[0] -= 1
        return act(real, *given) if left[0] == -1 else real(*given)

    monkeypatch.setattr(owner, name, called)


def lost_with(store_path: Path) -> Callable[..., None]:
    """An answer arrives, and is lost with its broker."""

    def act(read: Callable[..., bytes | None], self: Any) -> None:
        assert read(self) is not None
        kill_broker(store_path)
        raise ConnectionResetError

    return act


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_killed_broker_between_appends_is_not_noticed(store: LedgerStore, store_path: Path, stream: Stream) -> None:
    orders = store.ledger("orders")
    for number in range(4):
        orders.append(row(number))
        kill_broker(store_path)
    assert ids(orders) == [0, 1, 2, 3]


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_lost_answer_doubles_no_row(
    store: LedgerStore, store_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = store.ledger("orders")
    once(monkeypatch, stream, "read", lost_with(store_path), skip=1)
    orders.append(row(0))
    end = orders.append(row(1))
    assert end == orders.end().end
    orders.append(row(2))
    assert ids(orders) == [0, 1, 2]


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_lost_entry_is_sent_again(
    store: LedgerStore, store_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = store.ledger("orders")
    orders.append(row(0))

    def act(send: Callable[..., None], *given: Any) -> None:
        kill_broker(store_path)
        send(*given)

    once(monkeypatch, stream, "send", act)
    orders.append(row(1))
    assert ids(orders) == [0, 1]


@pytest.mark.broker_process
@pytest.mark.parametrize("skip", range(3))
@pytest.mark.thorough
def test_of_many_entries_those_that_lack_are_sent_again(
    store: LedgerStore, store_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch, skip: int
) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.rows.batch_sizes._ENTRY_BYTES", 8 * ENTRY_ROWS)
    orders = store.ledger("orders")
    once(monkeypatch, stream, "read", lost_with(store_path), skip)
    for first in range(0, 500, 100):
        end = orders.append([{"id": number} for number in range(first, first + 100)])
        assert end == orders.end().end
    assert ids(orders) == list(range(500))


def test_a_lost_answer_of_a_living_broker_is_unknown(
    store: LedgerStore, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(read: Callable[..., bytes | None], self: Any) -> None:
        assert read(self) is not None
        raise ConnectionResetError

    orders = store.ledger("orders")
    once(monkeypatch, stream, "read", act)
    with pytest.raises(Unavailable, match="it is unknown whether"):
        orders.append(row(0))
    orders.append(row(1))
    assert ids(orders) == [0, 1]


def test_a_ledger_made_anew_is_looked_at_anew(store: LedgerStore, stream: Stream) -> None:
    orders = store.ledger("orders")
    orders.append(row(0))
    store.delete("orders")
    orders.append([{"name": "tea"}])
    assert orders.read().to_pylist() == [{"name": "tea"}]
    store.delete("orders")
    store.create("orders").append(b"message")
    with pytest.raises(Refused, match=r"has messages \(1 entries\)"):
        orders.append([{"name": "tea"}])
    orders.append(b"another")
    assert orders.read().column("value").to_pylist() == [b"message", b"another"]


def test_columns_that_others_add_are_found(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append(row(0))
    wider = pa.schema([pa.field("id", pa.int64()), pa.field("total", pa.float32())])
    store.client.ask(RegisterSchema(orders.name, bytes(wider.serialize()), 0))
    orders.append([{"id": 1, "total": 2}])
    with pytest.raises(Refused, match="column 'more'"):
        orders.append([{"id": 2, "more": 2}])
    orders.append([{"id": 2, "total": 3}])
    assert orders.read().column("total").to_pylist() == [None, 2.0, 3.0]


def test_threads_and_copies_share_no_sequence_ids(store: LedgerStore) -> None:
    orders = store.create("orders", deduplication=True)
    orders.append(row(0))
    copy = pickle.loads(pickle.dumps(orders))  # noqa: S301 — our own
    with ThreadPoolExecutor(8) as executor:
        done = [executor.submit((orders, copy)[number % 2].append, row(number)) for number in range(1, 200)]
    assert len({future.result() for future in done}) == 199
    assert sorted(ids(orders)) == list(range(200))
    copy.client.close()


def test_a_refused_append_harms_no_other(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append(row(0))
    (kept,) = store.client.kept._idle
    with pytest.raises(Refused):
        orders.append([{"id": "x"}])
    assert store.client.kept._idle == [kept]
    log = store.ledger("log")
    log.append(b"fine")
    with pytest.raises(Refused, match="bytes"):
        log.append(bytes(70 << 20))
    log.append(b"fine")
    assert log.describe().entries == 2
    log.terminate()
    with pytest.raises(Exception, match="terminated"):
        log.append(b"late")


def test_silence_ends_a_kept_stream(store: LedgerStore, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_producer, "_IDLE_TIMEOUT_MS", 30)
    orders = store.ledger("orders")
    for number in range(3):
        orders.append(row(number))
        (kept,) = store.client.kept._idle
        wait_until(lambda kept=kept: not kept._producer._receiver.is_alive(), "the stream ends")
        assert kept.is_over
        assert store.client.kept.take(orders.name) is None
    assert ids(orders) == [0, 1, 2]


def test_a_busy_stream_is_kept_through_silences(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_producer, "_IDLE_TIMEOUT_MS", 2_000)
    orders = store.ledger("orders")
    orders.append(row(0))
    (kept,) = store.client.kept._idle
    kept._producer._used = False  # as after a silence
    orders.append(row(1))
    assert kept._producer._used
    assert store.client.kept._idle == [kept]


def test_idle_producers_are_few_and_end_with_the_client(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_producer, "_IDLE_MAX", 2)
    made = [KeptProducer(store.client, f"log-{number}") for number in range(3)]
    pool = KeptProducers()
    for number, kept in enumerate(made):
        pool.give(kept)  # no stream: not kept
        store.ledger(f"log-{number}").append(b"x")
    assert pool._idle == []
    idle = store.client.kept._idle
    assert [kept.ledger.rpartition("/")[2] for kept in idle] == ["log-1", "log-2"]
    threads = [kept._producer._receiver for kept in idle]
    store.client.close()
    wait_until(lambda: not any(thread.is_alive() for thread in threads), "the streams end")
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.endswith("log-0")],
        "the oldest ends, too",
    )


def test_a_forked_child_leaves_the_stream_to_its_parent(store: LedgerStore, stream: Stream) -> None:
    orders = store.ledger("orders")
    orders.append(row(0))
    child = os.fork()
    if not child:
        try:
            orders.append(row(9))
        except Refused as refused:
            os._exit(0 if "forked" in str(refused) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    (kept,) = store.client.kept._idle
    orders.append(row(1))
    assert store.client.kept._idle == [kept]
    assert ids(orders) == [0, 1]
