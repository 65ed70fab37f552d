"""Goal: a store has one broker, refuses what is none, sweeps what a crash left, says exactly what is damaged. Method:
real directories; files removed, flipped, cut and made newer by hand; two brokers at once."""

from __future__ import annotations

import os
import re
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import (
    AlreadyExists,
    Corrupt,
    DataLoss,
    Fenced,
    NotFound,
    Refused,
    Unavailable,
    Unsupported,
)
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger, GetSchema, RegisterSchema
from pyspark_ledger.ledger.protocol.cursors import DeleteCursor, DescribeCursor, MarkDelete, OpenCursor
from pyspark_ledger.ledger.segment import index
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry
from tests.rigs.log import contents
from tests.rigs.store import fill, open_store


def crash(store: Store) -> None:
    """Let go as the kernel does for a killed process: nothing is sealed, nothing is written."""
    for log in store._opened.values():
        if log._writer._open is not None:
            log._writer._open.close()
            log._writer._open = None
    store.close()


def test_a_second_broker_is_refused_naming_the_first_and_nothing_changes(store: Store, store_path: Path) -> None:
    with pytest.raises(Refused, match=rf"in use by the broker .*/{os.getpid()}/"):
        open_store(store_path)
    assert store.metadata._file.epoch() == 1
    fill(store, "log", [b"still mine"])


def test_taking_over_fences_every_change_of_the_old_broker(store: Store, store_path: Path) -> None:
    fill(store, "log", [b"a"])
    store.cursors.open(OpenCursor("log", "c", EARLIEST))
    taker = open_store(store_path, take_over=True)
    changes: list[Callable[[], object]] = [
        lambda: store.create_ledger(CreateLedger("other")),
        lambda: store.ledger("log").append([entry(b"b")]).result(),
        lambda: store.cursors.mark_delete(MarkDelete("log", "c", Position(0, 1))),
        lambda: store.cursors.delete(DeleteCursor("log", "c")),
        lambda: store.register_schema(RegisterSchema("log", b'{"type":"STRING"}')),
        lambda: store.delete_ledger("log"),
        store.require_ours,
    ]
    for change in changes:
        with pytest.raises(Fenced, match="epoch 2, this broker has 1"):
            change()
    assert contents(store.ledger("log")) == [b"a"], "it may still be read"
    store.close()
    assert contents(taker.ledger("log")) == [b"a"]
    assert taker.cursors.describe(DescribeCursor("log", "c")).next_position < Position(0, 1)
    fill(taker, "log", [b"b"])
    taker.close()


def test_fenced_broker_that_opens_a_ledger_late_leaves_the_new_file_alone(store_path: Path) -> None:
    """Opening recovers segments that were left open. The new owner's file is none of them."""
    old = open_store(store_path)
    fill(old, "log", [b"a"], entries=100)
    old._opened.pop("public/default/persistent/log").close()
    taker = open_store(store_path, take_over=True)
    fill(taker, "log", [b"b"], entries=100)
    with pytest.raises(Fenced):
        old.ledger("log")
    fill(taker, "log", [b"c"], entries=100)
    old.close()
    taker.close()
    again = open_store(store_path)
    assert contents(again.ledger("log")) == [b"a", b"b", b"c"]
    again.close()


