"""Goal: an unexpected error ends no background thread, and every waiting caller receives the error.

Method: each background thread of a broker has one step raise, once; the next step must work.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.read.ledger.subscription import Heartbeat
from pyspark_ledger.ledger.broker import append_socket
from pyspark_ledger.ledger.broker.append_socket import AppendSocketListener
from pyspark_ledger.ledger.broker.reads import cached_reads, prefetcher
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.broker.reads.prefetcher import BrokerPrefetcher
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Unavailable
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.cursors import CursorRig
from tests.rigs.deadline import wait_until
from tests.rigs.entry import entry
from tests.rigs.log import NOW, contents
from tests.rigs.offload import OffloadRig, offload_prefix
from tests.rigs.store import create, open_store

SECONDS = 60


class Once:
    """A step that raises at its first call, and is itself afterwards."""

    def __init__(self, real: Callable[..., Any], error: BaseException | None = None) -> None:
        self.real, self.error = real, error or RuntimeError("bit flip")
        self.calls = 0
        self.repeated = threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise self.error
        self.repeated.set()
        return self.real(*arguments, **named)


def in_time(work: Callable[[], object]) -> object:
    """The result of a call, or its error; fails when it hangs."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except LedgerError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "the call hangs"
    return found[0]


def test_the_writer_of_the_metadata_tells_its_callers_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = RecordTable("item", ("id INTEGER PRIMARY KEY",))
    store = RecordTable("store", ("epoch INTEGER NOT NULL", "commits INTEGER NOT NULL"), rowid=True, counted=False)
    file = MetadataFile.create(
        tmp_path / "metadata.sqlite", (store, table), lambda c: c.execute("INSERT INTO store_row VALUES (0, 0)")
    )
    monkeypatch.setattr(file, "_commit", Once(file._commit))

    def insert() -> object:
        return file.change(lambda c: c.execute("INSERT INTO item_row VALUES (7)").rowcount)

    told = in_time(insert)
    assert isinstance(told, Unavailable)
    assert "bit flip" in told.message
    assert "it is unknown" in told.message
    assert in_time(insert) == 1
    assert "unexpected error" in caplog.text
    in_time(file.close)


def test_a_log_is_appended_to_though_its_cache_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = CachedReads(Settings(), monotonic_ms, lambda _: None)  # type: ignore[arg-type, return-value]
    cache._registered = None  # type: ignore[assignment]  # what is asked of it raises
    store = open_store(tmp_path / "store", watch=lambda _: cache)
    log = create(store, entries=100)
    assert log.append([entry(b"a")]).result(SECONDS) == Position(0, 0)
    assert log.append([entry(b"b")]).result(SECONDS) == Position(0, 1)
    assert contents(log) == [b"a", b"b"]
    assert "unexpected error" in caplog.text
    store.close()


def test_the_caches_eviction_by_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_reads, "_EVICTION_SECONDS", 0.001)
    cache = CachedReads(Settings(), monotonic_ms, lambda _: None)  # type: ignore[arg-type, return-value]
    expire = Once(cache._expire)
    monkeypatch.setattr(cache, "_expire", expire)
    cache.start()
    assert expire.repeated.wait(SECONDS)
    cache.stop()


class Remote:
    """Name of a block's location."""

    mappable = False


class Reads:
    """Reads of object storage, of which the first raises."""

    def __init__(self) -> None:
        self.prefetch = Once(lambda *_: None)

    def is_missing(self, *_: object) -> bool:
        return True


def planned(ahead: BrokerPrefetcher, reader: str) -> None:
    block = SegmentBlock(0, 0, 1, Path("none"), 0, 10, Remote())  # type: ignore[arg-type]
    ahead.plan(ReaderId("orders", reader), [block])


