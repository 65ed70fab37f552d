"""Declaration of the calls of the protocol: one class states its action, its reply, its right and its ledgers.

    class SeekTime(Request[PositionReply], frozen=True, action="seek", right=READ, ledgers=("name",), changes=False):
        name: Name
        timestamp_ms: Int64

    position = client.ask(SeekTime("orders", 0)).position

The class is the only place that describes the action: client, broker, read-only store, tokens and metrics read it here.
A new action is one such class, and one handler in `ledger.broker.actions`.

Keywords of such a class
- `action`: name of the action. The fields of the class are its body on the wire. A class without an action is a base.
- `right`: rights of the task tokens that may make the call (`ledger.transport.tokens`). Without it, no task may.
- `ledgers`: fields with names of ledgers. `requests.name` is the field `name` of each element of `requests`.
- `changes`: whether the call can change the store. If so, the broker checks the epoch before and after it. By default
  it can.

Rules
- Every call states its ledgers, or inherits them; `()` states that it names none. Otherwise the class definition raises
  TypeError, so the module cannot be imported. Reason: a task token is for certain ledgers, and a call whose ledgers
  are unknown would be allowed for all of them.
- The commands that open a stream of DoPut are calls too. The tag of the command is the name of the call.
- The type in `Request[…]` is the type of the reply. A base of requests with different replies is generic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast, get_args

import msgspec

from pyspark_ledger.ledger.protocol.names import Name

May = Literal["read", "write"]
DRIVER: frozenset[May] = frozenset()
READ: frozenset[May] = frozenset({"read"})
WRITE: frozenset[May] = frozenset({"write"})
ANY_TASK = READ | WRITE

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class CallDeclaration:
    """Statements of a class about its call. The docstring of the module explains the values."""

    name: str
    right: frozenset[May]
    ledgers: tuple[str, ...]
    changes: bool
    reply: Any = None


class CallType(msgspec.StructMeta):
    """Type of the classes of calls. It reads the keywords of a class definition, and refuses an incomplete one."""

    call: CallDeclaration
    ledger_fields: tuple[str, ...]

    def __new__(  # noqa: PYI034 — mypy refuses Self in a metaclass
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        action: str = "",
        right: frozenset[May] = DRIVER,
        ledgers: tuple[str, ...] | None = None,
        changes: bool = True,
        **struct: Any,
    ) -> CallType:
        cls = super().__new__(mcs, name, bases, namespace, **struct)
        if ledgers is not None:
            missing = [path for path in ledgers if path.partition(".")[0] not in cls.__struct_fields__]
            if missing:
                raise TypeError(f"{name} has no field {missing[0]!r}, which `ledgers` names")
            cls.ledger_fields = ledgers
        call = action or struct.get("tag", "")
        if not call:
            return cls
        stated = getattr(cls, "ledger_fields", None)
        if stated is None:
            raise TypeError(f"{name} states no `ledgers`: name its fields with ledgers, or state `ledgers=()`")
        reply = None
        if action:
            (reply,) = [arg for base in namespace.get("__orig_bases__", ()) for arg in get_args(base)] or [None]
            if not isinstance(reply, type):
                raise TypeError(f"{name} has the action {action!r} and no reply: derive it from `Request[…]`")
            if action in declared:
                raise TypeError(f"{name} and {declared[action].__name__} have the same action {action!r}")
            declared[action] = cast("type[Request[Any]]", cls)
        cls.call = CallDeclaration(call, right, stated, changes, reply)
        return cls


class Call(msgspec.Struct, frozen=True, metaclass=CallType):
    """Message that opens a call."""

    call: ClassVar[CallDeclaration]

    def named_ledgers(self) -> set[str]:
        """Return the ledgers that the call is about. Empty: it is about none."""
        return {name for path in self.call.ledgers for name in _names(self, path.split("."))}


class Request(Call, Generic[Reply], frozen=True):
    """Body of an action whose reply is a `Reply`."""


class Ask(Protocol):
    """Function that sends a request and returns its reply, such as `Client.ask`."""

    def __call__(self, request: Request[Reply], /) -> Reply: ...


class LedgerRequest(Request[Reply], Generic[Reply], frozen=True, ledgers=("name",)):
    """Request about one managed ledger."""

    name: Name


class Empty(msgspec.Struct, frozen=True):
    """Reply without fields."""


declared: dict[str, type[Request[Any]]] = {}
"""The requests declared so far. `ledger.protocol.actions.REQUESTS` has all, because it imports their modules."""


def _names(value: Any, path: Sequence[str]) -> Iterator[str]:
    if isinstance(value, list):
        for element in value:
            yield from _names(element, path)
    elif path:
        yield from _names(getattr(value, path[0]), path[1:])
    else:
        yield value
