"""Goal: a kill of the broker at any moment loses no acknowledged entry, duplicates none and keeps the order.

Method: several producers and a committer work on a real broker, which gets SIGKILL at random. Then everything is read.

Rounds: LEDGER_FAULT_ROUNDS, 50 by default, shared by the four cases of appends and commits. A round kills once. Every
other round waits until the broker works again; the other rounds may kill the broker while it starts. The test counts
and asserts the kills that met requests in flight. The seed is printed when a test fails.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import Fenced, LedgerError, Unavailable
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger, DescribeLedger
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun, PartRun, StagedPart
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from tests.rigs.deadline import wait_until

pytestmark = pytest.mark.fault

ROUNDS = int(os.environ.get("LEDGER_FAULT_ROUNDS") or 50)
ROUNDS_OF_A_CASE = -(-ROUNDS // 4)
PRODUCERS = 3
MakeEntry = Callable[..., bytes]
ReadLog = Callable[[Client, str], list[bytes]]


class Writer(threading.Thread):
    """Thread that appends numbered entries, with a new producer after each failure, until it is stopped.

    An entry without an answer is never sent again, so each entry is in the ledger at most once.
    """

    def __init__(self, client: Client, number: int, make_entry: MakeEntry, sizes: list[int]) -> None:
        super().__init__(name=f"writer {number}")
        self.number = number
        self.acknowledged: list[int] = []
        self.next = 0
        self.answered = 0
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self._client, self._make_entry, self._sizes = client, make_entry, sizes

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self._one_stream()
        except BaseException as error:  # noqa: BLE001 — the test raises it
            self.failure = error

    def payload(self, sequence: int) -> bytes:
        head = b"%d/%d/" % (self.number, sequence)
        return head + b"\xa5" * (self._sizes[sequence % len(self._sizes)] - len(head))

    def _one_stream(self) -> None:
        flying: list[Future[Position]] = []
        try:
            producer = self._client.producer("log")
            while not self.stop.is_set() and len(flying) < 2000:
                flying.append(producer.append(self._make_entry(self.payload(self.next))))
                flying[-1].add_done_callback(partial(self._count, self.next))
                self.next += 1
            producer.close()
        except (Unavailable, Fenced):
            pass  # killed or taken over: an unacknowledged entry may be in the ledger or not
        wait(flying, 60)
        assert all(future.done() for future in flying), "a future is never told"

    def _count(self, sequence: int, future: Future[Position]) -> None:
        self.answered += 1
        if future.exception() is None:
            self.acknowledged.append(sequence)


def check(log: list[bytes], writers: list[Writer]) -> None:
    for writer in writers:
        mine = [payload for payload in log if payload.startswith(b"%d/" % writer.number)]
        sequences = [int(payload.split(b"/", 2)[1]) for payload in mine]
        assert sequences == sorted(set(sequences)), f"writer {writer.number}: doubled or out of order"
        lost = set(writer.acknowledged) - set(sequences)
        assert not lost, f"writer {writer.number}: {len(lost)} acknowledged entries lost, the first {min(lost)}"
        assert all(payload == writer.payload(number) for payload, number in zip(mine, sequences, strict=True))
    assert len(log) == sum(b"/" in payload[:8] for payload in log)


def pause(dice: random.Random, least: float, most: float) -> None:
    time.sleep(dice.uniform(least, most))


def finish(writers: list[Writer]) -> None:
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer.join(120)
        assert not writer.is_alive(), f"{writer.name} hangs"
        if writer.failure is not None:
            raise writer.failure


@pytest.mark.parametrize("sizes", [[100, 300, 1000], [1_000_000, 64, 2_500_000]], ids=["small", "large"])
def test_appends_survive_a_broker_that_is_killed_again_and_again(
    victim: Any, dice: random.Random, make_entry: MakeEntry, read_log: ReadLog, sizes: list[int]
) -> None:
    client = victim.client()
    client.ask(CreateLedger("log", block_bytes=5 * 1024 * 1024, max_entries_per_ledger=5_000))
    writers = [Writer(client, number, make_entry, sizes) for number in range(PRODUCERS)]
    for writer in writers:
        writer.start()
    before, met = 0, 0

    def acknowledged() -> int:
        return sum(len(writer.acknowledged) for writer in writers)

    for number in range(ROUNDS_OF_A_CASE):
        if number % 2:
            wait_until(lambda: acknowledged() > before, "the broker works again")  # noqa: B023 — called at once
        pause(dice, 0.0, 0.5)
        killed, in_flight = victim.broker(), sum(writer.next - writer.answered for writer in writers)
        # Requests sent to the previous broker count only if this broker has answered a request.
        met += in_flight > 0 and acknowledged() > before
        victim.kill_broker()
        before = acknowledged()
        wait_until(lambda killed=killed: victim.broker() != killed, "somebody brings the broker back")
    assert met >= ROUNDS_OF_A_CASE // 3, f"{met} of {ROUNDS_OF_A_CASE} kills met appends in flight"
    wait_until(lambda: any(writer.acknowledged for writer in writers), "something is acknowledged")
    finish(writers)
    check(read_log(client, "log"), writers)


class Committer:
    """Committer that stages and commits the same batch until the commit is answered, as Spark does."""

    def __init__(self, client: Client, make_entry: MakeEntry, block_bytes: int = 0) -> None:
        """With `block_bytes`, the parts have the layout of a segment."""
        self.batch = 0
        self.doing = ""
        self._client, self._make_entry, self._block_bytes = client, make_entry, block_bytes

    def commit(self, parts: list[list[bytes]]) -> CommittedRun:
        until = time.monotonic() + 60
        while True:
            try:
                self.doing = "staging"
                staged = [self._stage(payloads) for payloads in parts]
                self.doing = "committing"
                done = self._client.ask(CommitRun("log", "q", self.batch, 7, self.batch + 1, staged))
            except LedgerError:
                assert time.monotonic() < until
                time.sleep(0.02)
            else:
                self.batch += 1
                return done

    def _stage(self, payloads: list[bytes]) -> StagedPart:
        run = PartRun("q", self.batch, 7, self.batch + 1, self._block_bytes, 1) if self._block_bytes else None
        with self._client.stage_part("q", self.batch, run) as part:
            for payload in payloads:
                part.write([self._make_entry(payload, txnid_most_bits=7, txnid_least_bits=self.batch + 1)], 1)
            return part.close()


class Killer(threading.Thread):
    """Killer of the broker, in every fourth round while a commit is in flight."""

    def __init__(self, victim: Any, committer: Committer, dice: random.Random) -> None:
        super().__init__(name="killer")
        self.kills = 0
        self.met: list[str] = []  # requests that a working broker had not answered when it was killed
        self.over = threading.Event()
        self._victim, self._committer, self._dice = victim, committer, dice

    def run(self) -> None:
        try:
            for number in range(ROUNDS_OF_A_CASE):
                self._one_kill(works=number % 2 == 1, committing=number % 4 == 3)
                self.kills += 1
        finally:
            self.over.set()

    def _one_kill(self, *, works: bool, committing: bool) -> None:
        committer, before = self._committer, self._committer.batch
        if works:
            wait_until(lambda: committer.batch > before, "batches are committed again")
        pause(self._dice, 0.05, 0.8)
        kill = self._victim.kill_broker
        if committing:
            kill = partial(self._victim.kill, self._victim.broker())  # without delay: a commit takes milliseconds
            wait_until(lambda: committer.doing == "committing", "a commit", every=0.0002)
        meets = (committer.batch, committer.doing)
        kill()
        if meets == (committer.batch, committer.doing) and committer.batch > before:
            self.met.append(committer.doing)


@pytest.mark.parametrize("parts", [1, 3])
def test_batches_of_a_sink_are_in_the_log_once_each_whole_and_in_order(
    victim: Any, dice: random.Random, make_entry: MakeEntry, read_log: ReadLog, parts: int
) -> None:
    client = victim.client()
    client.ask(CreateLedger("log", block_bytes=5 * 1024 * 1024, max_entries_per_ledger=200))
    committer = Committer(client, make_entry)
    killer = Killer(victim, committer, dice)
    killer.start()
    sent: list[bytes] = []
    while not killer.over.is_set():
        batch = committer.batch
        payloads = [b"%d.%d.%d" % (batch, part, i) + b"z" * (10 << (i % 12)) for part in range(parts) for i in range(9)]
        share = len(payloads) // parts
        done = committer.commit([payloads[i : i + share] for i in range(0, len(payloads), share)])
        assert done.entries == len(payloads)
        sent += payloads
    killer.join()
    assert killer.kills == ROUNDS_OF_A_CASE
    assert len(killer.met) >= ROUNDS_OF_A_CASE // 4, f"of {killer.kills} kills {killer.met} met work in flight"
    assert "committing" in killer.met or ROUNDS_OF_A_CASE < 8
    assert read_log(client, "log") == sent
    committer.batch -= 1
    again = committer.commit([payloads[i : i + share] for i in range(0, len(payloads), share)])
    assert again.repeated


LARGE_ENTRIES, LARGE_BATCHES = 9, 4


def test_large_batches_become_segments_once_under_kills(
    victim: Any, dice: random.Random, make_entry: MakeEntry, read_log: ReadLog
) -> None:
    """Each batch is a part of 36 MB, which becomes a segment, and a small part. Each of their commits is killed."""
    client, block_bytes = victim.client(), 64 * 1024 * 1024
    client.ask(CreateLedger("log", block_bytes=block_bytes))
    sent: list[bytes] = []
    for batch in range(LARGE_BATCHES):
        parts = [[b"%d.%d" % (batch, i) + b"z" * 4_000_000 for i in range(LARGE_ENTRIES)], [b"%d." % batch]]
        committer = Committer(client, make_entry, block_bytes)
        committer.batch = batch
        killer = threading.Thread(target=_kill_a_commit, args=(victim, committer, dice))
        killer.start()
        done = committer.commit(parts)
        killer.join()
        assert done.entries == LARGE_ENTRIES + 1
        sent += [payload[:10] for part in parts for payload in part]
        assert [payload[:10] for payload in read_log(client, "log")] == sent
    described = client.ask(DescribeLedger("log"))
    assert [segment.rows for segment in described.segments] == [LARGE_ENTRIES, 1] * LARGE_BATCHES
    files = {path.stem for path in (victim.store / "ledgers").glob("*.ledger")}
    assert files == {str(segment.ledger_id) for segment in described.segments}


def _kill_a_commit(victim: Any, committer: Committer, dice: random.Random) -> None:
    broker = victim.broker()
    wait_until(lambda: committer.doing == "committing", "a commit", every=0.0002)
    pause(dice, 0.0, 0.1)
    victim.kill(broker)


def test_killed_broker_and_supervisor_are_restarted_by_the_driver_only(
    victim: Any, dice: random.Random, make_entry: MakeEntry, read_log: ReadLog
) -> None:
    from pyspark_ledger.ledger.client.connect import connect_store

    client = victim.client()
    client.ask(CreateLedger("log"))
    sent = []
    for number in range(max(1, ROUNDS // 10)):
        producer = client.producer("log")
        flying = [(b"%d/%d/" % (number, i), producer.append(make_entry(b"%d/%d/" % (number, i)))) for i in range(200)]
        pause(dice, 0.0, 0.05)
        victim.kill_all()
        sent += [payload for payload, future in flying if future.exception(30) is None]
        with pytest.raises(LedgerError):
            producer.append(make_entry(b"late")).result(30)
        began = time.monotonic()
        with pytest.raises(Unavailable) as raised:
            connect_store(victim.store, start=False, deadline_ms=300)
        assert time.monotonic() - began < 10
        assert client.address in str(raised.value)
        assert client.store_id in str(raised.value)
        client = victim.client()
    log = read_log(client, "log")
    assert [payload for payload in log if payload in set(sent)] == sent
    assert len(log) == len(set(log))


def taken_over(store: Path, record: BrokerRecord, log: Path) -> subprocess.Popen[bytes]:
    """Return a broker that took over the store.

    A broker that is stopped inside a metadata transaction locks the file. Then the new broker reports the lock and
    ends, and the stopped broker must continue for a moment.
    """
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.offload.broker",
        "--store",
        str(store),
        "--take-over",
        "broker",
    ]
    until = time.monotonic() + 90
    while True:
        with log.open("wb") as output:
            child = subprocess.Popen(command, stderr=output, stdin=subprocess.DEVNULL)
        while child.poll() is None and BrokerRecord.read(store) == record:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.02)
        if child.poll() is None:
            return child
        assert "locked" in log.read_text()
        os.kill(record.pid, signal.SIGCONT)
        time.sleep(0.05)
        os.kill(record.pid, signal.SIGSTOP)


def test_broker_stopped_and_taken_over_acknowledges_nothing_more(
    victim: Any, dice: random.Random, make_entry: MakeEntry, read_log: ReadLog, tmp_path: Path
) -> None:
    """Each new broker is stopped during an append and is taken over. At the end all brokers continue at once."""
    client = victim.client()
    client.ask(CreateLedger("log", max_entries_per_ledger=300))
    writers: list[Writer] = []
    stopped: list[int] = []
    children = []
    for number in range(max(2, ROUNDS // 10)):
        record = BrokerRecord.read(victim.store)
        assert record is not None
        writer = Writer(Client(record.address, record.store_id, deadline_ms=0), number, make_entry, [50, 5000])
        writer.start()
        writers.append(writer)
        pause(dice, 0.02, 0.3)
        os.kill(record.pid, signal.SIGSTOP)
        stopped.append(record.pid)
        writer.stop.set()
        children.append(taken_over(victim.store, record, tmp_path / f"taker-{number}.log"))
    record = BrokerRecord.read(victim.store)
    assert record is not None
    last = Client(record.address, record.store_id)
    with last.producer("log") as producer:
        producer.append(make_entry(b"99/0/")).result(30)
    before = read_log(last, "log")
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    finish(writers)
    assert read_log(last, "log") == before, "a fenced broker changed the log"
    check([payload for payload in before if payload != b"99/0/"], writers)
    victim.close()
    for child in children:
        child.wait(60)
    reopened = victim.client()
    assert read_log(reopened, "log") == before
