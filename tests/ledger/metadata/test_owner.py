"""Goal: a store in another place is served only after a person said why, and then with the right id.

Method: real directories that are copied, renamed and killed at every step of the change.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.metadata.owner import SKIPPED_IDS
from pyspark_ledger.ledger.ownership import OwnerChange, host_identity, host_parts, host_text
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.log import contents
from tests.rigs.store import fill, open_store

# Takes copies over in child processes. Child number n kills itself before step n of the change: a deletion of a file or
# a statement of SQL. Prints the former ids and the new id of each copy after a second answer, as the parent finds them.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store import store as stores

change, original, last, count = stores.require_owner, Path(sys.argv[1]), 0, 0

def step(*_):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)

def traced(metadata, *given):
    metadata._file._writer.set_trace_callback(step)
    sys.addaudithook(lambda event, _: event == "os.remove" and step())
    change(metadata, *given)
    os._exit(0)

def opened(copy, **how):
    return stores.Store.open(copy, settings=Settings(), clock=lambda: 1, **how)

while True:
    last += 1
    copy = original.with_name(f"copy{last}")
    shutil.copytree(original, copy)
    child = os.fork()
    if not child:
        stores.require_owner = traced
        opened(copy, take_over=OwnerChange.COPIED)
    if not os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        break
    try:
        store = opened(copy)
        asked = False
        store.close()
    except Refused:  # the question again, if the change was not made
        asked = True
    store = opened(copy, take_over=OwnerChange.COPIED)
    print(asked, *store.metadata.store_record().former, store.store_id, store.ledger("log").snapshot.end.entry_id)
    store.close()
    shutil.rmtree(copy)
"""


def made(path: Path) -> str:
    """Make a store with one row. Return its id."""
    store = open_store(path)
    fill(store, "log", [b"a"])
    store.close()
    (path / "broker.json").write_text(json.dumps({"address": "grpc+unix:///nowhere", "pid": 1}))
    (path / "broker.token").write_text("0" * 64)
    return store.store_id


def opened(path: Path, change: OwnerChange | None = None) -> Store:
    return Store.open(path, settings=Settings(), clock=system_clock_ms, take_over=change)


@pytest.mark.parametrize("change", list(OwnerChange))
def test_a_store_in_another_directory_needs_an_answer(tmp_path: Path, change: OwnerChange) -> None:
    store_id = made(tmp_path / "one")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "one", copy)
    before = (copy / "metadata.sqlite").read_bytes()
    with pytest.raises(Refused, match=r"belongs to host and directory .* it was moved, restored or copied") as refused:
        opened(copy)
    for word in OwnerChange:
        assert f"ledger serve --store {copy} --take-over {word}`" in str(refused.value)
    assert (copy / "metadata.sqlite").read_bytes() == before
    with closing(opened(copy, change)) as store:
        record = store.metadata.store_record()
        assert record.host == host_identity(copy)
        if change is OwnerChange.COPIED:
            assert (record.former, store.store_id != store_id) == ((store_id,), True)
        else:
            assert (record.former, store.store_id) == ((), store_id)
        assert contents(store.ledger("log")) == [b"a"]
        skips = change is not OwnerChange.BROKER
        assert (store.metadata.next_ledger_id() > SKIPPED_IDS) == skips, "another history may have used the next ids"
        fill(store, "log", [b"b"])
    assert not (copy / "broker.json").exists(), "it named the broker of the original"
    assert not (copy / "broker.token").exists()
    with closing(opened(copy)) as again:
        assert again.store_id == record.store_id
        assert contents(again.ledger("log")) == [b"a", b"b"]


@pytest.mark.parametrize("change", list(OwnerChange))
def test_an_answer_does_not_hide_that_metadata_are_older_than_a_file(tmp_path: Path, change: OwnerChange) -> None:
    made(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    (tmp_path / "copy/ledgers/77.ledger").write_bytes(b"newer")
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"77\.ledger has a segment id that the metadata never allocated"):
            opened(tmp_path / "copy", change)
    (tmp_path / "copy/ledgers/77.ledger").unlink()
    opened(tmp_path / "copy", change).close()


def test_an_answer_that_is_given_again_changes_nothing(tmp_path: Path) -> None:
    store_id = made(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    records = []
    for _ in range(2):
        with closing(opened(tmp_path / "copy", OwnerChange.COPIED)) as store:
            records.append(store.metadata.store_record())
    assert records[0] == records[1]
    with closing(opened(tmp_path / "copy", OwnerChange.MOVED)) as store:
        assert store.metadata.store_record() == records[0]
    shutil.copytree(tmp_path / "copy", tmp_path / "second")
    with closing(opened(tmp_path / "second", OwnerChange.COPIED)) as store:
        assert store.metadata.store_record().former == (store_id, records[0].store_id)


def test_a_cloned_machine_has_the_same_numbers_and_gets_a_new_id(tmp_path: Path) -> None:
    store_id = made(tmp_path / "one")
    with closing(opened(tmp_path / "one", OwnerChange.COPIED)) as store:
        assert store.metadata.store_record().former == (store_id,)


def test_a_renamed_directory_needs_no_answer(tmp_path: Path) -> None:
    store_id = made(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "renamed")
    with closing(opened(tmp_path / "renamed")) as store:
        assert store.store_id == store_id


def test_a_copied_store_in_use_keeps_its_lock(tmp_path: Path) -> None:
    made(tmp_path / "one")
    with closing(opened(tmp_path / "one")):
        for change in (OwnerChange.MOVED, OwnerChange.COPIED):
            with pytest.raises(Refused, match="is in use by the broker"):
                opened(tmp_path / "one", change)


def test_an_earlier_version_refuses_a_store_with_former_ids(tmp_path: Path) -> None:
    """Such a version compares the whole text of the record with its own host."""
    made(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    opened(tmp_path / "copy", OwnerChange.COPIED).close()
    with closing(sqlite3.connect(tmp_path / "copy" / "metadata.sqlite")) as file:
        (text,) = file.execute("SELECT host FROM store_row").fetchone()
    assert text != host_identity(tmp_path / "copy")
    assert host_parts(text)[0] == host_identity(tmp_path / "copy")


def test_a_host_text_is_read_as_it_was_written() -> None:
    for former in ((), ("a",), ("a", "b")):
        assert host_parts(host_text("machine:1:2", former)) == ("machine:1:2", former)


@pytest.mark.fault
def test_a_change_is_whole_wherever_it_was_killed(tmp_path: Path) -> None:
    store_id = made(tmp_path / "one")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "one")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    kills = [line.split() for line in done.stdout.splitlines()]
    assert len(kills) >= 8, "two files, BEGIN, SAVEPOINT, the statements of the change, COMMIT"
    assert {(former, end) for _, former, _, end in kills} == {(store_id, "1")}
    assert len({new for _, _, new, _ in kills}) == len(kills), "each copy has an id of its own"
    assert kills[0][0] == "True"
