"""Goal: order, bounds and honest failures of append streams. Method: producers on a real broker, which is stopped,
killed, sent nonsense, or left alone in mid-stream."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from pyspark_ledger.ledger.broker.append_stream import entries_of
from pyspark_ledger.ledger.client.append_transport import FlightStream, RingStream
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import (
    ENTRY_SCHEMA,
    AppendCommand,
    AskEnd,
    CreateLedger,
    DeleteLedger,
    ListLedgers,
    StageCommand,
)
from pyspark_ledger.ledger.transport.shared_ring import RingWriter

Rig = Any
MakeEntry = Callable[..., bytes]
ReadLog = Callable[..., list[tuple[str, bytes]]]
BLOCK = 5 * 1024 * 1024


@pytest.fixture
def client(rig: Rig) -> Any:
    """A client of a broker that the test may stop or kill."""
    rig.start("--create")
    client = rig.client(deadline_ms=5_000)
    client.ask(CreateLedger("orders", block_bytes=BLOCK, max_entries_per_ledger=2_000))
    return client


@pytest.fixture
def calm(shared_rig: Rig, request: pytest.FixtureRequest) -> Any:
    """A client of a broker that many tests share; its ledger `orders` is this test's alone."""
    client = shared_rig.client(deadline_ms=5_000)
    if "orders" in map(short_name, client.ask(ListLedgers()).names):
        client.ask(DeleteLedger("orders"))
    client.ask(CreateLedger("orders", block_bytes=BLOCK))
    return client


def test_two_producers_keep_their_own_order_and_get_the_logs_positions(
    calm: Any, make_entry: MakeEntry, read_log: ReadLog
) -> None:
    futures: dict[bytes, Future[Position]] = {}
    with calm.producer("orders", "a") as a, calm.producer("orders", "b") as b:
        for i in range(500):
            for producer in (a, b):
                payload = f"{producer.name}{i}".encode()
                futures[payload] = producer.append(make_entry(payload))
        a.flush()
        assert all(future.done() for payload, future in futures.items() if payload.startswith(b"a"))
    log = read_log(calm, "orders")
    assert dict(log) == {str(future.result()): payload for payload, future in futures.items()}
    for name in ("a", "b"):
        found = [payload for _, payload in log if payload.startswith(name.encode())]
        assert found == [f"{name}{i}".encode() for i in range(500)]


def test_entry_larger_than_a_block_is_refused_and_other_streams_go_on(
    calm: Any, make_entry: MakeEntry, read_log: ReadLog
) -> None:
    other = calm.producer("orders")
    before = other.append(make_entry(b"before"))
    before.result(60)
    wrong = calm.producer("orders")
    fine = wrong.append(make_entry(b"fine"))
    fine.result(60)
    huge = make_entry(bytes(BLOCK))
    with pytest.raises(Refused, match=rf"has {len(huge)} bytes, .* a block of {BLOCK} bytes"):
        wrong.append(huge).result(60)
    with pytest.raises(Refused):
        wrong.append(make_entry(b"after the error")).result(60)
    with pytest.raises(Refused):
        wrong.close()
    after = other.append(make_entry(b"after"))
    other.close()
    assert after.done()
    assert [payload for _, payload in read_log(calm, "orders")] == [b"before", b"fine", b"after"]


@pytest.mark.parametrize(
    ("spoil", "kind", "said"),
    [
        (lambda entry: entry[:-1] + b"?", Corrupt, "entry 0 of an append .* CRC32C"),
        (lambda _: b"", Corrupt, "entry 0 of an append"),
        (lambda _: b"nonsense", Corrupt, "expected a checksum"),
    ],
)
def test_what_is_no_entry_is_refused_before_anything_is_written(
    calm: Any, make_entry: MakeEntry, read_log: ReadLog, spoil: Callable[[bytes], bytes], kind: type, said: str
) -> None:
    producer = calm.producer("orders")
    with pytest.raises(kind, match=said):
        producer.append(spoil(make_entry(b"good"))).result(60)
    assert read_log(calm, "orders") == []


@pytest.mark.parametrize("field", [{"marker_type": 21}, {"txnid_most_bits": 1, "txnid_least_bits": 2}])
def test_entries_that_look_like_a_part_of_a_run_are_refused(
    calm: Any, make_entry: MakeEntry, field: dict[str, int]
) -> None:
    with pytest.raises(Refused, match="transaction or marker field"):
        calm.producer("orders").append(make_entry(b"x", **field)).result(60)


