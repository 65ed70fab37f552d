"""Goal: a broker leaves when it should, and takes nothing of its successor with it. Method: real processes, signals."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.broker import process
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Unavailable
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger, DescribeLedger
from pyspark_ledger.ledger.protocol.cursors import AcquireLease, OpenCursor, ReleaseLease
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.transport.discovery import BrokerRecord

Rig = Any
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.thorough
def test_sigterm_ends_a_broker_whose_producers_are_still_connected(
    rig: Rig, make_entry: Callable[..., bytes], read_log: Callable[..., list[tuple[str, bytes]]]
) -> None:
    """A stream that nobody uses must not keep the process: shutting Flight down waits for open streams for ever."""
    broker = rig.start("--create")
    client = rig.client(deadline_ms=0)
    client.ask(CreateLedger("orders"))
    producer = client.producer("orders")
    sent = [producer.append(make_entry(b"%d" % i)) for i in range(100)]
    for future in sent:
        future.result(60)
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(60) == 0
    with pytest.raises(Unavailable, match=r"no broker answers at|ended the stream"):
        producer.append(make_entry(b"late")).result(60)
    with pytest.raises(Unavailable):
        producer.close()
    rig.start()
    assert [payload for _, payload in read_log(rig.client(), "orders")] == [b"%d" % i for i in range(100)]
    described = rig.client().ask(DescribeLedger("orders"))
    assert [segment.close_ms > 0 for segment in described.segments] == [True], "the ledger was not sealed"


@pytest.mark.thorough
def test_sigterm_in_the_middle_of_appends_loses_nothing_acknowledged(
    rig: Rig, make_entry: Callable[..., bytes], read_log: Callable[..., list[tuple[str, bytes]]]
) -> None:
    broker = rig.start("--create")
    client = rig.client(deadline_ms=0)
    client.ask(CreateLedger("orders"))
    producer = client.producer("orders", max_in_flight_bytes=512)
    acknowledged, number = [], 0
    with suppress(LedgerError):
        while True:
            sent = producer.append(make_entry(b"%d" % number))
            sent.add_done_callback(lambda done, n=number: done.exception() or acknowledged.append(n))
            number += 1
            if number == 200:
                broker.send_signal(signal.SIGTERM)
    with suppress(LedgerError):
        producer.close()
    assert broker.wait(60) == 0
    rig.start()
    found = [payload for _, payload in read_log(rig.client(), "orders")]
    assert found[: len(acknowledged)] == [b"%d" % n for n in acknowledged]
    assert len(found) >= len(acknowledged) > 0
    assert all(segment.close_ms for segment in rig.client().ask(DescribeLedger("orders")).segments), (
        "the ledger was not sealed"
    )


@pytest.mark.thorough
def test_broker_taken_over_exits_and_its_successor_stays_reachable(rig: Rig, make_entry: Callable[..., bytes]) -> None:
    first = rig.start("--create")
    old = rig.client(deadline_ms=0)
    old.ask(CreateLedger("orders"))
    producer = old.producer("orders")
    producer.append(make_entry(b"mine")).result(60)
    rig.halt(first.pid)
    second = rig.start("--take-over", "broker")
    assert rig.client().hello().epoch == 2
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 0
    with pytest.raises(LedgerError):
        producer.append(make_entry(b"lost")).result(60)
    fresh = rig.client(deadline_ms=0)
    assert (fresh.hello().pid, fresh.hello().epoch) == (second.pid, 2), "the old broker took the socket away"
    with fresh.producer("orders") as after:
        assert after.append(make_entry(b"theirs")).result(60).ledger_id > 0


@pytest.mark.thorough
def test_an_idle_broker_leaves_and_a_busy_one_stays(rig: Rig, make_entry: Callable[..., bytes]) -> None:
    broker = rig.start("--create", "--idle", "3")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    with client.producer("orders") as producer:
        producer.append(make_entry(b"x")).result(60)
        with pytest.raises(TimeoutError):
            _wait(broker, 5.0)
    assert broker.wait(60) == 0
    assert "the broker had no call for 3 s" in rig.log()


@pytest.mark.thorough
def test_a_lease_keeps_an_idle_broker(rig: Rig) -> None:
    broker = rig.start("--create", "--idle", "3")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    client.ask(OpenCursor("orders", "billing", EARLIEST))
    assert client.ask(AcquireLease("orders", "billing", "me", 3_600_000)).granted
    with pytest.raises(TimeoutError):
        _wait(broker, 5.0)
    client.ask(ReleaseLease("orders", "billing", "me"))
    assert broker.wait(60) == 0


@pytest.mark.parametrize("limit_ms", [100, 3_600_000])
def test_a_broker_that_cannot_settle_takes_nothing_new_and_leaves_in_time(rig: Rig, limit_ms: int) -> None:
    """For example, its disk hangs. With a limit of an hour the broker still runs and refuses new requests."""
    rig.store.parent.mkdir(exist_ok=True)
    config = rig.store.parent / "broker.toml"
    config.write_text(f"brokerShutdownTimeoutMs = {limit_ms}")
    hanging = "import sys, threading, pyspark_ledger.ledger.store.store as s; "
    hanging += "s.Store.settle = lambda self: threading.Event().wait(); "
    program = hanging + "from pyspark_ledger.offload.broker import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "--store", str(rig.store), "--create", "--config", str(config)]
    with (rig.store.parent / "broker-said").open("ab") as said:
        broker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    rig.pids.add(broker.pid)
    rig.wait_until(lambda: BrokerRecord.read(rig.store), "the broker starts")
    client = rig.client(deadline_ms=0)
    client.ask(CreateLedger("orders"))
    broker.terminate()
    if limit_ms == 100:
        assert broker.wait(30) == 0
        assert "not complete after 100 ms" in rig.log()
        return

    def refused() -> bool:
        try:
            client.ask(CreateLedger("late", exist_ok=True))
        except Unavailable:
            return True
        return False

    rig.wait_until(refused, "nothing new is taken")
    assert broker.poll() is None
    broker.kill()


@pytest.mark.thorough
def test_what_killed_brokers_left_is_swept_and_nothing_of_the_living(
    rig: Rig, run_directory: Path, tmp_path: Path
) -> None:
    alive = rig.start("--create")
    token = Path(rig.client().hello().token_path)
    left = [token.with_name(name) for name in ("dead0.token", "dead0.sock", "dead1.sock", "young.token")]
    for path in left:
        if path.suffix == ".sock":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        else:
            path.write_text("token")
    for path in [*left[:3], token, token.with_suffix(".sock")]:
        os.utime(path, (1, 1))
    other = type(rig)(tmp_path / "other" / "store")
    try:
        other.start("--create")
    finally:
        other.close()
    assert [path.exists() for path in left] == [False, False, False, True]
    assert token.exists()
    assert rig.client().hello().pid == alive.pid
    left[3].unlink()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "/nowhere.toml"], "there is no settings file /nowhere.toml"),
        (["--address", "grpc://0.0.0.0:0"], "without TLS it listens at loopback and Unix sockets only"),
        (["--address", "grpc+unix:///nowhere/at/all.sock"], "grpc+unix:///nowhere/at/all.sock"),
    ],
)
def test_what_cannot_start_says_why_and_is_not_tried_again(rig: Rig, arguments: list[str], said: str) -> None:
    broker = rig.spawn("--create", *arguments)
    assert broker.wait(60) == 2, rig.log()
    assert said in rig.log()
    assert "Traceback" not in rig.log()


def test_a_store_that_may_not_be_written_is_refused(rig: Rig) -> None:
    rig.store.parent.mkdir(exist_ok=True)
    rig.store.write_text("a file")
    assert rig.spawn("--create").wait(60) == 2
    assert str(rig.store) in rig.log()
    assert "Traceback" not in rig.log()


@pytest.mark.thorough
def test_a_second_broker_is_refused_while_the_first_lives(rig: Rig) -> None:
    first = rig.start("--create")
    second = rig.spawn()
    assert second.wait(60) != 0
    assert f"/{first.pid}/" in rig.log()
    assert "is in use by the broker" in rig.log()
    assert rig.client().hello().pid == first.pid


def test_signals_end_a_broker_that_has_just_begun(rig: Rig) -> None:
    broker = rig.start("--create")
    os.kill(broker.pid, signal.SIGINT)
    assert broker.wait(60) == 0


def _wait(broker: Any, seconds: float) -> None:
    import subprocess

    try:
        broker.wait(seconds)
    except subprocess.TimeoutExpired as expired:
        raise TimeoutError from expired


@pytest.mark.parametrize("left", ["nothing", "another store", "a file"])
def test_a_broker_whose_store_was_deleted_leaves(rig: Rig, left: str) -> None:
    """A client that starts another broker makes the directory again."""
    broker = rig.start("--create")
    os.kill(broker.pid, signal.SIGSTOP)
    shutil.rmtree(rig.store)
    if left == "another store":
        rig.store.mkdir()
        (rig.store / "metadata.sqlite").touch()
    elif left == "a file":
        rig.store.touch()
    os.kill(broker.pid, signal.SIGCONT)
    assert broker.wait(60) == 2
    assert "was deleted; the broker exits" in rig.log()


def test_a_deleted_store_is_known_before_its_metadata_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to the metadata that is opened after the deletion may have any error."""
    store = Store.open(tmp_path / "store", settings=Settings(), clock=system_clock_ms, create=True)
    assert process._lost(store) is None
    (store.path / "metadata.sqlite").rename(tmp_path / "deleted")
    (store.path / "metadata.sqlite").touch()

    def damaged() -> None:
        raise Corrupt("no such table: store")

    monkeypatch.setattr(store, "require_ours", damaged)
    assert process._lost(store) == 2
    (tmp_path / "deleted").replace(store.path / "metadata.sqlite")
    assert process._lost(store) is None, "the check is repeated"
    monkeypatch.undo()
    store.close()


