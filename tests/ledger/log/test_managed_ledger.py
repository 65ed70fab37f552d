"""Goal: the log is what was acknowledged, in order, after any fault of its broker. Method: devices that fail, two
brokers that both claim the log, many threads. Random histories are in `test_managed_ledger_model`.
"""

from __future__ import annotations

import errno
import itertools
import threading
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import DataLoss, Fenced, LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.commits import CommitRun
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry
from tests.rigs.log import BLOCK, NOW, contents, open_files
from tests.rigs.store import create, open_store, stage


def test_fenced_broker_acknowledges_nothing_and_its_writes_stay_invisible(store_path: Path) -> None:
    """The old broker has written a group and not yet looked at the epoch when it is taken over."""
    old = open_store(store_path)
    log = create(old, entries=100)
    log.append([entry(b"kept")]).result()
    taken: list[Store] = []
    file = log._writer._open  # type: ignore[union-attr]
    end_sync = file.end_sync

    def taken_over_in_mid_sync(error: OSError | None) -> None:
        end_sync(error)
        if not taken:
            taken.append(open_store(store_path, take_over=True))
            assert contents(taken[0].ledger("log")) == [b"kept", b"seen"], "synced before the epoch was bumped"

    file.end_sync = taken_over_in_mid_sync  # type: ignore[method-assign]
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
def test_disk_failure_under_a_fenced_broker_cuts_nothing_of_its_successor(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """After a device failure a broker cuts and seals its segment; it must not do so to the file of its successor."""
    old = open_store(store_path)
    log = create(old, entries=100)
    log.append([entry(b"kept")]).result()
    writer = log._writer._open  # type: ignore[union-attr]
    log._writer._write_stamped(log._writer._open, [log._check_size(entry(b"unacknowledged"), 1, log._entry_bytes_max)])  # type: ignore[arg-type]
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
def test_device_failure_loses_nothing_and_the_log_goes_on_or_reports_it(
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
        error = log.append([entry(payload)]).exception(60)
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
    again.ledger("log").append([entry(b"after")]).result(60)
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
            log.append([entry(b"x" * 300), entry(b"y" * 300)]).result(60)
    assert open_files() <= opened
    assert sorted(p.name for p in (store_path / "ledgers").iterdir()) == ["0.index", "0.ledger"]
    monkeypatch.setattr(disk, "preallocate", real)
    log.append([entry(b"after")]).result(60)
    assert contents(log) == [b"before", b"after"]
    store.close()


def test_metadata_that_cannot_be_written_at_a_rollover_leaks_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = create(store)
    log.append([entry(b"before")]).result()
    real = store.metadata.update_ledger

    def refuse(*_: object, **__: object) -> object:
        raise Unavailable("metadata.sqlite: database or disk is full")

    opened = open_files()
    monkeypatch.setattr(store.metadata, "update_ledger", refuse)
    for number in range(4):
        log.append([entry(b"%d" % number)]).result(60)
    for _ in range(10):
        with pytest.raises(Unavailable, match="disk is full"):
            log.append([entry(b"no")]).result(60)
    assert open_files() <= opened
    monkeypatch.setattr(store.metadata, "update_ledger", real)
    log.append([entry(b"after")]).result(60)
    found = contents(log)
    assert (found[0], found[-1], len(found)) == (b"before", b"after", 6), "it goes on when the disk does"
    assert len(log.describe().segments) == 2


def test_batch_write_is_forgotten_when_final_and_a_stream_never(store_path: Path) -> None:
    now = [NOW]
    store = open_store(store_path, clock=lambda: now[0])
    log = create(store, entries=3)
    week_ms = Settings().stagingRetentionSeconds * 1000

    def write(query: str, *, once: bool) -> bool:
        run = next(numbers)
        parts = [stage(store, query, 0, [b"x", b"y"], run)]
        return store.commits.commit(CommitRun("log", query, 0, 7, run, parts, once)).repeated

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
    with pytest.raises(DataLoss, match=rf"ends at {end}, entries up to {end.next()} were requested"):
        log.blocks(PositionRange(EARLIEST, end.next()), 1000)
    beyond = Position(end.ledger_id + 5, 3)
    with pytest.raises(DataLoss, match=rf"ends at {end}, entries from {beyond} were requested"):
        log.blocks(PositionRange(beyond, LATEST), 1000)
    assert log.blocks(PositionRange(end, LATEST), 1000) == []


def test_an_entry_is_refused_with_both_numbers_and_an_empty_append_too(store: Store) -> None:
    log = create(store)
    with pytest.raises(Refused, match=rf"{len(entry(b'x' * 500))} bytes, .* a block of {BLOCK} bytes"):
        log.append([entry(b"x" * 500)])
    with pytest.raises(Refused, match="has no entry"):
        log.append([])
    assert log.end().end == Position(-1, 0)


def test_rows_and_bytes_are_counted_by_the_stamps(store: Store) -> None:
    log = create(store, entries=2)
    firsts = [log.append([entry(b"x" * i, rows=i)]).result() for i in (3, 1, 4, 1, 5)]
    for i, first in enumerate(firsts):
        assert log.end(first).rows_since == sum((3, 1, 4, 1, 5)[i:])
        assert log.end(first).entries_since == 5 - i
    assert crc32c(b"".join(contents(log))) == crc32c(b"".join(b"x" * i for i in (3, 1, 4, 1, 5)))