def test_a_ledger_that_is_not_there_is_named_with_the_nearest(calm: Any, make_entry: MakeEntry) -> None:
    with pytest.raises(NotFound, match=r"'ordres'.*Did you mean 'orders'"):
        calm.producer("ordres").append(make_entry(b"x")).result(60)


@pytest.mark.thorough
def test_killed_broker_fails_appends_in_flight_and_nobody_waits_forever(
    rig: Rig, client: Any, make_entry: MakeEntry, read_log: ReadLog
) -> None:
    producer = client.producer("orders", max_in_flight_bytes=1000)
    acknowledged = producer.append(make_entry(b"kept")).result(60)
    rig.halt(rig.record().pid)
    flying = [producer.append(make_entry(b"f" * 300)) for _ in range(3)]
    blocked: list[LedgerError] = []

    def append_beyond_the_limit() -> None:
        try:
            producer.append(make_entry(b"g" * 300))
        except LedgerError as error:
            blocked.append(error)

    thread = threading.Thread(target=append_beyond_the_limit)
    thread.start()
    assert not any(future.done() for future in flying)
    os.kill(rig.record().pid, signal.SIGKILL)
    for future in flying:
        with pytest.raises(Unavailable, match="it is unknown whether 3 entries in flight are in the log"):
            future.result(60)
    thread.join(60)
    assert len(blocked) == 1
    for call in (lambda: producer.append(make_entry(b"late")), producer.flush, producer.close):
        with pytest.raises(Unavailable):
            call()
    assert not producer._sender.is_alive()
    assert not producer._receiver.is_alive()
    rig.start()
    log = read_log(rig.client(), "orders")
    assert log[0] == (str(acknowledged), b"kept")


def test_append_waits_for_room_and_goes_on_when_there_is_some(rig: Rig, client: Any, make_entry: MakeEntry) -> None:
    producer = client.producer("orders", max_in_flight_bytes=1000)
    rig.halt(rig.record().pid)
    appended: list[Future[Position]] = []
    thread = threading.Thread(
        target=lambda: appended.extend(producer.append(make_entry(b"x" * 400)) for _ in range(10))
    )
    thread.start()
    rig.wait_until(lambda: producer._bytes > 500, "two entries are in flight")
    assert thread.is_alive()
    assert producer._bytes <= 1000
    os.kill(rig.record().pid, signal.SIGCONT)
    thread.join(60)
    producer.close()
    assert [future.result().entry_id for future in appended] == list(range(10))


def test_an_entry_alone_may_be_larger_than_the_limit(calm: Any, make_entry: MakeEntry) -> None:
    with calm.producer("orders", max_in_flight_bytes=10) as producer:
        assert [producer.append(make_entry(b"x" * 100)).result(60).entry_id for _ in range(3)] == [0, 1, 2]


def test_a_future_that_its_owner_cancels_takes_nobody_with_it(calm: Any, make_entry: MakeEntry) -> None:
    with calm.producer("orders") as producer:
        futures = [producer.append(make_entry(b"x")) for _ in range(50)]
        assert not any(future.cancel() for future in futures)
        assert [future.result(60).entry_id for future in futures] == list(range(50))


def test_what_cannot_be_sent_fails_instead_of_hanging(calm: Any, make_entry: MakeEntry) -> None:
    producer = calm.producer("orders")
    with pytest.raises((LedgerError, BufferError, TypeError, ValueError)):
        producer.append(memoryview(make_entry(b"every second byte"))[::2]).result(60)
    try:
        assert producer.append(make_entry(b"x")).result(60).entry_id == 0, "refused at once, nothing was broken"
    except LedgerError:
        with pytest.raises(LedgerError):
            producer.close()
    assert producer._bytes == 0


def talk(writer: Any, reader: Any, batch: pa.RecordBatch | None) -> None:
    """Send one batch and hear the stream out; raises what the broker says."""
    if batch is not None:
        writer.write_batch(batch)
    writer.done_writing()
    while reader.read() is not None:
        pass
    writer.close()


def raw_batch(data: bytes, offsets: list[int]) -> pa.RecordBatch:
    """A batch whose offsets nobody has checked, as only a broken or hostile client sends it."""
    edges = np.zeros(len(offsets), dtype=np.int32)
    column = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    batch = pa.RecordBatch.from_arrays([column], schema=ENTRY_SCHEMA)
    edges[:] = offsets
    return batch


