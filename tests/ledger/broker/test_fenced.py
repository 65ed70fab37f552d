"""Goal: a broker whose store was taken over acknowledges nothing, by no action. Method: both brokers in one process, so
that the old broker is called at the moment of the take-over. Then with real processes: the old broker is suspended
with calls in flight, and wakes up after the take-over.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.broker.context import BrokerContext
from pyspark_ledger.ledger.broker.listening import Listening
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.server import BrokerServer
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.clock import monotonic_ms, system_clock_ms
from pyspark_ledger.ledger.errors import Fenced, LedgerError, Unavailable
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.positions.acknowledge_request import ACKNOWLEDGE_SCHEMA
from pyspark_ledger.ledger.protocol.actions import (
    REQUESTS,
    AcknowledgeCommand,
    ChangePartitions,
    ChangeSetting,
    CreateLedger,
    DeleteLedger,
    DescribeLedger,
    GetSchema,
    ListLedgers,
    RegisterSchema,
    RestoreSchema,
)
from pyspark_ledger.ledger.protocol.commits import AbortRun, CommitRun, CommitRuns, LedgerParts, OpenStaging, OpenUpload
from pyspark_ledger.ledger.protocol.cursors import (
    AckDeadLetters,
    AckDelivery,
    AcquireLease,
    AcquireLeases,
    CursorProperties,
    DeleteCursor,
    DescribeCursor,
    MarkDelete,
    NextDelivery,
    OpenCursor,
    OpenCursors,
    ReleaseLease,
    ReleaseLeases,
    ResetCursor,
    SkipEntries,
)
from pyspark_ledger.ledger.protocol.ledgers import (
    AskSequence,
    ChangePolicy,
    ChangeProperties,
    OffloadPrefix,
    SealLedger,
    TerminateLedger,
    TrimLedger,
)
from pyspark_ledger.ledger.protocol.request import Request
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store

Rig = Any
TOKEN = "a token of this host"
ORDERS = "public/default/persistent/orders"
# One request for each action that may change something.
CHANGES: dict[str, Callable[[Any], Request[Any]]] = {
    "create": lambda _: CreateLedger("fresh"),
    "delete": lambda _: DeleteLedger("orders"),
    "partitions.extend": lambda _: ChangePartitions("wide", 3),
    "trim": lambda _: TrimLedger("orders"),
    "offload": lambda _: OffloadPrefix("orders", cancel=True),
    "terminate": lambda _: TerminateLedger("orders"),
    "seal": lambda _: SealLedger("orders"),
    "properties": lambda _: ChangeProperties("orders", {"a": "b"}),
    "policy": lambda _: ChangePolicy("orders"),
    "schema.register": lambda _: RegisterSchema("orders", b'{"type":"STRING"}'),
    "schema.restore": lambda _: RestoreSchema("orders"),
    "cursor.open": lambda _: OpenCursor("orders", "fresh", EARLIEST),
    "cursor.mark_delete": lambda _: MarkDelete("orders", "billing", Position(0, 1)),
    "cursor.reset": lambda _: ResetCursor("orders", "billing", Position(0, 1)),
    "cursor.delete": lambda _: DeleteCursor("orders", "billing"),
    "cursor.skip": lambda _: SkipEntries("orders", "billing", 1, EARLIEST, LATEST),
    "cursor.properties": lambda _: CursorProperties("orders", "billing", {"a": "b"}),
    "delivery.next": lambda _: NextDelivery("orders", "billing", 0, EARLIEST, Position(0, 1), explicit=True),
    "delivery.acknowledge": lambda _: AckDelivery("orders", "billing", "me", []),
    "delivery.bury": lambda _: AckDeadLetters("orders", "billing", 0),
    "lease.acquire": lambda _: AcquireLease("orders", "billing", "me", 1000),
    "cursor.open.many": lambda _: OpenCursors([OpenCursor("orders", "fresh", EARLIEST)]),
    "lease.acquire.many": lambda _: AcquireLeases([AcquireLease("orders", "billing", "me", 1000)]),
    "lease.release.many": lambda _: ReleaseLeases([ReleaseLease("orders", "billing", "me")]),
    "lease.release": lambda _: ReleaseLease("orders", "billing", "me"),
    "stage.open": lambda _: OpenStaging("q", 1, TOKEN),
    "stage.upload": lambda _: OpenUpload("q", 1, "orders", 0),
    "run.commit": lambda part: CommitRun("orders", "q", 0, 1, 2, [part]),
    "runs.commit": lambda part: CommitRuns("q", 0, 1, 2, [LedgerParts("orders", [part])]),
    # Changes nothing, but what it tells decides what a producer sends again.
    "producer.last": lambda _: AskSequence("orders", "p"),
    "run.abort": lambda part: AbortRun("q", 0, [part.part]),
    "settings.change": lambda _: ChangeSetting("metricsLedgersMax", 1),
}


class ServedStore:
    """A store with a server in this process, and what a client staged there."""

    def __init__(self, path: Path, make_entry: Callable[..., bytes]) -> None:
        self.path = path / "store"
        self.store = Store.open(self.path, settings=Settings(), clock=system_clock_ms, create=True)
        live = LiveSettings.load(self.path, Settings())
        self.address = f"grpc+unix://{path}/s"
        cache = CachedReads(Settings(), monotonic_ms, lambda name: self.store.ledger(name).snapshot)
        clocks = {"clock": system_clock_ms, "monotonic_ms": monotonic_ms}
        broker = BrokerContext(self.store, cache, live, token=TOKEN, token_path=path / "token", **clocks)
        self.server = BrokerServer(broker, Listening(self.address))
        self.client = Client(self.address, deadline_ms=0)
        self.client.ask(CreateLedger("orders"))
        self.client.ask(CreateLedger("wide", partitions=2))
        self.client.ask(OpenCursor("orders", "billing", EARLIEST))
        self.client.ask(AcquireLease("orders", "billing", "me", 60_000))
        self.producer = self.client.producer("orders")
        self.producer.append(make_entry(b"mine")).result(30)
        writer = self.client.stage_part("q", 0)
        writer.write([make_entry(b"staged", txnid_most_bits=1, txnid_least_bits=2)], 1)
        self.part = writer.close()
        self.open_part = self.client.stage_part("q", 1)
        # The stream is open at once; its file is made by a thread of the server's, whenever that comes to it.
        until = time.monotonic() + 60
        while sum(path.suffix == ".part" for path in self.staged()) < 2:
            assert time.monotonic() < until, "the part that stays open was never begun"
            time.sleep(0.01)

    def staged(self) -> list[Path]:
        """Names of the staged parts."""
        return sorted((self.path / "staging").rglob("*"))

    def close(self) -> None:
        for close in (self.producer.close, self.open_part.close):  # Flight's shutdown waits for streams
            with suppress(LedgerError):
                close()
        self.client.close()
        self.server.shutdown()
        self.store.close()


@pytest.fixture
def served(tmp_path: Path, make_entry: Callable[..., bytes]) -> Iterator[ServedStore]:
    served = ServedStore(tmp_path, make_entry)
    yield served
    served.close()


def test_every_action_either_reads_or_is_asked_here() -> None:
    assert set(CHANGES) == {action for action, kind in REQUESTS.items() if kind.call.changes}


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("action", CHANGES)
def test_no_action_is_acknowledged_that_could_change_something(
    served: ServedStore, action: str, taken_over: bool
) -> None:
    request = CHANGES[action](served.part)
    assert request.call.name == action
    if not taken_over:
        served.client.ask(request)  # so that the refusal is for the taking over, and nothing else
        return
    successor = Store.open(served.path, settings=Settings(), clock=system_clock_ms, take_over=OwnerChange.BROKER)
    try:
        files = served.staged()
        with pytest.raises(Fenced, match="has epoch 2, this broker has 1"):
            served.client.ask(request)
        assert served.staged() == files
        assert successor.names() == [ORDERS, "public/default/persistent/wide"]
    finally:
        successor.close()


def test_neither_an_append_nor_a_staged_part_is_acknowledged(
    served: ServedStore, make_entry: Callable[..., bytes]
) -> None:
    successor = Store.open(served.path, settings=Settings(), clock=system_clock_ms, take_over=OwnerChange.BROKER)
    try:
        with pytest.raises(Fenced):
            served.producer.append(make_entry(b"lost")).result(30)
        served.open_part.write([make_entry(b"lost")], 1)
        with pytest.raises(Fenced):
            served.open_part.close()
        assert successor.describe("orders").entries == 1
    finally:
        successor.close()


@pytest.mark.parametrize("action", ["ack", "nack"])
def test_rows_acknowledged_or_given_back_one_by_one_are_not_either(
    served: ServedStore, action: Literal["ack", "nack"]
) -> None:
    one = pa.RecordBatch.from_arrays(
        [pa.array([0]), pa.array([0]), pa.array([None], pa.large_binary())], schema=ACKNOWLEDGE_SCHEMA
    )
    command = AcknowledgeCommand("orders", "billing", action=action)
    successor = Store.open(served.path, settings=Settings(), clock=system_clock_ms, take_over=OwnerChange.BROKER)
    try:
        with pytest.raises(Fenced):
            acknowledge(served.client, command, [one], deadline_ms=0)
        assert successor.cursors.describe(DescribeCursor("orders", "billing")).acknowledged_entries == 0
    finally:
        successor.close()


@pytest.mark.thorough
def test_calls_in_flight_to_a_stopped_broker_are_not_acknowledged_later(
    rig: Rig, make_entry: Callable[..., bytes]
) -> None:
    first = rig.start("--create")
    old = rig.client(deadline_ms=0)
    old.ask(CreateLedger("orders"))
    old.ask(OpenCursor("orders", "billing", EARLIEST))
    producer = old.producer("orders")
    producer.append(make_entry(b"mine")).result(30)
    rig.halt(first.pid)
    late = producer.append(make_entry(b"late"))
    actions = ("create", "schema.register", "cursor.open", "cursor.mark_delete", "lease.acquire", "cursor.delete")
    became: dict[str, object] = {}

    def ask(action: str) -> None:
        try:
            became[action] = old.ask(CHANGES[action](None))
        except LedgerError as error:
            became[action] = error

    asking = [threading.Thread(target=ask, args=(action,)) for action in actions]
    for thread in asking:
        thread.start()
    rig.start("--take-over", "broker")
    first.send_signal(signal.SIGCONT)
    for thread in asking:
        thread.join(60)
    assert sorted(became) == sorted(actions)
    assert {type(answer) for answer in became.values()} <= {Fenced, Unavailable}
    with pytest.raises((Fenced, Unavailable)):
        late.result(30)
    fresh = rig.client()
    assert fresh.ask(ListLedgers()).names == [ORDERS]
    assert fresh.ask(DescribeLedger("orders")).entries == 1
    assert fresh.ask(DescribeLedger("orders")).cursors == ["billing"]
    assert fresh.ask(DescribeCursor("orders", "billing")).backlog_entries == 1
    assert fresh.ask(GetSchema("orders")).version == -1
