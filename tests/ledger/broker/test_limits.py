"""Goal: what is too much or nonsense is refused by name and changes nothing; what is merely a lot waits.

Method: real brokers with tiny limits; every action is given every kind of nonsense, and the store is compared.
"""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from pyspark_ledger.ledger.broker.limits import Connections
from pyspark_ledger.ledger.client.broker_environment import bounded_allocator
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import (
    ENTRY_SCHEMA,
    REQUESTS,
    AppendCommand,
    AskSettings,
    ChangeSetting,
    CreateLedger,
    DescribeLedger,
    ListLedgers,
    SettingState,
)
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.protocol.ends import WaitEnds
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.protocol.reads import OpenRead, ReadLimits, ReadRequest, SplitRequest
from pyspark_ledger.ledger.protocol.request import Request
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.shared_ring import entry_batch

Rig = Any
MIB = 1024 * 1024
EVERYTHING = PositionRange(EARLIEST, LATEST)


def change(client: Client, name: str, value: int | None) -> SettingState:
    found = client.ask(ChangeSetting(name, value))
    return next(state for state in found.settings if state.name == name)


@pytest.fixture
def limited(shared_rig: Rig) -> Iterator[Client]:
    """A client of a broker whose settings are as they were when the test ends."""
    client = shared_rig.client(deadline_ms=0)
    yield client
    other = shared_rig.client()
    for state in other.ask(AskSettings()).settings:
        if state.changed:
            change(other, state.name, None)
    other.close()
    client.close()


def records(store: Path) -> list[str]:
    """Everything that the metadata holds, and every file beside it."""
    connection = sqlite3.connect(f"{(store / 'metadata.sqlite').as_uri()}?mode=ro", uri=True)
    files = sorted(str(path) for path in store.rglob("*") if not path.name.startswith("metadata.sqlite"))
    found = [*connection.iterdump(), *files]
    connection.close()
    return found


VALUES = {
    "name": "orders",
    "scope": "orders",
    "ledger": "orders",
    "cursor": "billing",
    "range": [[-1, 0], [0, 0]],
    "parts": [],
}


