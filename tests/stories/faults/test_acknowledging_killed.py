"""Goal: a kill of the broker loses no answered acknowledgement, and adds none.

Method: rows are acknowledged call by call while the broker is killed repeatedly. At the end the unacknowledged rows are
compared with the requested and with the answered acknowledgements.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.protocol.actions import StopBroker

ROWS, ENTRIES, KILLS = 500, 4, 6


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(2))
def test_what_was_answered_is_there_and_nothing_else(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = connect(tmp_path / "store")
    orders = store.ledger("orders")
    for entry in range(ENTRIES):
        orders.append([{"n": entry * ROWS + row} for row in range(ROWS)])
    cursor = orders.cursor("c")
    (first,) = {segment.ledger_id for segment in orders.describe().segments}
    asked: set[int] = set()
    answered: set[int] = set()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            rows = dice.sample(range(ENTRIES * ROWS), 20)
            asked.update(rows)
            try:
                cursor.acknowledge_rows([(first, *divmod(row, ROWS)) for row in rows])
            except LedgerError:
                continue
            answered.update(rows)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(KILLS):
            reached = len(answered) + dice.randrange(20, 120)
            while len(answered) < min(reached, ENTRIES * ROWS * 0.9):
                stop.wait(0.005)
            os.kill(store.client.hello().pid, signal.SIGKILL)
    finally:
        stop.set()
        worker.join()
    left = set(cursor.read()[0].column("n").to_pylist())
    everything = set(range(ENTRIES * ROWS))
    assert everything - asked <= left <= everything - answered
    assert cursor.state().backlog_rows == len(left)
    store.client.ask(StopBroker())