def test_what_is_not_a_store_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no ledger store at"):
        open_store(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(Refused, match="neither empty nor a ledger store"):
        open_store(other)
    assert [path.name for path in other.iterdir()] == ["cat.jpg"]
    database = tmp_path / "database"
    database.mkdir()
    with sqlite3.connect(database / "metadata.sqlite") as connection:
        connection.execute("CREATE TABLE t (x)")
    before = (database / "metadata.sqlite").read_bytes()
    with pytest.raises(Corrupt, match="application id 0x0, expected 0x4c444752"):
        open_store(database)
    assert (database / "metadata.sqlite").read_bytes() == before


def test_network_file_systems_are_refused_by_type_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = disk.require_suitable
    mounts = f"server:/x {tmp_path} nfs4 rw 0 0\n"
    monkeypatch.setattr(disk, "require_suitable", lambda path: real(path, mounts=mounts))
    with pytest.raises(Refused, match=rf"lies on {tmp_path}, a network file system \(nfs4\)"):
        open_store(tmp_path / "store")
    assert not (tmp_path / "store" / "metadata.sqlite").exists()


CREATING = """
import sys
from pathlib import Path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
print("ready", flush=True)
sys.stdin.readline()
Store.open(Path(sys.argv[1]), settings=Settings(), clock=lambda: 1, create=True)
"""


@pytest.mark.fault
def test_a_creation_that_was_killed_at_any_moment_is_finished_by_the_next(tmp_path: Path) -> None:
    """Every file that creation makes on its way is left behind in turn."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for number in range(12):
        path = tmp_path / f"store{number}"
        with subprocess.Popen(
            [sys.executable, "-c", CREATING, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            child.stdout.readline()
            child.stdin.write(b"\n")
            child.stdin.flush()
            try:
                child.wait(number * 0.002)
            except subprocess.TimeoutExpired:
                child.kill()
        store = open_store(path)
        fill(store, "log", [b"x"])
        store.close()


@pytest.mark.parametrize("left", ["metadata.sqlite.new", "metadata.sqlite.new-journal", "lock.123", ".probe-1-ab"])
def test_what_a_killed_creation_left_is_no_reason_to_refuse(store_path: Path, left: str) -> None:
    store_path.mkdir()
    (store_path / left).write_bytes(b"half")
    store = open_store(store_path)
    store.close()


def test_names_are_those_that_were_given_and_sorted(store: Store) -> None:
    for name in ("b", "A", "tenant/ns/z", "persistent://t/n/x", "ü", "a b", "%2F", "x" * 255):
        store.create_ledger(CreateLedger(name))
    assert store.names() == sorted(store.names())
    assert len(store.names()) == 8
    for bad in ("", "..", "a/b", "a/../b", "a\0b", "a\nb", "x" * 256, "non-persistent://a/b/c"):
        with pytest.raises(Refused, match=re.escape(repr(bad)) if len(bad) < 250 else "256 bytes"):
            store.create_ledger(CreateLedger(bad))
    with pytest.raises(Refused, match="only in case"):
        store.create_ledger(CreateLedger("a"))
    with pytest.raises(AlreadyExists):
        store.create_ledger(CreateLedger("A"))
    with pytest.raises(NotFound, match=r"'tenant/ns/zz'.*Did you mean 'tenant/ns/z'"):
        store.ledger("tenant/ns/zz")
    assert {path.name for path in (store.path / "ledgers").iterdir()} == set(), "a name is never a path"


def test_a_deleted_ledger_leaves_no_file_and_comes_back_as_another(store: Store) -> None:
    fill(store, "log", [b"%d" % i for i in range(10)])
    fill(store, "kept", [b"kept"])
    store.register_schema(RegisterSchema("log", b'{"type":"STRING"}'))
    store.cursors.open(OpenCursor("log", "c", EARLIEST))
    (store.path / "ledgers" / "0.torn").write_bytes(b"set aside by a recovery")
    log = store.ledger("log")
    store.delete_ledger("log")
    assert len(list((store.path / "ledgers").iterdir())) == 2
    with pytest.raises(Unavailable):
        log.append([entry(b"x")])
    with pytest.raises(NotFound):
        store.delete_ledger("log")
    fill(store, "log", [b"new"])
    assert store.ledger("log").incarnation != log.incarnation
    assert contents(store.ledger("log")) == [b"new"]
    assert store.get_schema(GetSchema("log")).version == -1
    assert store.describe("log").cursors == []
    assert contents(store.ledger("kept")) == [b"kept"]


def test_many_threads_delete_and_make_the_same_ledger(store: Store) -> None:
    def churn(number: int) -> None:
        for _ in range(10):
            try:
                fill(store, "log", [b"%d" % number])
                store.delete_ledger("log")
            except (NotFound, Unavailable):
                pass  # another thread was faster

    with ThreadPoolExecutor(6) as executor:
        for future in [executor.submit(churn, number) for number in range(6)]:
            future.result()
    fill(store, "log", [b"last"])
    assert contents(store.ledger("log"))[-1:] == [b"last"]


def test_nothing_is_trimmed_without_a_policy(store_path: Path) -> None:
    """A batch write without any subscription, three rollovers, a restart: every row is there."""
    payloads = [b"row %d" % i for i in range(10)]
    store = open_store(store_path)
    fill(store, "table", payloads)
    store.close()
    store = open_store(store_path)
    assert contents(store.ledger("table")) == payloads
    assert len(store.describe("table").segments) == 4
    store.close()


def test_many_tiny_ledgers(store_path: Path) -> None:
    store = open_store(store_path)
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda i: fill(store, f"log-{i}", [b"%d" % i] * 3, entries=1), range(60)))
    store.close()
    opened = len(list(Path("/proc/self/fd").iterdir()))
    store = open_store(store_path)
    assert len(store.names()) == 60
    assert all(contents(store.ledger(f"log-{i}")) == [b"%d" % i] * 3 for i in range(60))
    store.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened


def test_a_file_that_no_record_knows_is_kept_and_told(store_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(store_path)
    fill(store, "log", [b"a"])
    given = store.metadata.allocate_ledger_id()
    store.metadata.unwanted_files.remove([given])
    crash(store)
    folder = store_path / "ledgers"
    for name in (f"{given}.ledger", f"{given}.torn", "notes.txt", "007.ledger"):
        (folder / name).write_bytes(b"left")
    before = {path.name for path in folder.iterdir()}
    store = open_store(store_path)
    assert {path.name for path in folder.iterdir()} == before
    assert f"no record lists segment {given}, its files {given}.ledger, {given}.torn are kept" in caplog.text
    assert contents(store.ledger("log")) == [b"a"]
    store.close()


# Damage. Each is done to a store that was closed or killed; the error must say where and what.


def damaged(path: Path, *, killed: bool = False) -> None:
    store = open_store(path)
    fill(store, "log", [b"entry %d" % i for i in range(5)], entries=3)
    crash(store) if killed else store.close()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("ledger_id", [0, 1])
@pytest.mark.parametrize("killed", [False, True])
def test_a_lost_sidecar_is_made_anew(store_path: Path, ledger_id: int, killed: bool) -> None:
    damaged(store_path, killed=killed)
    (store_path / "ledgers" / f"{ledger_id}.index").unlink()
    store = open_store(store_path)
    assert contents(store.ledger("log")) == [b"entry %d" % i for i in range(5)]
    store.close()
    assert (store_path / "ledgers" / f"{ledger_id}.index").exists()


@pytest.mark.parametrize(("ledger_id", "killed"), [(0, False), (1, False), (1, True)])
def test_a_lost_ledger_is_data_loss_naming_the_file(store_path: Path, ledger_id: int, killed: bool) -> None:
    damaged(store_path, killed=killed)
    lost = store_path / "ledgers" / f"{ledger_id}.ledger"
    lost.rename(store_path / "elsewhere")
    store = open_store(store_path)
    with pytest.raises((DataLoss, NotFound), match=re.escape(str(lost))):
        contents(store.ledger("log"))
    store.delete_ledger("log")  # a damaged ledger can be given up
    assert store.names() == []
    store.close()


def test_flipped_bit_below_the_acknowledged_end_is_corrupt_and_not_cut(store_path: Path) -> None:
    damaged(store_path, killed=True)
    path = store_path / "ledgers" / "1.ledger"
    flip(path, 128 + 12 + 8)
    before = path.read_bytes()
    store = open_store(store_path)
    with pytest.raises(Corrupt, match=re.escape(f"{path} at 128") + r".*2 entries up to \d+ were acknowledged"):
        store.ledger("log")
    assert path.read_bytes() == before
    assert not path.with_suffix(".torn").exists()
    fill(store, "other", [b"the store's other ledgers go on"])
    store.close()


def test_flipped_bit_under_a_checksum_is_detected_also_after_a_crash(store_path: Path) -> None:
    damaged(store_path, killed=True)
    path = store_path / "ledgers" / "1.ledger"
    whole = path.read_bytes()
    flipped = 128 + 12 + 30
    flip(path, flipped)
    store = open_store(store_path)
    assert store.ledger("log").snapshot.end.entry_id == 2, "both entries of the ledger that was open are there"
    with pytest.raises(Corrupt, match=r"0x[0-9a-f]{8}"):
        contents(store.ledger("log"))
    store.close()
    assert not path.with_suffix(".torn").exists()
    kept = path.read_bytes()
    wrong = [at for at in range(128, len(kept)) if kept[at] != whole[at]]  # sealing rewrote the header before
    assert wrong == [flipped], "nothing was cut"


def test_a_flipped_bit_in_a_sealed_ledger_is_seen_by_whoever_reads_it(store_path: Path) -> None:
    damaged(store_path)
    flip(store_path / "ledgers" / "0.ledger", 128 + 12 + 20)
    store = open_store(store_path)
    with pytest.raises(Corrupt, match=r"0x[0-9a-f]{8}"):
        contents(store.ledger("log"))
    store.close()


def test_a_torn_tail_is_set_aside_and_the_log_goes_on(store_path: Path) -> None:
    damaged(store_path, killed=True)
    path = store_path / "ledgers" / "1.ledger"
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + struct.pack(">Iq", 100, 2) + b"torn")
    store = open_store(store_path)
    assert contents(store.ledger("log")) == [b"entry %d" % i for i in range(5)]
    assert b"torn" in path.with_suffix(".torn").read_bytes()
    fill(store, "log", [b"after"])
    assert contents(store.ledger("log"))[-1] == b"after"
    store.close()


@pytest.mark.parametrize("killed", [False, True])
def test_sidecar_of_another_version_is_named_or_replaced_never_misread(store_path: Path, killed: bool) -> None:
    damaged(store_path, killed=killed)
    path = store_path / "ledgers" / "1.index"
    data = bytearray(path.read_bytes())
    magic, version, *rest = index._HEADER.unpack_from(data)
    header = index._HEADER.pack(magic, version + 1, *rest)
    data[: len(header) + 4] = index._with_crc(header)
    path.write_bytes(data)
    store = open_store(store_path)
    with pytest.raises(Unsupported, match=rf"{re.escape(str(path))}.* {version + 1}.* {version}"):
        contents(store.ledger("log"))
    assert path.read_bytes() == data
    store.close()


def test_metadata_of_a_newer_format_is_refused_naming_both_versions(store_path: Path) -> None:
    damaged(store_path)
    with sqlite3.connect(store_path / "metadata.sqlite") as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(Unsupported, match=r"metadata.sqlite has format 99, this code reads \d+.*Upgrade"):
        open_store(store_path)


def test_metadata_that_is_none_is_corrupt_naming_the_file(store_path: Path) -> None:
    damaged(store_path)
    (store_path / "metadata.sqlite").write_bytes(b"not a database at all" * 100)
    for leftover in ("-wal", "-shm"):
        (store_path / f"metadata.sqlite{leftover}").unlink(missing_ok=True)
    with pytest.raises(Corrupt, match=re.escape(str(store_path / "metadata.sqlite"))):
        open_store(store_path)


def test_a_failed_opening_leaves_neither_lock_nor_files_open(store_path: Path) -> None:
    damaged(store_path)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    (store_path / "ledgers" / "77.ledger").write_bytes(b"of an id that was never given")
    for _ in range(5):
        with pytest.raises(Corrupt, match=r"77\.ledger has a segment id that the metadata never allocated"):
            open_store(store_path)
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened
    (store_path / "ledgers" / "77.ledger").unlink()
    open_store(store_path).close()


def test_nothing_is_served_after_the_close(store_path: Path) -> None:
    store = open_store(store_path)
    fill(store, "log", [b"a"])
    store.settle()
    with pytest.raises(Unavailable, match=r"is shutting down|is closed"):
        store.create_ledger(CreateLedger("new"))
    store.close()
    for call in (lambda: store.ledger("log"), store.names, lambda: store.delete_ledger("log")):
        with pytest.raises(Unavailable):
            call()
    store.close()
