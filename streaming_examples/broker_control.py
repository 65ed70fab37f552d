"""Control of the demo's broker: kill it, and stop it for good.

The supervisor restarts a killed broker, and exits only when the broker exits by itself. So `stop` calls the broker;
killing the whole session is for a broker that does not answer.
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
from pyspark_ledger.ledger.protocol.actions import Empty
from streaming_examples.app_process import session_members

_LEAVE_SECONDS = 10.0


def kill_broker(client: Client) -> tuple[int, int, float]:
    """SIGKILL; the pid that was, the pid that answers now, and the seconds in between."""
    before = client.hello().pid
    began = time.monotonic()
    os.kill(before, signal.SIGKILL)
    after = client.hello().pid
    return before, after, time.monotonic() - began


def stop_broker(client: Client) -> None:
    """Ask the broker to leave; kill it and its supervisor when they are still there after ten seconds."""
    session = os.getsid(client.hello().pid)
    with contextlib.suppress(LedgerError):  # it may leave before it has answered
        client.call("shutdown", Empty(), deadline_ms=0)
    until = time.monotonic() + _LEAVE_SECONDS
    while members := session_members(session):
        if time.monotonic() > until:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def stop_broker_of(store: Path) -> None:
    """Stop a broker that an earlier run may have left."""
    with contextlib.suppress(LedgerError):  # none is there
        stop_broker(connect_store(store, start=False, deadline_ms=2_000))