@pytest.mark.parametrize("offsets", [[0, 11], [0, 1_000_000], [0, 8, 4], [-5, 4], [4, 2**31 - 1], [-1, -1]])
def test_offsets_that_do_not_fit_their_bytes_are_refused_before_slicing(offsets: list[int]) -> None:
    with pytest.raises(Refused, match="offsets that do not fit its 10 bytes"):
        entries_of(raw_batch(b"x" * 10, offsets))


@pytest.mark.parametrize("offsets", [[0, 10], [0, 0], [10, 10], [2, 2, 5, 10]])
def test_offsets_that_fit_are_slices(offsets: list[int]) -> None:
    found = [bytes(entry) for entry in entries_of(raw_batch(b"0123456789", offsets))]
    assert found == [b"0123456789"[start:end] for start, end in pairwise(offsets)]


@pytest.mark.parametrize(
    "batch",
    [
        raw_batch(b"x" * 10, [0, 1_000_000, 4]),
        raw_batch(b"x" * 10, [0, 8, 4]),
        raw_batch(b"x" * 10, [0, -5, 4]),
        pa.record_batch({"entry": pa.array([1, 2, 3])}),
        pa.record_batch({"entry": pa.array([b"a", None])}),
        pa.record_batch({"other": pa.array([b"a"])}),
        pa.record_batch({"entry": pa.array([], pa.binary())}, schema=ENTRY_SCHEMA),
        pa.record_batch([], names=[]),
    ],
    ids=["beyond", "falling", "negative", "numbers", "null", "name", "empty", "nothing"],
)
@pytest.mark.parametrize("command", [AppendCommand("orders", "p"), StageCommand("q", 0)], ids=["append", "stage"])
def test_batches_that_are_nonsense_are_errors_and_the_broker_lives(
    calm: Any, batch: pa.RecordBatch, command: AppendCommand | StageCommand
) -> None:
    descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(command))
    writer, reader = calm.connection().do_put(descriptor, batch.schema)
    if isinstance(command, StageCommand) and batch.schema == ENTRY_SCHEMA and not batch.num_rows:
        talk(writer, reader, batch)  # a part without entries is one
    else:
        with pytest.raises((pa.ArrowInvalid, flight.FlightError), match=r"LEDGER_REFUSED|LEDGER_CORRUPT"):
            talk(writer, reader, batch)
    assert calm.ask(AskEnd("orders")).end == Position(-1, 0)


@pytest.mark.parametrize("command", [b"", b"{", b"[]", b'{"type":"append"}', b'{"type":"other"}', b"\xff\xfe"])
def test_a_stream_for_nothing_is_refused(calm: Any, command: bytes) -> None:
    writer, reader = calm.connection().do_put(flight.FlightDescriptor.for_command(command), ENTRY_SCHEMA)
    with pytest.raises(flight.FlightError, match="LEDGER_REFUSED"):
        talk(writer, reader, None)
    writer, reader = calm.connection().do_put(flight.FlightDescriptor.for_path("a", "path"), ENTRY_SCHEMA)
    with pytest.raises(flight.FlightError, match="LEDGER_REFUSED"):
        talk(writer, reader, None)


VANISHING = """
import sys
from pyspark_ledger.ledger.client.connect import connect_store
client = connect_store(sys.argv[1], start=False)
producer = client.producer("orders")
for number in range(100_000):
    def say(future, number=number):
        if not future.exception():
            print(number, flush=True)
    producer.append(bytes.fromhex(sys.argv[2])).add_done_callback(say)
"""


