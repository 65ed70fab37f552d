"""Goal: a task's token is what its maker said, nothing else passes for one. Method: make, read, change each byte."""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.errors import Unauthenticated
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AppendCommand, DescribeLedger, Hello, StageCommand
from pyspark_ledger.ledger.protocol.commits import AbortRun, OpenStaging
from pyspark_ledger.ledger.protocol.cursors import MarkDelete
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, LocateRanges, ReadRequest
from pyspark_ledger.ledger.protocol.request import Call
from pyspark_ledger.ledger.transport.tokens import TaskClaims, read_task_token, task_token

EVERYTHING = PositionRange(EARLIEST, LATEST)

ORDERS, BILLS = (ReadRequest(f"public/default/persistent/{name}", EVERYTHING) for name in ("orders", "bills"))
CLAIMS = TaskClaims("read", [ORDERS.name], 1_763_000_000_000)
SECRETS = [b"another token of the broker", b"the driver's own token"]
TOKEN = task_token(SECRETS[1].decode(), CLAIMS)


def test_it_comes_back_and_says_nothing_of_its_maker() -> None:
    assert read_task_token(SECRETS, TOKEN.encode()) == CLAIMS
    assert SECRETS[1].decode() not in TOKEN
    assert read_task_token(SECRETS[:1], TOKEN.encode()) is None, "the broker has forgotten that token"


def test_a_changed_one_is_none() -> None:
    body = TOKEN.encode()
    for at in range(len("ledger-task."), len(body)):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert read_task_token(SECRETS, changed) is None
    for text in (b"", b"ledger-task.", b"ledger-task.e30=.", body[:-1], body + b"0"):
        assert read_task_token(SECRETS, text) is None


@pytest.mark.parametrize(
    ("claims", "asked"),
    [
        (CLAIMS, BILLS),
        (CLAIMS, LocateRanges([ORDERS, BILLS])),
        (CLAIMS, AskLogStatuses([ORDERS.name, BILLS.name])),
        (CLAIMS, MarkDelete(ORDERS.name, "c", EARLIEST)),
        (CLAIMS, AppendCommand(ORDERS.name, "p")),
        (TaskClaims("read", [ORDERS.name], 0, "a/b/persistent/dead"), AppendCommand(ORDERS.name, "p")),
        (TaskClaims("write", [], 0), AbortRun("q", 0, [])),
        (TaskClaims("write", [], 0), ORDERS),
    ],
)
def test_what_it_does_not_allow_is_refused_naming_both(claims: TaskClaims, asked: Call) -> None:
    with pytest.raises(Unauthenticated, match=rf"allows to {claims.may} .*the call was {asked.call.name}"):
        claims.require_allows(asked)


def test_what_it_allows_passes() -> None:
    for request in (Hello(), ORDERS, LocateRanges([ORDERS, ORDERS])):
        CLAIMS.require_allows(request)
    for call in (Hello(), OpenStaging("q", 0, ""), StageCommand("q", 0), DescribeLedger("any/other/persistent/ledger")):
        TaskClaims("write", [], 0).require_allows(call)
    dead = AppendCommand("a/b/persistent/dead", "p")
    TaskClaims("read", [ORDERS.name], 0, dead.ledger).require_allows(dead)
