"""Goal: a loop over a cursor that nobody closes gives a ResourceWarning, and no other loop does.

Method: loops that are freed in the middle, at their end, after `close`, in a fork and in a program.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Refused
from tests.rigs.resource_warnings import resource_warnings


@pytest.fixture(params=["one", "several"])
def billing(store: LedgerStore, request: pytest.FixtureRequest) -> Cursor | JoinedCursor:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    return orders.cursor("billing") if request.param == "one" else store.cursor("billing", ledgers=["orders"])


def test_a_loop_that_is_not_closed_warns_when_it_is_freed(store: LedgerStore, billing: Cursor | JoinedCursor) -> None:
    def broken() -> None:
        for _ in billing.batches():
            break

    def refused() -> None:
        with pytest.raises(Refused):
            billing.batches(max_rows=0)

    def closed() -> None:
        with billing.batches() as batches:
            next(batches)

    expected = ["unclosed batches of cursor 'billing' of orders"]
    assert resource_warnings(billing.batches) == expected
    assert resource_warnings(broken) == expected
    assert resource_warnings(closed) == []
    assert resource_warnings(lambda: list(billing.batches(wait=0))) == [], "it is at its end"
    assert resource_warnings(lambda: next(store.ledger("orders").follow(wait=0))) == [], "it has no lease"
    assert resource_warnings(refused) == []


@pytest.mark.parametrize(("ends", "warns"), [("pass", True), ("batches.close()", False), ("fork()", False)])
def test_only_the_process_that_does_not_close_its_loop_gives_a_warning(
    store: LedgerStore, tmp_path: Path, ends: str, warns: bool
) -> None:
    store.ledger("orders").append([{"id": 1}])
    program = """
import os, sys
from pyspark_ledger import connect

def fork():
    global batches
    child = os.fork()
    if not child:
        del batches
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    batches.close()

with connect(sys.argv[1]) as store:
    batches = store.ledger("orders").cursor("billing").batches()
    next(batches)
    ENDS
    del batches
""".replace("ENDS", ends)
    run = [sys.executable, "-X", "dev", "-c", program, store.location]
    found = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
    assert ("ResourceWarning: unclosed batches of cursor 'billing' of orders" in found.stderr) == warns
