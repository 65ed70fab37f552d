"""Goal: clients do not disturb each other: not a hundred at once, not a slow one, not one that vanishes.

Method: a real broker; connections of their own in one process, and processes that are killed. What is waited for is a
condition; no duration is compared.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import flight

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger, ListLedgers
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from tests.rigs.entry import parsed

Rig = Any
CLIENTS = 100
MIB = 1024 * 1024
EVERYTHING = PositionRange(EARLIEST, LATEST)
# Reads one block, says so, and stands still.
READER = """
import sys, msgspec
from pyarrow import flight
connection = flight.connect(sys.argv[1])
reader = connection.do_get(flight.Ticket(sys.argv[2].encode()))
reader.read_chunk()
print("reading", flush=True)
sys.stdin.read()
"""
# Appends until it is killed, and tells what was acknowledged.
WRITER = """
import sys
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
producer = Client(sys.argv[1]).producer("orders")
for number in range(10**9):
    metadata = MessageMetadata(producer_name="w", sequence_id=number, publish_time=1)
    producer.append(b"".join(encode_entry(metadata, b"%d" % number))).result()
    print(number, flush=True)
"""


@pytest.fixture
def wide(rig: Rig, make_entry: Callable[..., bytes]) -> Client:
    """A broker with a ledger of 64 MiB in sixteen blocks."""
    rig.start("--create")
    client: Client = rig.client()
    client.ask(CreateLedger("wide"))
    with client.producer("wide") as producer:
        for _ in range(16):
            producer.append(make_entry(b"x" * (4 * MIB)))
    return client


def payloads(client: Client, ledger: str) -> Iterator[bytes]:
    request = ReadRequest(ledger, EVERYTHING)
    for block in client.read_blocks(request, mapping=False):
        for _, entry in parsed(block):
            yield bytes(entry.payload)


def anonymous_bytes(pid: int) -> int:
    """Memory that a process has for itself: what it maps of files does not count."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


@pytest.mark.thorough
def test_a_hundred_clients_write_and_read_at_once(rig: Rig, make_entry: Callable[..., bytes]) -> None:
    rig.start("--create")
    rig.client().ask(CreateLedger("orders"))
    clients = [rig.client() for _ in range(CLIENTS)]

    def work(number: int) -> int:
        client = clients[number]
        with client.producer("orders", f"p{number}") as producer:
            for sequence in range(5):
                producer.append(make_entry(b"%d/%d" % (number, sequence), sequence, f"p{number}")).result(120)
            return sum(payload.startswith(b"%d/" % number) for payload in payloads(client, "orders"))

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(work, range(CLIENTS))) == [5] * CLIENTS, "a client does not read what it wrote"
    found = list(payloads(rig.client(), "orders"))
    assert len(found) == 5 * CLIENTS
    for number in range(CLIENTS):
        assert [p for p in found if p.startswith(b"%d/" % number)] == [b"%d/%d" % (number, i) for i in range(5)]


@pytest.mark.thorough
def test_readers_that_stand_still_hold_no_memory_and_stop_nobody(
    rig: Rig, wide: Client, make_entry: Callable[..., bytes]
) -> None:
    """Sixteen of them: were what they do not take kept for them, it would be a GiB."""
    ticket = flight.Ticket(msgspec.json.encode(ReadRequest("wide", EVERYTHING)))
    assert sum(len(payload) for payload in payloads(wide, "wide")) == 64 * MIB
    before = anonymous_bytes(rig.record().pid)
    others = [rig.client() for _ in range(16)]
    slow = [other.connection().do_get(ticket, other.options()) for other in others]
    for reader in slow:
        reader.read_chunk()
    with wide.producer("wide") as producer:
        producer.append(make_entry(b"new")).result(60)
    assert sum(len(payload) for payload in payloads(wide, "wide")) == 64 * MIB + 3
    assert anonymous_bytes(rig.record().pid) - before < 256 * MIB
    assert [drained(reader) for reader in slow] == [15] * 16


def drained(reader: flight.FlightStreamReader) -> int:
    """Count the blocks that a reader still gets."""
    count = 0
    while True:
        try:
            reader.read_chunk()
        except StopIteration:
            return count
        count += 1


@pytest.mark.thorough
def test_a_reader_that_is_killed_gives_its_place_back(rig: Rig, wide: Client) -> None:
    wide.ask(ChangeSetting("maxConcurrentRequests", 1))
    request = msgspec.json.encode(ReadRequest("wide", EVERYTHING)).decode()
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, wide.address, request], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"reading\n"
    reader.kill()
    reader.communicate()
    assert sum(len(payload) for payload in payloads(wide, "wide")) == 64 * MIB


@pytest.mark.thorough
def test_killed_producer_keeps_acknowledged_entries_and_frees_its_slot(rig: Rig) -> None:
    rig.start("--create")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    client.ask(ChangeSetting("maxConcurrentRequests", 1))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, client.address], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(20):
        writer.stdout.readline()
    writer.kill()
    rest, _ = writer.communicate()
    acknowledged = 20 + len([line for line in rest.splitlines(keepends=True) if line.endswith(b"\n")])
    assert client.ask(ListLedgers()).names, "the only place is free again"
    client.ask(ChangeSetting("maxConcurrentRequests", None))
    found = list(payloads(client, "orders"))
    assert len(found) >= acknowledged
    assert found == [b"%d" % number for number in range(len(found))]
