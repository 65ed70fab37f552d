"""Goal: the log is what was acknowledged, in order, whatever happens to its broker. Method: a model over random
histories of appends, runs, crashes and take-overs with tiny ledgers; failing devices; two brokers that both believe
they own it."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ledger import disk
from ledger.checksum import crc32c
from ledger.entry import is_marker, parse_entry
from ledger.errors import DataLoss, Fenced, LedgerError, Refused, Unavailable
from ledger.managed_ledger import ManagedLedger
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from ledger.protocol import CreateLedger
from ledger.run_calls import CommitRun, CommittedRun, StagedPart
from ledger.segment_reader import iter_frames
from ledger.settings import Settings
from ledger.staging import PartFile
from ledger.store import Store
from tests.ledger.log_rig import BLOCK, NOW, entry


def open_store(path: Path, *, take_over: bool = False, clock: Callable[[], int] = lambda: NOW) -> Store:
    return Store.open(path, settings=Settings(), clock=clock, create=True, take_over=take_over)


def create(store: Store, name: str = "log", entries: int = 5) -> ManagedLedger:
    return store.create_ledger(CreateLedger(name, exist_ok=True, block_bytes=BLOCK, max_entries_per_ledger=entries))


def stage(store: Store, query: str, batch: int, payloads: list[bytes], run: int) -> StagedPart:
    with PartFile(store.open_part(query, batch)) as part:
        for payload in payloads:
            part.write([entry(payload, run=run)], 1)
        return part.close()


def commit(store: Store, batch: int, payloads: list[bytes], run: int, query: str = "q") -> CommittedRun:
    parts = [stage(store, query, batch, payloads, run)]
    return store.commit(CommitRun("log", query, batch, 7, run, parts))


def contents(log: ManagedLedger) -> list[bytes]:
    """The payloads that a reader gets, every byte checked; markers are left out."""
    found = []
    for block in log.blocks(PositionRange(EARLIEST, LATEST), 300):
        data = block.path.read_bytes()[block.offset : block.offset + block.length]
        for entry_id, frame in iter_frames(data, block.ledger_id, block.first_entry, block.entries):
            parsed = parse_entry(frame, f"{block.ledger_id}:{entry_id}")
            if not is_marker(parsed.metadata):
                found.append(bytes(parsed.payload))
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    store = open_store(store_path)
    yield store
    store.close()


class LogMachine(RuleBasedStateMachine):
    """`sent` is what the log must hold. A broker that dies keeps its files open, as a stopped process would."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ledger-model-"))
        self.numbers = itertools.count()
        self.now = NOW
        self.batch = 0
        self.last: tuple[int, list[bytes], CommittedRun] | None = None
        self.sent: list[bytes] = []
        self.positions: dict[Position, bytes] = {}
        self.dead: list[Store] = []

    @initialize(entries=st.integers(1, 6))
    def begin(self, entries: int) -> None:
        self.store = open_store(self.directory / "store", clock=self.clock)
        create(self.store, entries=entries)

    def clock(self) -> int:
        return self.now

    def payloads(self, sizes: list[int]) -> list[bytes]:
        return [b"%d:" % next(self.numbers) + b"x" * size for size in sizes]

    @rule(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=8))
    def append_together(self, sizes: list[int]) -> None:
        payloads = self.payloads(sizes)
        first = self.store.ledger("log").append([entry(payload) for payload in payloads]).result()
        self.remember(payloads, first)

    @rule(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=8))
    def append_one_by_one(self, sizes: list[int]) -> None:
        payloads = self.payloads(sizes)
        log = self.store.ledger("log")
        futures = [log.append([entry(payload)]) for payload in payloads]
        for payload, future in zip(payloads, futures, strict=True):
            self.remember([payload], future.result())

    @rule(sizes=st.lists(st.integers(0, 200), max_size=8))
    def commit_batch(self, sizes: list[int]) -> None:
        payloads = self.payloads(sizes)
        self.batch += 1
        done = commit(self.store, self.batch, payloads, self.batch)
        assert (done.repeated, done.entries, done.rows) == (False, len(payloads), len(payloads))
        assert done.end == Position(done.first.ledger_id, done.first.entry_id + len(payloads) + 1)
        self.remember(payloads, done.first)
        self.last = (self.batch, payloads, done)

    @precondition(lambda self: self.last is not None)
    @rule()
    def commit_the_same_again(self) -> None:
        assert self.last is not None
        batch, payloads, done = self.last
        again = commit(self.store, batch, payloads, batch)
        assert again == CommittedRun(True, done.first, done.end, done.entries, done.rows)

    @rule(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4))
    def commit_of_a_part_that_changed(self, sizes: list[int]) -> None:
        part = stage(self.store, "other", 0, self.payloads(sizes), 9)
        path = self.store.path / "staging" / part.part
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(LedgerError, match="CRC32C"):
            self.store.commit(CommitRun("log", "other", 0, 7, 9, [part]))

    @rule(broken=st.sampled_from([b"", b"junk", entry(b"x")[:-1], entry(b"x", run=3), entry(b"x" * 400)]))
    def refused_changes_nothing(self, broken: bytes) -> None:
        with pytest.raises(LedgerError):
            self.store.ledger("log").append([entry(b"good"), broken]).result()

    @rule(milliseconds=st.integers(-1000, 1000))
    def time_goes_by(self, milliseconds: int) -> None:
        self.now += milliseconds

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.directory / "store", clock=self.clock)

    @rule(
        unfinished=st.lists(st.integers(0, 200), max_size=3),
        run=st.booleans(),
        torn=st.booleans(),
        gone=st.booleans(),
    )
    def die_in_mid_append(self, unfinished: list[int], run: bool, torn: bool, gone: bool) -> None:
        """Written and never acknowledged: whole entries are kept or cut as one, half ones and open runs are cut.

        A broker that is gone holds its files no more; one that is only stopped does, and recovery must work on copies.
        """
        log = self.store.ledger("log")
        payloads = self.payloads(unfinished)
        entries = [log._sized(entry(payload, run=99 if run else 0), 1) for payload in payloads]
        open_ledger = log._writer._open
        if open_ledger is not None:
            log._writer._write_stamped(open_ledger, entries)
            writer = open_ledger._writer
            os.pwrite(writer._fd, b"\x00\x00\x01\x00torn" * 5, writer.end_offset) if torn else None
            if not run:
                self.sent += payloads
            if gone:
                open_ledger.let_go()
        self.dead.append(self.store)
        self.store = open_store(self.directory / "store", take_over=True, clock=self.clock)

    @precondition(lambda self: bool(self.dead))
    @rule()
    def the_dead_are_fenced(self) -> None:
        before = contents(self.store.ledger("log"))
        for broker in self.dead:
            log = broker._opened.get("public/default/persistent/log")
            if log is not None:
                with pytest.raises(Fenced, match=r"has epoch \d+, this broker has \d+"):
                    log.append([entry(b"from the grave")]).result()
        assert contents(self.store.ledger("log")) == before

    @precondition(lambda self: bool(self.dead))
    @rule()
    def the_dead_close(self) -> None:
        while self.dead:
            self.dead.pop().close()

    def remember(self, payloads: list[bytes], first: Position) -> None:
        self.sent += payloads
        self.positions.update({Position(first.ledger_id, first.entry_id + i): p for i, p in enumerate(payloads)})

    @invariant()
    def the_log_is_what_was_sent(self) -> None:
        if not hasattr(self, "store"):
            return
        log = self.store.ledger("log")
        assert contents(log) == self.sent
        end = log.end(EARLIEST)
        assert end.rows_since == len(self.sent) == log.describe().rows
        stamps = [t for s in log.snapshot.segments for t in s.index().timestamps[: s.entries].tolist()]
        assert stamps == sorted(stamps), "broker timestamps went back"

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.positions_hold()
            self.store.close()
        self.the_dead_close()
        shutil.rmtree(self.directory)

    def positions_hold(self) -> None:
        log = self.store.ledger("log")
        for position, payload in self.positions.items():
            (block,) = log.blocks(PositionRange(position, position.next()), 1)
            data = block.path.read_bytes()[block.offset : block.offset + block.length]
            ((_, frame),) = iter_frames(data, block.ledger_id, block.first_entry, block.entries)
            assert bytes(parse_entry(frame, str(position)).payload) == payload


LogMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLogModel = LogMachine.TestCase


@pytest.mark.slow
class TestLogModelLong(LogMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(
        max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )


def test_a_fenced_broker_acknowledges_nothing_and_what_it_writes_reaches_nobody(store_path: Path) -> None:
    """The old broker has written a group and not yet looked at the epoch when it is taken over."""
    old = open_store(store_path)
    log = create(old, entries=100)
    log.append([entry(b"kept")]).result()
    taken: list[Store] = []
    sync = log._writer._open.sync  # type: ignore[union-attr]

    def taken_over_in_mid_sync() -> None:
        sync()
        if not taken:
            taken.append(open_store(store_path, take_over=True))
            assert contents(taken[0].ledger("log")) == [b"kept", b"seen"], "synced before the epoch was bumped"

    log._writer._open.sync = taken_over_in_mid_sync  # type: ignore[union-attr,method-assign]
    with pytest.raises(Fenced, match=r"epoch 2, this broker has 1"):
        log.append([entry(b"seen")]).result()
    new = taken[0]
    with pytest.raises(Fenced):
        log.append([entry(b"never")]).result()
    assert log.end().end == Position(0, 1), "readers of the old broker see what it acknowledged"
    old.close()
    new.ledger("log").append([entry(b"after")]).result()
    assert contents(new.ledger("log")) == [b"kept", b"seen", b"after"]
    new.close()


@pytest.mark.parametrize("fault", ["write", "sync"])
def test_a_failing_disk_under_a_fenced_broker_cuts_nothing_of_its_successors(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """What a broker does to its ledger when the device fails, cutting and sealing, must not reach the taker's file."""
    old = open_store(store_path)
    log = create(old, entries=100)
    log.append([entry(b"kept")]).result()
    writer = log._writer._open._writer  # type: ignore[union-attr]
    log._writer._write_stamped(log._writer._open, [log._sized(entry(b"unacknowledged"), 1)])  # type: ignore[arg-type]
    new = open_store(store_path, take_over=True)
    assert contents(new.ledger("log")) == [b"kept", b"unacknowledged"]
    broken = OSError(errno.EIO, "the device is gone")
    real = disk.sync_data
    target = {"write": "write_all", "sync": "sync_data"}[fault]

    def fail(fd: int, *rest: object) -> int:
        if fd == writer._fd:
            raise broken
        return real(fd) or 0 if fault == "sync" else write_all(fd, *rest)  # type: ignore[arg-type]

    write_all = disk.write_all
    with monkeypatch.context() as patch:
        patch.setattr(disk, target, fail)
        with pytest.raises(LedgerError):
            log.append([entry(b"x")]).result()
    old.close()
    new.close()
    again = open_store(store_path)
    assert contents(again.ledger("log")) == [b"kept", b"unacknowledged"]
    again.close()


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("name", ["sync_data", "write_all", "preallocate"])
def test_a_device_that_fails_loses_nothing_and_the_log_goes_on_or_says_that_it_cannot(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, times: int
) -> None:
    store = open_store(store_path)
    log = create(store, entries=100)
    log.append([entry(b"before")]).result()
    real, left = getattr(disk, name), [times]

    def failing(*arguments: object) -> object:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)

    monkeypatch.setattr(disk, name, failing)
    acknowledged, unknown = [b"before"], []
    for number in range(6):
        payload = b"%d" % number * 150  # so that space must be reserved, too
        error = log.append([entry(payload)]).exception(10)
        if error is None:
            acknowledged.append(payload)
            continue
        unknown.append(payload)
        assert isinstance(error, Unavailable)
        assert "Input/output error" in str(error)
    assert times < 3 or name != "sync_data" or unknown, "the failure was seen"
    assert contents(log) == acknowledged
    monkeypatch.undo()
    store.close()
    again = open_store(store_path)
    assert [p for p in contents(again.ledger("log")) if p not in unknown] == acknowledged
    again.ledger("log").append([entry(b"after")]).result(10)
    again.close()


def test_a_full_disk_is_said_and_leaks_no_files(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(store_path)
    log = create(store, entries=100)
    log.append([entry(b"before")]).result()
    real = disk.preallocate

    def full(fd: int, offset: int, length: int, path: Path | None = None) -> None:
        raise Unavailable(f"{path} cannot grow: No space left on device", hint="Free space")

    monkeypatch.setattr(disk, "preallocate", full)
    opened = open_files()
    for _ in range(20):
        with pytest.raises(Unavailable, match="No space left"):
            log.append([entry(b"x" * 300), entry(b"y" * 300)]).result(10)
    assert open_files() <= opened
    assert sorted(p.name for p in (store_path / "ledgers").iterdir()) == ["0.index", "0.ledger"]
    monkeypatch.setattr(disk, "preallocate", real)
    log.append([entry(b"after")]).result(10)
    assert contents(log) == [b"before", b"after"]
    store.close()


def test_metadata_that_cannot_be_written_at_a_rollover_leaks_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = create(store)
    log.append([entry(b"before")]).result()
    real = store._metadata.update_ledger

    def refuse(*_: object, **__: object) -> object:
        raise Unavailable("metadata.sqlite: database or disk is full")

    opened = open_files()
    monkeypatch.setattr(store._metadata, "update_ledger", refuse)
    for number in range(4):
        log.append([entry(b"%d" % number)]).result(10)
    for _ in range(10):
        with pytest.raises(Unavailable, match="disk is full"):
            log.append([entry(b"no")]).result(10)
    assert open_files() <= opened
    monkeypatch.setattr(store._metadata, "update_ledger", real)
    log.append([entry(b"after")]).result(10)
    found = contents(log)
    assert (found[0], found[-1], len(found)) == (b"before", b"after", 6), "it goes on when the disk does"
    assert len(log.describe().segments) == 2


def test_a_batch_write_is_forgotten_when_nobody_can_commit_it_again_and_a_stream_never(store_path: Path) -> None:
    now = [NOW]
    store = open_store(store_path, clock=lambda: now[0])
    log = create(store, entries=3)
    week_ms = Settings().stagingRetentionSeconds * 1000

    def write(query: str, *, once: bool) -> bool:
        run = next(numbers)
        parts = [stage(store, query, 0, [b"x", b"y"], run)]
        return store.commit(CommitRun("log", query, 0, 7, run, parts, once)).repeated

    numbers = itertools.count(1)
    assert not write("batch-1", once=True)
    assert not write("stream", once=False)
    now[0] += week_ms
    assert write("batch-1", once=True), "its writer may still come again"
    now[0] += 1
    assert not write("batch-2", once=True)  # rolls over: the next record is written
    assert write("stream", once=False)
    store.close()
    again = open_store(store_path, clock=lambda: now[0])
    found = again.ledger("log")
    assert [found.committed_batch(query) is None for query in ("batch-1", "stream", "batch-2")] == [True, False, False]
    assert log.committed_batch("batch-1") is None
    again.close()


def test_sixteen_threads_append_and_each_finds_its_own_order(store: Store) -> None:
    log = create(store, entries=50)
    sent: dict[int, list[Position]] = {}

    def produce(number: int) -> None:
        futures = [log.append([entry(b"%d-%d" % (number, i))]) for i in range(40)]
        sent[number] = [future.result(30) for future in futures]

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(log)
    assert len(found) == 16 * 40
    for number, positions in sent.items():
        assert positions == sorted(positions)
        assert [p for p in found if p.startswith(b"%d-" % number)] == [b"%d-%d" % (number, i) for i in range(40)]


def test_what_the_log_never_held_or_no_longer_holds_is_data_loss(store: Store) -> None:
    log = create(store)
    for number in range(7):
        log.append([entry(b"%d" % number)]).result()
    end = log.end().end
    with pytest.raises(DataLoss, match=rf"ends at {end}, entries up to {end.next()} were asked for"):
        log.blocks(PositionRange(EARLIEST, end.next()), 1000)
    beyond = Position(end.ledger_id + 5, 3)
    with pytest.raises(DataLoss, match=rf"ends at {end}, entries from {beyond} were asked for"):
        log.blocks(PositionRange(beyond, LATEST), 1000)
    assert log.blocks(PositionRange(end, LATEST), 1000) == []


def test_an_entry_is_refused_with_both_numbers_and_an_empty_append_too(store: Store) -> None:
    log = create(store)
    with pytest.raises(Refused, match=rf"{len(entry(b'x' * 500))} bytes .* a block of {BLOCK} bytes holds"):
        log.append([entry(b"x" * 500)])
    with pytest.raises(Refused, match="holds no entry"):
        log.append([])
    assert log.end().end == Position(-1, 0)


def test_waiting_for_more_ends_when_more_comes_and_not_before(store: Store) -> None:
    log = create(store)
    end = log.append([entry(b"x")]).result().next()
    waited = threading.Event()
    thread = threading.Thread(target=lambda: (log.wait_past(end, 20_000), waited.set()))
    thread.start()
    assert not waited.wait(0.05)
    log.append([entry(b"y")]).result()
    assert waited.wait(10)
    thread.join()
    log.wait_past(log.end().end, 1)  # comes back although nothing came


def test_rows_and_bytes_are_counted_by_the_stamps(store: Store) -> None:
    log = create(store, entries=2)
    firsts = [log.append([entry(b"x" * i, rows=i)]).result() for i in (3, 1, 4, 1, 5)]
    for i, first in enumerate(firsts):
        assert log.end(first).rows_since == sum((3, 1, 4, 1, 5)[i:])
        assert log.end(first).entries_since == 5 - i
    assert crc32c(b"".join(contents(log))) == crc32c(b"".join(b"x" * i for i in (3, 1, 4, 1, 5)))
