"""Goal: nonsense at the append socket is an error and harms nobody, and a producer that is gone leaves nothing.

Method: raw packets to a door whose log only counts.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.broker import append_socket
from pyspark_ledger.ledger.broker.append_socket import AppendSocketListener
from pyspark_ledger.ledger.broker.append_stream import Replies
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import AppendCommand, Appended
from pyspark_ledger.ledger.transport.shared_ring import RingWriter, pack_places, sealed_file

BEGIN = msgspec.json.encode(AppendCommand("orders", "p"))


class CountingLog:
    """Answers each packet with how many entries came, and keeps them."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.ended = threading.Event()

    def serve(self, command: AppendCommand, replies: Replies, sent: Iterator[list[memoryview]]) -> None:
        try:
            if command.ledger != "orders":
                raise NotFound(f"{command.ledger!r} is not here")
            for entries in sent:
                self.entries += [bytes(entry) for entry in entries]
                replies.write(msgspec.msgpack.encode(Appended(Position(0, 0), len(entries))))
        finally:
            self.ended.set()


@pytest.fixture
def log() -> CountingLog:
    return CountingLog()


@pytest.fixture
def connect(log: CountingLog) -> Iterator[Callable[[], socket.socket]]:
    door = AppendSocketListener(log.serve)
    peers: list[socket.socket] = []

    def connected() -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(20)
        peer.connect(f"\0{door.name}")
        peers.append(peer)
        return peer

    yield connected
    door.close()
    for peer in peers:
        peer.close()


def reply(peer: socket.socket) -> Appended | None:
    packet = peer.recv(65536)
    return msgspec.msgpack.decode(packet, type=Appended) if packet else None


@pytest.fixture
def ring() -> Iterator[RingWriter]:
    ring = RingWriter(1000)
    yield ring
    ring.close()


def test_entries_come_by_place_and_one_by_one_as_files(
    connect: Callable[[], socket.socket], log: CountingLog, ring: RingWriter
) -> None:
    peer = connect()
    socket.send_fds(peer, [BEGIN], [ring.fd])
    places = [(ring.write([b"one"], 3), 3), (ring.write([b"two"], 3), 3)]
    peer.send(pack_places(places))
    assert reply(peer) == Appended(Position(0, 0), 2)
    large = sealed_file(2000, [b"3" * 2000])
    socket.send_fds(peer, [pack_places([(0, 2000)])], [large])
    os.close(large)
    assert reply(peer) == Appended(Position(0, 0), 1)
    peer.shutdown(socket.SHUT_WR)
    assert reply(peer) is None
    assert log.entries == [b"one", b"two", b"3" * 2000]


@pytest.mark.parametrize(
    ("first", "files", "code"),
    [
        (b"{", 1, "LEDGER_REFUSED"),
        (b"\xff\xfe", 1, "LEDGER_REFUSED"),
        (BEGIN, 0, "LEDGER_REFUSED"),
        (BEGIN, 2, "LEDGER_REFUSED"),
        (BEGIN.replace(b"orders", b"bills"), 1, "LEDGER_NOT_FOUND"),
    ],
)
def test_a_stream_that_begins_wrong_is_told_why(
    connect: Callable[[], socket.socket], log: CountingLog, ring: RingWriter, first: bytes, files: int, code: str
) -> None:
    peer = connect()
    socket.send_fds(peer, [first], [ring.fd] * files)
    said = reply(peer)
    assert said is not None
    assert said.error is not None
    assert said.error.code == code
    assert reply(peer) is None
    assert log.entries == []


@pytest.mark.parametrize("packet", [b"odd", pack_places([(990, 11)]), bytes(70_000)])
def test_a_packet_that_is_nonsense_ends_its_stream_and_no_other(
    connect: Callable[[], socket.socket], ring: RingWriter, packet: bytes
) -> None:
    bad, good = connect(), connect()
    for peer in (bad, good):
        socket.send_fds(peer, [BEGIN], [ring.fd])
    bad.send(packet)
    said = reply(bad)
    assert said is not None
    assert said.error is not None
    assert said.error.code == "LEDGER_REFUSED"
    good.send(pack_places([(0, 4)]))
    assert reply(good) == Appended(Position(0, 0), 1)


def test_a_producer_that_is_gone_ends_its_stream_and_leaves_no_descriptor(
    connect: Callable[[], socket.socket], log: CountingLog, ring: RingWriter
) -> None:
    peer = connect()
    socket.send_fds(peer, [BEGIN], [ring.fd])
    peer.send(pack_places([(0, 4)]))
    assert reply(peer) is not None
    peer.close()
    assert log.ended.wait(60)


def test_another_user_is_not_listened_to(
    connect: Callable[[], socket.socket], log: CountingLog, ring: RingWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_socket, "is_same_user", lambda _: False)
    peer = connect()
    with suppress(ConnectionError):  # the door hung up before it has read
        socket.send_fds(peer, [BEGIN], [ring.fd])
        assert reply(peer) is None
    assert log.entries == []
    assert not log.ended.is_set()


def test_a_door_without_descriptors_opens_again_when_there_are_some(
    connect: Callable[[], socket.socket], ring: RingWriter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    probe = connect()  # let in before the limit falls
    socket.send_fds(probe, [BEGIN], [ring.fd])
    probe.send(pack_places([(0, 4)]))
    assert reply(probe) is not None
    late = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    late.settimeout(20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        late.connect(probe.getpeername())
        until = time.monotonic() + 60
        while "cannot accept a producer" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "cannot accept a producer" in caplog.text
    with late:
        socket.send_fds(late, [BEGIN], [ring.fd])
        late.send(pack_places([(0, 4)]))
        assert reply(late) == Appended(Position(0, 0), 1)


def _rings_open() -> int:
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            links.append(str(fd.readlink()))
    return sum("ledger-producer" in link for link in links)


def test_a_packet_that_lost_descriptors_is_said_to_have(connect: Callable[[], socket.socket], ring: RingWriter) -> None:
    before = _rings_open()
    peer = connect()
    socket.send_fds(peer, [BEGIN], [ring.fd] * 5)
    said = reply(peer)
    assert said is not None
    assert said.error is not None
    assert said.error.code == "LEDGER_UNAVAILABLE"
    assert "did not get all descriptors" in said.error.message
    assert reply(peer) is None, "hung up, so all of it is let go"
    assert _rings_open() == before


def test_producer_killed_before_its_answer_is_no_error_of_the_broker(
    caplog: pytest.LogCaptureFixture, ring: RingWriter
) -> None:
    begun, gone = threading.Event(), threading.Event()
    serving: list[threading.Thread] = []

    def serve(_: AppendCommand, replies: Replies, sent: Iterator[list[memoryview]]) -> None:
        next(sent)
        serving.append(threading.current_thread())
        begun.set()
        assert gone.wait(60)
        replies.write(b"too late")

    door = AppendSocketListener(serve)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(f"\0{door.name}")
    socket.send_fds(peer, [BEGIN], [ring.fd])
    peer.send(pack_places([(0, 4)]))
    assert begun.wait(60)
    peer.close()
    gone.set()
    serving[0].join(60)
    assert not serving[0].is_alive()
    door.close()
    assert "unexpected error" not in caplog.text
