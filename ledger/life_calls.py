"""What a client and the broker say to each other about a ledger as a whole: see `ledger.protocol`, whose part it is."""

from __future__ import annotations

import msgspec

from ledger.position import Position
from ledger.wire_names import Name


class TrimmedLedgers(msgspec.Struct, frozen=True):
    """What a trim took off a managed ledger, oldest first; it begins at `start` now.

    Of the ledgers in `local` it deleted the local copies only: they are in object storage.
    """

    name: str
    ledgers: list[int]
    entries: int
    size_bytes: int
    start: Position
    local: list[int] = []


class ChangeProperties(msgspec.Struct, frozen=True):
    """Set properties of a managed ledger, and remove others; the broker's own, `ledger.…`, are refused."""

    name: Name
    values: dict[Name, str] = {}
    remove: list[Name] = []


class Properties(msgspec.Struct, frozen=True):
    """All properties of a managed ledger."""

    name: str
    properties: dict[str, str]


class ChangePolicy(msgspec.Struct, frozen=True):
    """Set policies of a ledger, or of a namespace (`tenant/namespace`), and forget others. Without either: look.

    What is forgotten is again as the namespace or the broker's settings say.
    """

    scope: Name
    namespace: bool = False
    values: dict[Name, int] = {}
    forget: list[Name] = []


class Policies(msgspec.Struct, frozen=True):
    """The policies of a ledger or a namespace: what it states itself, what its namespace states, what counts."""

    scope: str
    stated: dict[str, int]
    inherited: dict[str, int]
    effective: dict[str, int]