@pytest.mark.thorough
def test_vanished_client_leaves_acknowledged_entries_and_holds_nothing(
    rig: Rig, make_entry: MakeEntry, read_log: ReadLog
) -> None:
    broker = rig.start("--create", "--idle", "3")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    client.ask(CreateLedger("held"))
    command = [sys.executable, "-c", VANISHING, str(rig.store), make_entry(b"v" * 1000).hex()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with client.producer("held") as held:  # its open stream keeps the broker while the child starts
        held.append(make_entry(b"held")).result(60)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            rig.pids.add(child.pid)
            assert child.stdout is not None
            for line in child.stdout:
                if int(line) >= 500:
                    child.kill()
                    break
            acknowledged = 501 + sum(line.endswith("\n") for line in child.stdout)
        log = read_log(client, "orders")
    assert acknowledged <= len(log)
    assert {payload for _, payload in log} == {b"v" * 1000}
    with client.producer("orders") as producer:
        producer.append(make_entry(b"next")).result(60)
    assert broker.wait(60) == 0, "the broker still counts the stream of the client that vanished"


@pytest.mark.thorough
def test_failed_append_is_reported_at_once_to_a_producer_that_only_waits(
    client: Any, rig: Rig, make_entry: MakeEntry
) -> None:
    """The stream is over for Flight only when the producer sends more; one that waits for its future sends nothing."""
    producer = client.producer("orders")
    producer.append(make_entry(b"x")).result(60)
    ledgers = rig.store / "ledgers"
    moved = ledgers.rename(rig.store / "moved")
    with pytest.raises(LedgerError, match="ledgers"):  # the open file is still there; the next ledger cannot be made
        fill_up(producer, make_entry)
    moved.rename(ledgers)
    with client.producer("orders") as again:
        again.append(make_entry(b"z")).result(60)


def fill_up(producer: Any, make_entry: MakeEntry) -> None:
    """Append one entry more than a segment takes, each after the one before is durable."""
    for _ in range(2_000):
        producer.append(make_entry(b"y")).result(60)


@pytest.mark.parametrize("way", ["shared memory", "no room", "Flight"])
def test_entries_are_the_same_by_shared_memory_and_by_flight(
    calm: Any, make_entry: MakeEntry, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "Flight":
        monkeypatch.setattr("pyspark_ledger.ledger.client.append_transport.is_same_user", lambda _: False)
    if way == "no room":
        write = RingWriter.write
        taken = itertools.count()
        monkeypatch.setattr(RingWriter, "write", lambda *a: write(*a) if next(taken) % 3 else -1)
    payloads = [b"%d" % i * (1 + 37 * i % 500) for i in range(300)]
    with calm.producer("orders", max_in_flight_bytes=20_000) as producer:
        assert isinstance(producer._stream, FlightStream if way == "Flight" else RingStream)
        futures = [producer.append(make_entry(payload)[:7], make_entry(payload)[7:]) for payload in payloads]
    assert [future.result(60).entry_id for future in futures] == list(range(300))
    assert [payload for _, payload in read_log(calm, "orders")] == payloads


def test_broker_error_before_hang_up_is_received_despite_unread_packets() -> None:
    ours, brokers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stream = RingStream(ours, AppendCommand("orders", "p"), 1000)
    stream.send([(stream.hold([b"unread"], 6), 6)])
    brokers.send(b"why")
    brokers.close()
    assert stream.read() == b"why"
    assert stream.read() is None
    stream.close()


@pytest.mark.parametrize("call", ["append", "flush", "close"])
def test_a_forked_child_is_refused_and_its_parent_goes_on(
    calm: Any, make_entry: MakeEntry, read_log: ReadLog, call: str
) -> None:
    entry = make_entry(b"child")
    with calm.producer("orders") as producer:
        producer.append(make_entry(b"before")).result(60)
        child = os.fork()
        if not child:
            said = 1
            try:
                producer.append(entry) if call == "append" else getattr(producer, call)()
            except Refused as refused:
                said = 0 if f"made by process {os.getppid()}, this is {os.getpid()}" in refused.message else 2
            finally:
                os._exit(said)
        assert os.waitpid(child, 0)[1] == 0
        producer.append(make_entry(b"after")).result(60)
    assert [payload for _, payload in read_log(calm, "orders")] == [b"before", b"after"]


def test_a_producer_that_is_closed_or_lost_keeps_no_memory(client: Any, rig: Rig, make_entry: MakeEntry) -> None:
    """Also while a reference to the producer exists: each had up to 32 MiB and a descriptor."""
    closed, lost = client.producer("orders"), client.producer("orders")
    for producer in (closed, lost):
        producer.append(make_entry(b"x")).result(60)
    closed.close()
    os.kill(rig.record().pid, signal.SIGKILL)
    with suppress(Unavailable):
        lost.close()
    for producer in (closed, lost):
        assert producer._stream._ring._map.closed
        with pytest.raises(Unavailable):
            producer.append(make_entry(b"late"))
