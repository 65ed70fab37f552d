"""Goal: each call of the protocol states which tokens may make it. Method: a row for every call, every kind of token.

The rows are about the ledger `one`. A new action without a row fails.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest

from pyspark_ledger.ledger.errors import Unauthenticated
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol import commits, reads
from pyspark_ledger.ledger.protocol.actions import (
    ACTIONS,
    AcknowledgeCommand,
    AppendCommand,
    CreateLedger,
    DescribeLedger,
    Empty,
    GetSchema,
    Hello,
    RegisterSchema,
    StageCommand,
)
from pyspark_ledger.ledger.transport.tokens import May, TaskClaims

ONE, TWO = (f"public/default/persistent/{name}" for name in ("one", "two"))
Request = Callable[[str], msgspec.Struct]
READ, WRITE, BOTH = ("read",), ("write",), ("read", "write")


def read_of(ledger: str) -> reads.ReadRequest:
    return reads.ReadRequest(ledger, PositionRange(EARLIEST, LATEST))


def reads_of(ledger: str) -> reads.LocateRanges:
    return reads.LocateRanges([read_of(ONE), read_of(ledger)])


# The rights that allow a call, and its request about a ledger. Calls in `ADMINISTRATION` need the bearer token.
TASKS: dict[str, tuple[tuple[str, ...], Request]] = {
    "hello": (BOTH, lambda _: Hello()),
    "locate": (READ, read_of),
    "DoGet": (READ, read_of),
    "locate.many": (READ, reads_of),
    "locate.stored": (READ, reads_of),
    "survey": (READ, lambda ledger: reads.AskLogStatuses([ONE, ledger])),
    "stage.open": (WRITE, lambda _: commits.OpenStaging("q", 1, "")),
    "StageCommand": (WRITE, lambda _: StageCommand("q", 1)),
    "stage.upload": (WRITE, lambda ledger: commits.OpenUpload("q", 1, ledger, 0)),
    "run.newest": (WRITE, lambda ledger: commits.AskNewestBatch(ledger, "q")),
    "describe": (WRITE, DescribeLedger),
    "schema.get": (WRITE, GetSchema),
    "schema.register": (WRITE, lambda ledger: RegisterSchema(ledger, b"")),
    "create": (WRITE, lambda ledger: CreateLedger(ledger, exist_ok=True, lists=False)),
}
ABOUT_NO_LEDGER = {"hello", "stage.open", "StageCommand"}
ADMINISTRATION = {
    *"""
    delete producer.last partitions partitions.extend trim terminate seal properties policy offload offload.status list
    end schema.restore read.open split seek quotas split.many schema.many cursor.open cursor.describe cursor.mark_delete
    cursor.reset cursor.delete cursor.skip cursor.properties cursor.holes delivery.next delivery.due delivery.get
    delivery.bury lease.acquire lease.release run.commit runs.commit run.abort cache cache.reads cache.follow
    cache.follow.many cache.hint health metrics publish.report settings settings.change shutdown
    AppendCommand AcknowledgeCommand
    """.split()  # noqa: SIM905 — a list of these names has sixty lines
}
STREAMS = {"DoGet", *(command.__name__ for command in (AppendCommand, StageCommand, AcknowledgeCommand))}


def allowed(claims: TaskClaims, ledger: str) -> set[str]:
    calls = set()
    for call in (*TASKS, *ADMINISTRATION):
        request = TASKS[call][1](ledger) if call in TASKS else Empty()
        with suppress(Unauthenticated):
            claims.require_allows(call, request)
            calls.add(call)
    return calls


def test_every_call_of_the_protocol_has_a_row() -> None:
    assert set(TASKS).isdisjoint(ADMINISTRATION)
    assert set(TASKS) | ADMINISTRATION == {*ACTIONS, *STREAMS}
    for call, (_, request) in TASKS.items():
        assert call in STREAMS or type(request(ONE)) is ACTIONS[call][0]


@pytest.mark.parametrize("may", ["read", "write"])
def test_a_task_makes_the_calls_of_its_row_about_its_ledgers(may: May) -> None:
    rows = {call for call, (rights, _) in TASKS.items() if may in rights}
    assert allowed(TaskClaims(may, [], 0), TWO) == rows
    assert allowed(TaskClaims(may, [ONE], 0), ONE) == rows
    assert allowed(TaskClaims(may, [ONE], 0), TWO) == rows & ABOUT_NO_LEDGER, "the other ledger is refused"
    assert allowed(TaskClaims(may, [ONE], 0), "one") == rows & ABOUT_NO_LEDGER, "another spelling names no ledger"


def test_dead_letters_are_the_only_ledger_that_a_task_appends_to() -> None:
    reader = TaskClaims("read", [ONE], 0, TWO)
    reader.require_allows("AppendCommand", AppendCommand(TWO, "p"))
    for claims in (reader, TaskClaims("write", [], 0), TaskClaims("read", [], 0)):
        with pytest.raises(Unauthenticated):
            claims.require_allows("AppendCommand", AppendCommand(ONE, "p"))


@pytest.mark.parametrize(
    "changed",
    [{"partitions": 1000}, {"properties": {"x": "y"}}, {"durability": "os"}, {"deduplication": True}, {"lists": True}],
)
def test_a_task_creates_only_plain_ledgers(changed: dict[str, object]) -> None:
    plain = CreateLedger(ONE, exist_ok=True, lists=False)
    TaskClaims("write", [], 0).require_allows("create", plain)
    for claims, request in (
        (TaskClaims("write", [], 0), msgspec.structs.replace(plain, **changed)),
        (TaskClaims("write", [], 0, creates=False), plain),
    ):
        with pytest.raises(Unauthenticated, match="the call was create of"):
            claims.require_allows("create", request)


def test_a_token_is_for_one_store_and_for_a_time() -> None:
    TaskClaims("read", [], 1000, store_id="a").require_valid(1000, "a")
    TaskClaims("read", [], 1000).require_valid(1000, "a")  # of an earlier version
    with pytest.raises(Unauthenticated, match="the task token is for store b, this broker serves store a"):
        TaskClaims("read", [], 1000, store_id="b").require_valid(1000, "a")
    with pytest.raises(Unauthenticated, match="expired 1 s ago"):
        TaskClaims("read", [], 1000).require_valid(2001, "a")
