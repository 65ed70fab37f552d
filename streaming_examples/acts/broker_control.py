"""Control of the demo's broker: kill it, and stop it for good.

The supervisor restarts a killed broker, and exits only when the broker exits by itself. So `stop_broker` asks the
broker to exit. It kills the whole session only if the broker does not exit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from pyspark_ledger import LedgerError
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.protocol.actions import StopBroker
from streaming_examples.acts.app_process import session_members

_LEAVE_SECONDS = 10.0


def kill_broker(client: Client) -> tuple[int, int, float]:
    """Kill the broker. Return the process ids of this broker and of the next one, and the seconds between them."""
    before = client.hello().pid
    began = time.monotonic()
    os.kill(before, signal.SIGKILL)
    after = client.hello().pid
    return before, after, time.monotonic() - began


def stop_broker(client: Client) -> None:
    """Ask the broker to exit. Kill it and its supervisor if they still run after ten seconds."""
    session = os.getsid(client.hello().pid)
    with contextlib.suppress(LedgerError):  # it may exit before its answer is sent
        client.ask(StopBroker(), deadline_ms=0)
    until = time.monotonic() + _LEAVE_SECONDS
    while members := session_members(session):
        if time.monotonic() > until:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def stop_broker_of(store: Path) -> None:
    """Stop the broker of an earlier run, if it still runs."""
    with contextlib.suppress(LedgerError):  # no broker runs
        stop_broker(connect_store(store, start=False, deadline_ms=2_000))
