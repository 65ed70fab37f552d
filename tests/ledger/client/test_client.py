"""Goal: a client keeps its deadline, survives its broker, and is configuration when pickled or forked. Method: real
processes, stopped, killed and forked.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.client.client import Client, client_for
from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.protocol.actions import CreateLedger, DescribeLedger, ListLedgers

Rig = Any

FORGOTTEN = """
import subprocess, sys
from pyspark_ledger.ledger.client.client import client_for
from pyspark_ledger.ledger.protocol.actions import ListLedgers
client_for(sys.argv[1], sys.argv[2]).ask(ListLedgers())
# As Spark starts its JVM: a fork, Python in the child, then exec. Only the cache holds the client.
subprocess.run(["true"], preexec_fn=lambda: None, timeout=20, check=True)
print("started")
"""

FORKING = """
import os, sys
from pyspark_ledger.ledger.client.client import Client, client_for
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.actions import ListLedgers
client = client_for(sys.argv[1], sys.argv[2])
client.ask(ListLedgers()).names
child = os.fork()
if child == 0:
    try:
        client.ask(ListLedgers()).names
    except Refused as refused:
        print(refused.message, flush=True)
    try:
        client_for(sys.argv[1], sys.argv[2])
    except Refused as refused:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.ask(ListLedgers()).names, flush=True)
"""


def test_every_error_is_raised_as_the_class_that_the_broker_raised(rig: Rig) -> None:
    rig.start("--create")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    with pytest.raises(AlreadyExists):
        client.ask(CreateLedger("orders"))
    with pytest.raises(NotFound, match="Did you mean 'orders'") as missing:
        client.ask(DescribeLedger("ordres"))
    assert (missing.value.code, missing.value.hint) == ("LEDGER_NOT_FOUND", "Did you mean 'orders'?")
    with pytest.raises(Refused):
        client.ask(CreateLedger("a/../b"))


def test_nobody_there_is_unavailable_at_the_deadline_naming_the_address(tmp_path: Path) -> None:
    address = f"grpc+unix://{tmp_path}/none.sock"
    started = time.monotonic()
    with pytest.raises(Unavailable, match=re.escape(address)):
        Client(address, deadline_ms=300).ask(ListLedgers())
    assert 0.3 <= time.monotonic() - started < 10


@pytest.mark.thorough
def test_a_stopped_broker_does_not_hold_a_greeting_past_its_deadline(rig: Rig) -> None:
    """The suspended broker's socket accepts every connection, so only the client can end the call."""
    broker = rig.start("--create")
    client = rig.client()
    client.ask(ListLedgers())
    rig.halt(broker.pid)
    started = time.monotonic()
    with pytest.raises(Unavailable):
        client.hello(deadline_ms=1000)
    assert time.monotonic() - started < 10
    broker.send_signal(signal.SIGCONT)
    assert client.hello().pid == broker.pid


@pytest.mark.thorough
def test_a_call_outlives_its_broker(rig: Rig) -> None:
    broker = rig.start("--create")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    broker.kill()
    broker.wait()
    rig.start()
    assert client.ask(ListLedgers()).names == ["public/default/persistent/orders"]
    assert client.hello().epoch == 2


def test_a_pickle_holds_the_address_and_the_store_and_no_connection(rig: Rig) -> None:
    rig.start("--create")
    client = rig.client()
    client.same_host_token()
    token = Path(client.hello().token_path).read_bytes()
    pickled = pickle.dumps(client)
    assert token not in pickled
    assert len(pickled) < 500
    copy = pickle.loads(pickled)  # noqa: S301 — our own, made above
    assert (copy.address, copy.store_id, copy.ask(ListLedgers()).names) == (client.address, client.store_id, [])


def test_a_process_has_one_client_of_a_broker(rig: Rig) -> None:
    rig.start("--create")
    record = rig.record()
    assert client_for(record.address, record.store_id) is client_for(record.address, record.store_id)


@pytest.mark.thorough
def test_client_in_a_forked_child_is_refused_and_its_parent_goes_on(rig: Rig) -> None:
    rig.start("--create")
    record = rig.record()
    done = subprocess.run(
        [sys.executable, "-c", FORKING, record.address, record.store_id],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={**os.environ},
    )
    said = done.stdout.splitlines()
    assert "was forked from" in said[0]
    assert said[1] == "7 []"


@pytest.mark.thorough
def test_a_process_that_was_connected_starts_others_without_a_hang(rig: Rig) -> None:
    rig.start("--create")
    record = rig.record()
    command = [sys.executable, "-c", FORGOTTEN, record.address, record.store_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "started\n"