def test_no_other_store_gets_the_number_of_a_running_broker(rig: Rig) -> None:
    """The number of the directory names the sockets. A file system gives it away when the last descriptor is closed."""
    broker = rig.start("--create")
    rig.halt(broker.pid)
    assert rig.store in [opened.readlink() for opened in Path(f"/proc/{broker.pid}/fd").iterdir()]


def test_a_broker_that_leaves_takes_its_token_along(rig: Rig) -> None:
    broker = rig.start("--create")
    token = Path(rig.client().hello().token_path)
    assert token.exists()
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(60) == 0
    assert not token.exists()


@pytest.mark.thorough
def test_store_writable_by_others_is_refused_and_readable_is_closed(rig: Rig) -> None:
    broker = rig.start("--create")
    broker.terminate()
    assert broker.wait(60) == 0
    for path in (rig.store / "ledgers", rig.store / "metadata.sqlite"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        assert rig.spawn().wait(60) == 2
        assert f"{path} has owner {os.getuid()} and mode" in rig.log().splitlines()[-1]
        path.chmod(mode)
    rig.store.chmod(0o755)
    rig.start()
    assert rig.store.stat().st_mode & 0o777 == 0o700


def test_whatever_a_broker_makes_is_its_owners_alone(
    rig: Rig, make_entry: Callable[..., bytes], tmp_path: Path
) -> None:
    """Under the laxest mask, and with a socket outside of the run directory."""
    before = os.umask(0)
    try:
        rig.start("--create", "--address", f"grpc+unix://{tmp_path}/b.sock")
    finally:
        os.umask(before)
    client = rig.client()
    client.ask(CreateLedger("orders"))
    with client.producer("orders") as producer:
        producer.append(make_entry(b"x")).result(30)
    client.stage_part("q", 1)
    client.ask(ChangeSetting("metricsLedgersMax", 1))
    made = [tmp_path / "b.sock", Path(client.hello().token_path), rig.store, *rig.store.rglob("*")]
    assert len(made) > 8
    lax = {str(path): oct(path.stat().st_mode & 0o777) for path in made if path.stat().st_mode & 0o077}
    assert lax == {}