@pytest.mark.parametrize("step", ["fetch", "start"])
def test_blocks_are_read_ahead_after_an_error(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """With the only thread there may be."""
    reads = Reads()
    ahead = BrokerPrefetcher(reads, lambda: 1000, 1)  # type: ignore[arg-type]
    if step == "start":
        reads.prefetch.calls = 1
        with monkeypatch.context() as patch:
            patch.setattr(prefetcher.threading.Thread, "start", Once(lambda *_: None, RuntimeError("no thread")))
            planned(ahead, "a")
    else:
        planned(ahead, "a")
    wait_until(lambda: not ahead._threads)
    planned(ahead, "b")
    assert reads.prefetch.repeated.wait(SECONDS)


@pytest.mark.thorough
def test_cursors_are_flushed_after_an_error_and_beside_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.cursor.acknowledgements._FLUSH_SECONDS", 1)
    rig = CursorRig(tmp_path / "s", managedLedgerDefaultMarkDeleteRateLimit=1)
    rig.now = NOW + 2000
    rig.ack((1, 0))
    rig.ack((2, 0))
    table = rig.store.acknowledgements
    (held,) = table._acks.values()
    assert held.is_dirty
    flush = Once(table._flush)
    monkeypatch.setattr(table, "_flush", flush)
    table.start()
    assert flush.repeated.wait(SECONDS)
    wait_until(lambda: not held.is_dirty)
    assert "unexpected error" in caplog.text
    rig.store.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[OffloadRig]:
    rig = OffloadRig(tmp_path / "store", str(tmp_path / "objects"))
    yield rig
    rig.store.close()


@pytest.mark.parametrize("step", ["_offloaded", "_is_listed"])
def test_who_waits_for_an_offload_is_told_and_the_next_one_is_made(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    rig.fill(2)
    desk = rig.store.offloads
    monkeypatch.setattr(desk, step, Once(getattr(desk, step)))
    if step == "_is_listed":
        monkeypatch.setattr(desk, "_offloaded", Once(desk._offloaded, NotFound("gone")))
    desk.start()
    told = in_time(lambda: offload_prefix(desk, "log", Position(9, 0)))
    assert isinstance(told, LedgerError)
    assert "bit flip" in told.message
    assert desk.status("log").state == "failed"
    assert not isinstance(in_time(lambda: offload_prefix(desk, "log", Position(9, 0))), LedgerError)
    assert desk.status("log").left == []


def test_who_waits_for_an_offload_is_told_that_the_broker_leaves(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.fill(1)
    rig.fill(1, name="other")
    desk = rig.store.offloads
    inside, free = threading.Event(), threading.Event()
    real = desk._offloaded

    def slow(*arguments: Any) -> bool:
        inside.set()
        assert free.wait(SECONDS)
        return real(*arguments)

    monkeypatch.setattr(desk, "_offloaded", slow)
    desk.start()
    desk.offload(OffloadPrefix("log", None))
    assert inside.wait(SECONDS)
    waiting = threading.Thread(target=lambda: offload_prefix(desk, "other", Position(9, 0)), daemon=True)
    waiting.start()
    wait_until(lambda: desk._waiting)
    stopping = threading.Thread(target=desk.stop, daemon=True)
    stopping.start()
    wait_until(lambda: desk._stopped)
    free.set()
    stopping.join(SECONDS)
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert desk.status("other").state == "cancelled"


def test_the_door_for_producers_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    met = threading.Event()
    monkeypatch.setattr(append_socket, "_RETRY_SECONDS", 0.01)
    real = AppendSocketListener._accept

    def accept(door: AppendSocketListener) -> None:
        listening, door._socket = door._socket, OddSocket(door._socket)  # type: ignore[assignment]
        real(door)
        listening.close()

    monkeypatch.setattr(AppendSocketListener, "_accept", accept)
    monkeypatch.setattr(AppendSocketListener, "_converse", lambda _door, peer: (peer.close(), met.set()))
    door = AppendSocketListener(lambda *_: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(f"\0{door.name}")
        assert met.wait(SECONDS)
    door.close()


class OddSocket:
    """A socket whose first `accept` fails for want of memory."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.accept = Once(real.accept, MemoryError())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_lease_is_renewed_after_an_error() -> None:
    beat = Once(lambda: None)
    heart = Heartbeat(beat, "lease of a test", 0.01)
    assert beat.repeated.wait(SECONDS)
    heart.stop()
