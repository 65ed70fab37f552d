"""Goal: fresh stores share nothing, and nothing of them is left, however their users end. Method: real brokers, which
tests kill, and programs that end in each way.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import NotFound, Unavailable
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.offload.fresh_stores import FreshStores
from tests.rigs.processes import command_words, is_running, parent_of, process_ids

WAIT_SECONDS = 60.0
USER = """
import os, signal, sys
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.offload.fresh_stores import FreshStores

stores = FreshStores()
with stores.fresh() as store:
    connect(store).ledger("orders").append([{"id": 1}])
    print(stores.directory, flush=True)
    if sys.argv[1] == "fork" and os.fork() == 0:
        signal.pause()  # this copy has the pipe to the fork server, too
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left(directory: Path) -> list[int]:
    """Processes that serve stores in a directory: their arguments name it."""
    named = os.fsencode(directory)
    return [pid for pid in process_ids() if is_running(pid) and any(named in word for word in command_words(pid))]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def require_gone(directory: Path) -> None:
    wait_for(lambda: not directory.exists(), f"{directory} is left")
    wait_for(lambda: not left(directory), f"processes {left(directory)} serve {directory}")


def broker_of(store: Path) -> int:
    record = BrokerRecord.read(store)
    assert record is not None
    return record.pid


@pytest.fixture
def stores() -> Iterator[FreshStores]:
    with FreshStores() as stores:
        yield stores


def test_stores_at_the_same_time_and_one_after_another_share_nothing(stores: FreshStores) -> None:
    with stores.fresh() as first, stores.fresh() as second:
        one, other = connect(first), connect(second)
        one.ledger("orders").append([{"id": 1}])
        one.namespace_policy("public/default", retentionTimeInMinutes=7)
        assert (len(one.names()), other.names()) == (1, [])
        other.ledger("prices").append([{"id": 1}])
        assert other.namespace_policy("public/default").stated == {}
    with stores.fresh() as third:
        again = connect(third)
        assert again.names() == []
        again.ledger("orders").append([{"name": "tea"}])
        assert again.ledger("orders").read().to_pylist() == [{"name": "tea"}]
    wait_for(lambda: not first.exists() and not second.exists(), "a store is left after its block")
    with pytest.raises(NotFound, match="there is no ledger store"):
        connect(first, create=False)


def test_a_store_that_its_test_deletes_leaves_the_others(stores: FreshStores) -> None:
    with stores.fresh() as kept:
        with stores.fresh() as deleted:
            connect(deleted).ledger("orders").append([{"id": 1}])
            broker = broker_of(deleted)
            shutil.rmtree(deleted)
            wait_for(lambda: not is_running(broker), f"broker {broker} serves a deleted store")
        with stores.fresh() as third:
            connect(third).ledger("orders").append([{"id": 1}])
        wait_for(lambda: not third.exists(), "the fork server deletes no store any more")
        with stores.fresh() as fourth:
            assert connect(kept).names() == connect(fourth).names() == []


def test_close_does_not_wait_for_a_fork_of_the_program() -> None:
    """The fork has a copy of the socket. A server that does not end would be killed, with status -9."""
    stores = FreshStores()
    with stores.fresh() as store:
        connect(store).ledger("orders").append([{"id": 1}])
    fork = os.fork()
    if fork == 0:
        signal.pause()
    try:
        stores.close()
        assert stores._server.returncode == 0
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)


def test_close_leaves_no_process_and_no_file() -> None:
    with FreshStores() as stores, stores.fresh() as store:
        connect(store).ledger("orders").append([{"id": 1}])
        assert left(stores.directory)
    assert not stores.directory.exists()
    assert left(stores.directory) == []


@pytest.mark.fault
def test_a_killed_broker_starts_again_and_ends_with_its_store(stores: FreshStores) -> None:
    with stores.fresh() as store:
        opened = connect(store)
        opened.ledger("orders").append([{"id": 1}])
        killed = broker_of(store)
        os.kill(killed, signal.SIGKILL)
        assert opened.ledger("orders").read().to_pylist() == [{"id": 1}]
        successor = broker_of(store)
        assert successor != killed
    wait_for(lambda: not is_running(successor), f"broker {successor} serves a deleted store")
    with stores.fresh() as other:
        assert connect(other).names() == []


@pytest.mark.fault
def test_a_killed_fork_server_takes_its_brokers_along_and_is_named(stores: FreshStores) -> None:
    with stores.fresh() as store:
        connect(store)
        broker = broker_of(store)
        server = parent_of(broker)
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: not is_running(broker), f"broker {broker} has outlived its fork server {server}")
        with pytest.raises(Unavailable, match=f"forks the brokers of {stores.directory} gave no store"):
            stores.fresh().__enter__()


@pytest.mark.fault
@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_program_leaves_no_broker_and_no_store(how: str, tmp_path: Path) -> None:
    """A fork of the program has a copy of the pipe, so its end alone would tell the fork server nothing."""
    program = subprocess.Popen([sys.executable, "-c", USER, how], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    directory = Path(program.stdout.readline().strip())
    copies = [pid for pid in process_ids() if how == "fork" and parent_of(pid) == program.pid]
    assert program.wait(WAIT_SECONDS) == -signal.SIGKILL
    try:
        require_gone(directory)
    finally:
        program.stdout.close()
        for pid in copies:
            os.kill(pid, signal.SIGKILL)
