"""Goal: staging streams take a bounded share of the bytes in flight, and wait for it rather than fail.

Method: chunks that are made up, streams in threads, and a real broker that gets streams of this and of an earlier kind.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from pyspark_ledger.ledger.broker.intake.staged_batches import StagedBatches
from pyspark_ledger.ledger.broker.limits import InFlightBytes, StreamsOfClients
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, StageCommand, Welcome
from pyspark_ledger.ledger.protocol.announcements import ANNOUNCED_FROM
from pyspark_ledger.ledger.protocol.commits import StagedPart
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.shared_ring import entry_batch
from tests.rigs.certificates import certificates
from tests.rigs.deadline import wait_until
from tests.rigs.entry import entry

Rig = Any
MIB = 1024 * 1024


class Chunk(NamedTuple):
    """Batch and its metadata, as Flight returns them."""

    data: pa.RecordBatch
    app_metadata: pa.Buffer | None = None


def answer(_: bytes) -> None:
    """Nobody waits for the answer."""


def announcement(size: int) -> Chunk:
    return Chunk(entry_batch([]), pa.py_buffer(size.to_bytes(8, "little")))


def large(size: int = 2 * MIB) -> Chunk:
    return Chunk(entry_batch([bytes(size)]))


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def in_flight(clock: Clock) -> InFlightBytes:
    return InFlightBytes(lambda: 32 * MIB, clock)


def test_announced_batches_take_room_until_they_are_used(in_flight: InFlightBytes) -> None:
    size = large().data.nbytes
    sizes = list[int]()
    chunks = iter([announcement(size), large(), Chunk(entry_batch([b"small"])), announcement(5), announcement(7)])
    for _ in StagedBatches(in_flight).received(chunks, answer):
        sizes.append(in_flight.size)
    assert sizes == [size, 0]
    assert in_flight.size == 0


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([large()], r"has \d+ bytes, 0 were announced"),
        ([announcement(ANNOUNCED_FROM + 1), large()], f"{ANNOUNCED_FROM + 1} were announced"),
        ([announcement(3 * MIB), large(), large()], r"has \d+ bytes, 0 were announced"),
        ([Chunk(entry_batch([]), pa.py_buffer(b"short"))], "an announcement has 5 bytes, expected 8"),
    ],
)
def test_batch_that_differs_from_its_announcement_is_refused(
    in_flight: InFlightBytes, chunks: list[Chunk], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        list(StagedBatches(in_flight).received(iter(chunks), answer))
    assert in_flight.size == 0


def test_a_hundred_streams_receive_a_quarter_of_the_bytes_at_once(in_flight: InFlightBytes) -> None:
    staged, lock, now, most = StagedBatches(in_flight), threading.Lock(), 0, 0

    def chunks() -> Iterator[Chunk]:
        nonlocal now, most
        yield announcement(3 * MIB)
        with lock:
            now += 1
            most = max(most, now)
        yield large()
        with lock:
            now -= 1

    streams = [
        threading.Thread(target=lambda: list(staged.received(chunks(), answer)), daemon=True) for _ in range(100)
    ]
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join(60)
    assert not any(stream.is_alive() for stream in streams)
    assert most == 2


def test_producers_keep_their_share_and_expected_bytes_run_out(in_flight: InFlightBytes, clock: Clock) -> None:
    in_flight.expect(8 * MIB)
    in_flight.take(24 * MIB, lambda: False)  # waits for nobody
    assert in_flight.size == 32 * MIB
    in_flight.give(24 * MIB)
    waiting = threading.Thread(target=lambda: in_flight.expect(8 * MIB), daemon=True)
    waiting.start()
    clock.now = 30_001
    waiting.join(60)
    assert not waiting.is_alive()
    assert in_flight.size == 8 * MIB
    in_flight.give_expected(0)
    in_flight.give_expected(1)
    assert in_flight.size == 0


def test_a_part_larger_than_the_limit_does_not_wait_for_ever(in_flight: InFlightBytes) -> None:
    in_flight.expect(1024 * MIB)
    assert in_flight.size == 8 * MIB


def test_streams_that_announce_nothing_are_few(in_flight: InFlightBytes) -> None:
    staged = StagedBatches(in_flight)
    held = [staged.received(iter([large(), large()]), None) for _ in range(2)]
    for stream in held:
        next(stream)
    with pytest.raises(Unavailable, match="receiving 2 staging streams that do not announce"):
        next(staged.received(iter([large()]), None))
    assert len(list(staged.received(iter([Chunk(entry_batch([b"x"]))]), answer))) == 1
    list(held[0])
    assert len(list(staged.received(iter([large()]), None))) == 1


def test_a_client_with_too_many_streams_is_refused_by_name() -> None:
    streams = StreamsOfClients(1)
    refused = pytest.raises(Unavailable, match=r"1 streams of 10.0.0.1, and allows 1 for each host")
    with streams.counted("10.0.0.1"), streams.counted("10.0.0.2"), streams.counted(""), streams.counted(""), refused:
        streams.counted("10.0.0.1").__enter__()
    with streams.counted("10.0.0.1"):
        pass
    assert not streams._open


def test_parts_of_this_and_of_an_earlier_release_are_staged(rig: Rig, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f'authenticationTokens = "{certificates()["token"]}"\n')
    rig.start("--create", "--config", str(config), "--address", "grpc://127.0.0.1:0")
    port = urlsplit(rig.record().remote).port
    client = Client(f"grpc://127.0.0.1:{port}", credentials=Credentials(token=certificates()["token"]))
    client.same_host_token = lambda *_, **__: ""  # type: ignore[method-assign]  # as on another host
    one = entry(b"x" * 3 * MIB)
    with client.stage_part("q", 0) as part:
        for written in (one, entry(b"small"), one):
            part.write([written], 1)
        staged = part.close()
    assert (staged.entries, staged.length) == (3, 2 * len(one) + len(entry(b"small")) + 3 * 12)
    descriptor = flight.FlightDescriptor.for_command(request_body(StageCommand("q", 1)))
    writer, reader = client.connection().do_put(descriptor, ENTRY_SCHEMA, client.options())
    writer.write_batch(entry_batch([one]))
    writer.done_writing()
    assert msgspec.msgpack.decode(reader.read().to_pybytes(), type=StagedPart).entries == 1
    writer.close()
    # An earlier broker states nothing about announcements, so this client makes none.
    welcome = json.loads(msgspec.json.encode(client.hello()))
    assert welcome.pop("announcements")
    earlier = msgspec.json.decode(json.dumps(welcome), type=Welcome)
    client.hello = lambda *_, **__: earlier  # type: ignore[method-assign]  # the same client, whose broker was replaced
    assert not client.answers_announcements()
    with client.stage_part("q", 2) as part:
        part.write([one], 1)
        assert part.close().entries == 1
    client.close()
    wait_until(lambda: not list((rig.store / "staging").glob("*.tmp")), "nothing is left")
