"""Goal: a broker reports a log that it gave up to every appender, to `health` and to its log file; the next broker
recovers.

Method: a real broker process, one of whose steps raises from a given moment on.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.doctor.store import check_store
from pyspark_ledger.ledger.broker.error_log import ErrorLog
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.protocol.actions import AskHealth, CreateLedger

Rig = Any
# `settle` raises once the log holds two entries.
BROKEN = """
import sys
from pyspark_ledger.ledger.broker import main
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.offload import broker

settle = LogWriter.settle

def raises(self, written, failed):
    if self.name.endswith("orders") and written[0].firsts[0].entry_id > 1:
        raise RuntimeError("bit flip")
    return settle(self, written, failed)

LogWriter.settle = raises
main.run(broker.main)
"""


@pytest.mark.thorough
def test_a_broker_tells_of_a_log_that_it_gave_up_and_the_next_one_goes_on(
    rig: Rig, make_entry: Callable[..., bytes], read_log: Callable[..., list[tuple[str, bytes]]]
) -> None:
    spawn = rig.spawn

    def broken(*arguments: str) -> subprocess.Popen[bytes]:
        rig.store.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", BROKEN, "--store", str(rig.store), *arguments]
        with (rig.store.parent / "broker-said").open("ab") as said:
            child = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=said, stderr=said)
        rig.pids.add(child.pid)
        return child

    rig.spawn = broken
    broker = rig.start("--create")
    client = rig.client(deadline_ms=0)
    for name in ("orders", "bills"):
        client.ask(CreateLedger(name))
    assert client.ask(AskHealth()).error_count == 0
    producer = client.producer("orders")
    for number in range(2):
        producer.append(make_entry(b"%d" % number)).result(30)
    with pytest.raises(Unavailable, match=r"orders' accepts no append .*bit flip.* unknown"):
        producer.append(make_entry(b"lost")).result(30)
    with pytest.raises(Unavailable, match=r"orders' accepts no append until its broker is restarted: .*bit flip"):
        client.producer("orders").append(make_entry(b"late")).result(30)
    client.producer("bills").append(make_entry(b"bill")).result(30)

    health = client.ask(AskHealth())
    assert [name.rpartition("/")[2] for name in health.given_up] == ["orders"]
    assert "bit flip" in health.errors[-1]
    findings = {finding.state: finding for finding in check_store(str(rig.store), {})}
    assert "accepts no append until its broker is restarted" in findings["problem"].found
    assert "bit flip" in findings["warning"].found
    assert "is closed for appends because of an unexpected error" in rig.log()

    broker.send_signal(signal.SIGTERM)
    assert broker.wait(30) == 0
    rig.spawn = spawn
    rig.start()
    client = rig.client()
    assert [payload for _, payload in read_log(client, "orders")] == [b"0", b"1"]
    client.producer("orders").append(make_entry(b"after")).result(30)
    assert client.ask(AskHealth()).given_up == {}


def test_an_error_log_keeps_the_newest_errors_in_a_line_each() -> None:
    errors = ErrorLog()
    logger = logging.getLogger("test_health.orders")
    logger.addHandler(errors)
    logger.warning("this is none")
    for number in range(30):
        logger.error("error %d", number)
    logger.error("the last", exc_info=ValueError("bit flip"))
    logger.removeHandler(errors)
    newest, count = errors.newest()
    assert (len(newest), count) == (20, 31)
    assert newest[-1].endswith("test_health.orders: the last: ValueError('bit flip')")
    assert newest[0].endswith("test_health.orders: error 11")