def sample(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A request of that kind that the store has an answer for, as JSON."""
    known = {"start": [-1, 0], "next_position": [-1, 0], "since": [-1, 0], "properties": {}, **VALUES}
    fields = [field.encode_name for field in msgspec.structs.fields(kind)]
    return {name: known[name] for name in fields if name in known} | {
        field.encode_name: 1 if "int" in str(field.type) else "x"
        for field in msgspec.structs.fields(kind)
        if field.required and field.encode_name not in known
    }


def broken_bodies(kind: type[msgspec.Struct]) -> Iterator[bytes]:
    """Bodies that are no request of that kind: no JSON, another shape, a field of another type or out of bounds."""
    yield from (
        b"garbage",
        b"\xff\xfe",
        b"[1]",
        b'"text"',
        b'{"name":',
        b"[" * 20_000,
        b'{"strange": ' + b"[" * 20_000,
        b'{"name": "a"}}',
    )
    for field in msgspec.structs.fields(kind):
        for wrong in ([{}], {"a": 1}, 2**80, 1.5, [[2**80, 0], [0, 2**80]], [2**80, -(2**80)]):
            yield json.dumps({**sample(kind), field.encode_name: wrong}).encode()


@pytest.mark.parametrize("action", REQUESTS)
def test_nonsense_is_refused_by_name_and_changes_nothing(shared_rig: Rig, limited: Client, action: str) -> None:
    limited.ask(CreateLedger("orders", exist_ok=True))
    limited.ask(OpenCursor("orders", "billing", EARLIEST))
    before = records(shared_rig.store)
    for body in broken_bodies(REQUESTS[action]):
        with pytest.raises(flight.FlightServerError, match=rf"\[LEDGER_REFUSED\] (action '{action}'|.*'a')"):
            list(limited.connection().do_action(flight.Action(action, body), limited.options(30)))
    assert records(shared_rig.store) == before
    assert limited.hello()


def test_a_request_that_is_too_long_is_refused_before_it_is_read(shared_rig: Rig, limited: Client) -> None:
    before, size = records(shared_rig.store), 16 * MIB + 1
    with pytest.raises(Refused, match=r"action 'create' has \d+ bytes, at most 16777216 are allowed"):
        limited.ask(CreateLedger("long", properties={"a": "b" * size}))
    ticket = flight.Ticket(b" " * size)
    with pytest.raises(flight.FlightServerError, match=f"a read has {size} bytes"):
        limited.connection().do_get(ticket, limited.options(30)).read_all()
    assert records(shared_rig.store) == before


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (SplitRequest("orders", EVERYTHING, 1, max_parts=0), "max_parts"),
        (SplitRequest("orders", EVERYTHING, 1, max_parts=100_001), "max_parts"),
        (SplitRequest("orders", EVERYTHING, -1), "target_bytes"),
        (WaitEnds("w", 0, -1, []), "wait_ms"),
        (OpenRead("orders", EARLIEST, limits=ReadLimits(0, 1)), "limits.rows"),
        (ReadRequest("orders", EVERYTHING, max_block_bytes=0), "max_block_bytes"),
        (CreateLedger("fresh", max_entries_per_ledger=-1), "max_entries_per_ledger"),
    ],
)
def test_a_number_beyond_its_bounds_is_refused_by_name(limited: Client, request_: Request[object], field: str) -> None:
    with pytest.raises(Refused, match=rf"`\$\.{field}`"):
        limited.ask(request_)
    assert "fresh" not in str(limited.ask(ListLedgers()).names)


def test_entry_too_large_for_a_request_is_refused_and_the_next_accepted(
    limited: Client, make_entry: Callable[..., bytes]
) -> None:
    limited.ask(CreateLedger("large", exist_ok=True))
    change(limited, "maxMessageSize", 5 * MIB)
    producer = limited.producer("large")
    with pytest.raises(Refused, match="setting 'maxMessageSize' allows 5242880"):
        producer.append(make_entry(b"x" * (6 * MIB))).result(30)
    with pytest.raises(Refused):
        producer.close()
    with limited.producer("large") as again:
        again.append(make_entry(b"x" * (4 * MIB))).result(30)
    assert limited.ask(DescribeLedger("large")).entries == 1


def test_calls_up_to_the_limit_are_served_and_the_limit_can_be_changed(
    limited: Client, make_entry: Callable[..., bytes]
) -> None:
    limited.ask(CreateLedger("orders", exist_ok=True))
    change(limited, "maxConcurrentRequests", 1)
    with limited.producer("orders") as producer:
        producer.append(make_entry(b"x")).result(30)
        with pytest.raises(Unavailable, match=r"this broker has 1 calls, setting 'maxConcurrentRequests' allows 1"):
            limited.ask(ListLedgers())
        assert limited.hello()
        change(limited, "maxConcurrentRequests", 2)
        assert limited.ask(ListLedgers()).names
    change(limited, "maxConcurrentRequests", 1)
    assert limited.ask(ListLedgers(), deadline_ms=30_000).names, "the stream that ended gave its place back"


def test_a_reader_too_many_waits_until_another_has_gone(
    shared_rig: Rig, limited: Client, make_entry: Callable[..., bytes]
) -> None:
    limited.ask(CreateLedger("wide", exist_ok=True))
    with limited.producer("wide") as producer:
        for _ in range(16):
            producer.append(make_entry(b"x" * (4 * MIB)))
    change(limited, "maxConcurrentRequests", 1)
    request = ReadRequest("wide", EVERYTHING)
    slow = limited.connection().do_get(flight.Ticket(msgspec.json.encode(request)), limited.options())
    slow.read_chunk()
    with pytest.raises(Unavailable, match=r"this broker has 1 calls, setting 'maxConcurrentRequests' allows 1"):
        next(limited.read_blocks(request, mapping=False))
    slow.cancel()
    patient = shared_rig.client()
    assert sum(block.entries for block in patient.read_blocks(request, mapping=False)) == 16


def test_a_connection_too_many_is_refused_and_taken_when_there_is_room() -> None:
    connections = Connections(lambda: 1_000, most=3)
    connections.begin()
    with ExitStack() as opened:
        for _ in range(2):
            for end in socket.socketpair():
                opened.enter_context(end)
        with pytest.raises(Unavailable, match="this broker has 4 connections, and allows 3"):
            connections.require_room()
    connections.require_room()
    assert connections.count == 0, "what was closed counts no more"


def test_a_change_outlives_the_broker_and_can_be_taken_back(rig: Rig) -> None:
    broker = rig.start("--create")
    state = change(rig.client(), "metricsLedgersMax", 7)
    assert (state.value, state.default, state.changed, state.live) == (7, Settings().metricsLedgersMax, True, True)
    broker.kill()
    broker.wait()
    rig.start()
    client = rig.client()
    found = {state.name: state for state in client.ask(AskSettings()).settings}
    assert found["metricsLedgersMax"].value == 7
    state = change(client, "metricsLedgersMax", None)
    assert (state.value, state.changed) == (Settings().metricsLedgersMax, False)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ledgerBlockSizeBytes", 5 * MIB, "cannot be changed while the broker runs.*restart"),
        ("tlsKeyFilePath", 1, "cannot be changed while the broker runs.*restart"),
        ("metricsLedgerMax", 1, "no setting 'metricsLedgerMax'. Did you mean 'metricsLedgersMax'"),
        ("metricsLedgersMax", 100_001, "'metricsLedgersMax' is 100001, expected an integer from 0 to 100000 ledgers"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(limited: Client, name: str, value: int, said: str) -> None:
    before = limited.ask(AskSettings())
    with pytest.raises(Refused, match=said):
        change(limited, name, value)
    assert limited.ask(AskSettings()) == before


def peak_mib(pid: int) -> int:
    """The most memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def test_compressed_zeros_are_refused_before_they_take_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bounded_allocator({}).items():
        monkeypatch.setenv(name, value)
    broker = rig.start("--create")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    before = peak_mib(broker.pid)
    descriptor = flight.FlightDescriptor.for_command(request_body(AppendCommand("orders", "p")))
    options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    writer, _ = client.connection().do_put(descriptor, ENTRY_SCHEMA, options)
    writer.write_batch(entry_batch([bytes(400 * MIB)]))
    with pytest.raises(flight.FlightServerError, match=r"LEDGER_REFUSED.* too large for the memory of Arrow"):
        writer.close()
    assert peak_mib(broker.pid) < before + 100
    assert client.ask(DescribeLedger("orders")).entries == 0


@pytest.mark.thorough
def test_a_file_of_changes_that_makes_no_sense_stops_the_start(rig: Rig) -> None:
    rig.start("--create").terminate()
    for text in (
        b"nonsense",
        b'{"metricsLedgersMax": -1}',
        b'{"ledgerBlockSizeBytes": 5242880}',
        b'{"maxWait\xff": 1}',
    ):
        (rig.store / "settings.json").write_bytes(text)
        broker = rig.spawn()
        assert broker.wait(30) == 2
        assert str(rig.store / "settings.json") in rig.log().splitlines()[-1]


@pytest.mark.thorough
def test_the_idle_limit_counts_when_it_is_changed(rig: Rig) -> None:
    broker = rig.start("--create")
    change(rig.client(), "brokerIdleTimeoutSeconds", 1)
    assert broker.wait(60) == 0
