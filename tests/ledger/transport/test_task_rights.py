"""Goal: each call of the protocol states which tokens may make it. Method: a row for every call, every kind of token.

The rows are about the ledger `one`. A new action without a row fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import get_args

import msgspec
import pytest
from msgspec import inspect

from pyspark_ledger.ledger.errors import Unauthenticated
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol import commits, ends, reads
from pyspark_ledger.ledger.protocol import request as protocol
from pyspark_ledger.ledger.protocol.actions import (
    REQUESTS,
    AppendCommand,
    ChangeSetting,
    CreateLedger,
    DescribeLedger,
    GetSchema,
    Hello,
    PutCommand,
    RegisterSchema,
    StageCommand,
)
from pyspark_ledger.ledger.protocol.request import Call, Empty, May
from pyspark_ledger.ledger.transport.tokens import TaskClaims

ONE, TWO = (f"public/default/persistent/{name}" for name in ("one", "two"))
Request = Callable[[str], Call]
READ, WRITE, BOTH = ("read",), ("write",), ("read", "write")


def read_of(ledger: str) -> reads.ReadRequest:
    return reads.ReadRequest(ledger, PositionRange(EARLIEST, LATEST))


def known_end(ledger: str) -> ends.KnownEnd:
    return ends.KnownEnd(ledger, "", LATEST)


# The rights that allow a call, and its request about a ledger. Calls in `ADMINISTRATION` need the bearer token.
TASKS: dict[type[Call], tuple[tuple[str, ...], Request]] = {
    Hello: (BOTH, lambda _: Hello()),
    reads.ReadRequest: (READ, read_of),
    reads.LocateRanges: (READ, lambda ledger: reads.LocateRanges([read_of(ONE), read_of(ledger)])),
    reads.LocateStored: (READ, lambda ledger: reads.LocateStored([read_of(ONE), read_of(ledger)])),
    ends.WaitEnds: (READ, lambda ledger: ends.WaitEnds("w", 1, 0, [known_end(ONE), known_end(ledger)])),
    reads.AskLogStatuses: (READ, lambda ledger: reads.AskLogStatuses([ONE, ledger])),
    commits.OpenStaging: (WRITE, lambda _: commits.OpenStaging("q", 1, "")),
    StageCommand: (WRITE, lambda _: StageCommand("q", 1)),
    commits.OpenUpload: (WRITE, lambda ledger: commits.OpenUpload("q", 1, ledger, 0)),
    commits.AskNewestBatch: (WRITE, lambda ledger: commits.AskNewestBatch(ledger, "q")),
    DescribeLedger: (WRITE, DescribeLedger),
    GetSchema: (WRITE, GetSchema),
    RegisterSchema: (WRITE, lambda ledger: RegisterSchema(ledger, b"")),
    CreateLedger: (WRITE, lambda ledger: CreateLedger(ledger, exist_ok=True, lists=False)),
}
ABOUT_NO_LEDGER = {Hello, commits.OpenStaging, StageCommand}
ADMINISTRATION = {
    *"""
    delete producer.last partitions partitions.extend trim terminate seal properties policy offload offload.status
    list end schema.restore read.open split seek quotas split.many schema.many cursor.open cursor.describe
    cursor.mark_delete cursor.reset cursor.delete cursor.skip cursor.properties cursor.holes delivery.next
    delivery.acknowledge delivery.due delivery.get delivery.get.many delivery.bury lease.acquire lease.release
    lease.acquire.many lease.release.many cursor.open.many run.commit runs.commit
    run.abort cache cache.reads cache.follow cache.follow.many cache.hint health metrics publish.report settings
    settings.change shutdown append acknowledge
    """.split()  # noqa: SIM905 — a list of these names has sixty lines
}
CALLS: list[type[Call]] = [*REQUESTS.values(), *get_args(PutCommand)]
# Fields with texts that name no ledger. The broker looks up `readings` by the ledgers of `names` only.
OTHER_TEXTS = set(
    """
    attempt cursor forget holder incarnation offsets others part parts place producer properties query reader readings
    remove store_id subscription sums token value values watch
    """.split()  # noqa: SIM905 — as above
)
NO_LEDGERS = {ChangeSetting: {"name"}}
"""The name of a setting."""


def texts(kind: inspect.Type, path: str = "") -> Iterator[str]:
    """Yield the path of each field with text, at any depth."""
    match kind:
        case inspect.StrType():
            yield path
        case inspect.StructType():
            for field in kind.fields:
                yield from texts(field.type, f"{path}.{field.encode_name}".lstrip("."))
        case inspect.ListType():
            yield from texts(kind.item_type, path)
        case inspect.DictType():
            yield from chain(texts(kind.key_type, path), texts(kind.value_type, path))
        case inspect.UnionType():
            yield from chain.from_iterable(texts(part, path) for part in kind.types)
        case inspect.AnyType() | inspect.RawType() | inspect.CustomType():
            pytest.fail(f"{path} may have any value, also the name of a ledger")


def ledger_fields(call: type[Call]) -> set[str]:
    """Return the paths of the fields that may name a ledger."""
    return {path for path in texts(inspect.type_info(call)) if path.rpartition(".")[2] not in OTHER_TEXTS}


def allowed(claims: TaskClaims, ledger: str) -> set[type[Call]]:
    calls = set()
    for call, (_, request) in TASKS.items():
        with suppress(Unauthenticated):
            claims.require_allows(request(ledger))
            calls.add(call)
    return calls


def test_every_call_of_the_protocol_has_a_row() -> None:
    rows = {call.call.name for call in TASKS}
    assert rows.isdisjoint(ADMINISTRATION)
    assert rows | ADMINISTRATION == {call.call.name for call in CALLS}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.call.name)
def test_a_call_states_the_rights_of_its_row_and_every_field_with_a_ledger(call: type[Call]) -> None:
    rights, request = TASKS.get(call, ((), None))
    assert call.call.right == set(rights)
    assert set(call.call.ledgers) == ledger_fields(call) - NO_LEDGERS.get(call, set())
    if request is not None:
        assert TWO in request(TWO).named_ledgers() or call in ABOUT_NO_LEDGER


def test_a_call_that_does_not_state_its_ledgers_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="Forgotten states no `ledgers`"):

        class Forgotten(protocol.Request[Empty], frozen=True, action="forgotten"):
            ledger: str

    with pytest.raises(TypeError, match="Mistyped has no field 'leger'"):

        class Mistyped(protocol.Request[Empty], frozen=True, action="mistyped", ledgers=("leger",)):
            ledger: str

    with pytest.raises(TypeError, match="Again and DeleteLedger have the same action 'delete'"):

        class Again(protocol.LedgerRequest[Empty], frozen=True, action="delete"): ...

    with pytest.raises(TypeError, match="Silent has the action 'silent' and no reply"):

        class Silent(protocol.Call, frozen=True, action="silent", ledgers=()): ...

    assert not {"forgotten", "mistyped", "silent"} & set(REQUESTS)


class CopiedPart(msgspec.Struct):
    to: dict[str, int] | None


class Copied(Call, frozen=True, ledgers=("name",)):
    name: str
    cursor: str
    target: str
    parts: list[CopiedPart]


def test_a_new_field_with_text_is_a_ledger_until_it_is_known_as_another() -> None:
    assert ledger_fields(Copied) == {"name", "target", "parts.to"}


def test_ledgers_are_found_in_lists_of_requests() -> None:
    assert reads.LocateRanges([read_of(ONE), read_of(TWO)]).named_ledgers() == {ONE, TWO}
    runs = commits.CommitRuns("q", 0, 1, 1, [commits.LedgerParts(ONE, []), commits.LedgerParts(TWO, [])])
    assert runs.named_ledgers() == {ONE, TWO}
    assert not commits.AskNewestBatch("", "q", several=True).named_ledgers()


@pytest.mark.parametrize("may", ["read", "write"])
def test_a_task_makes_the_calls_of_its_row_about_its_ledgers(may: May) -> None:
    rows = {call for call, (rights, _) in TASKS.items() if may in rights}
    assert allowed(TaskClaims(may, [], 0), TWO) == rows
    assert allowed(TaskClaims(may, [ONE], 0), ONE) == rows
    assert allowed(TaskClaims(may, [ONE], 0), TWO) == rows & ABOUT_NO_LEDGER, "the other ledger is refused"
    assert allowed(TaskClaims(may, [ONE], 0), "one") == rows & ABOUT_NO_LEDGER, "another spelling names no ledger"


def test_dead_letters_are_the_only_ledger_that_a_task_appends_to() -> None:
    reader = TaskClaims("read", [ONE], 0, TWO)
    reader.require_allows(AppendCommand(TWO, "p"))
    for claims in (reader, TaskClaims("write", [], 0), TaskClaims("read", [], 0)):
        with pytest.raises(Unauthenticated):
            claims.require_allows(AppendCommand(ONE, "p"))


@pytest.mark.parametrize(
    "changed",
    [{"partitions": 1000}, {"properties": {"x": "y"}}, {"durability": "os"}, {"deduplication": True}, {"lists": True}],
)
def test_a_task_creates_only_plain_ledgers(changed: dict[str, object]) -> None:
    plain = CreateLedger(ONE, exist_ok=True, lists=False)
    TaskClaims("write", [], 0).require_allows(plain)
    for claims, request in (
        (TaskClaims("write", [], 0), msgspec.structs.replace(plain, **changed)),
        (TaskClaims("write", [], 0, creates=False), plain),
    ):
        with pytest.raises(Unauthenticated, match="the call was create of"):
            claims.require_allows(request)


def test_a_token_is_for_one_store_and_for_a_time() -> None:
    TaskClaims("read", [], 1000, store_id="a").require_valid(1000, "a")
    TaskClaims("read", [], 1000).require_valid(1000, "a")  # of an earlier version
    with pytest.raises(Unauthenticated, match="the task token is for store b, this broker serves store a"):
        TaskClaims("read", [], 1000, store_id="b").require_valid(1000, "a")
    with pytest.raises(Unauthenticated, match="expired 1 s ago"):
        TaskClaims("read", [], 1000).require_valid(2001, "a")
