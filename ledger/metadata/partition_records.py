"""Records of a partitioned ledger and of its partitions, all inserted in the caller's transaction.

Invariants
- The record of a partitioned ledger has the number of its partitions. Each of these partitions has a record.
- A new partition gets the properties of the partitioned ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

from pyspark_ledger.ledger.errors import AlreadyExists, NotFound, Refused
from pyspark_ledger.ledger.names import PARTITIONS, partition_count, partition_names, require_new_name
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo


def insert_ledger(
    c: sqlite3.Connection, name: str, incarnation: str, properties: Mapping[str, str], *, exist_ok: bool
) -> bool:
    """Insert the record of a ledger without segments (files). Return False if it exists and `exist_ok` is set.

    Raises Refused if another ledger's name differs only in case, or if the name has a hidden character.
    """
    existing = c.execute("SELECT name FROM ledger WHERE folded = ?", (name.casefold(),)).fetchone()
    if existing is None:
        require_new_name(name)
        info = ManagedLedgerInfo()
        for key, value in sorted(properties.items()):
            info.properties.add(key=key, value=value)
        row = (name, name.casefold(), incarnation, info.SerializeToString())
        c.execute("INSERT INTO ledger_row VALUES (?, ?, ?, 0, ?)", row)
        return True
    if existing[0] != name:
        raise Refused(
            f"ledger {name!r} differs from {existing[0]!r} only in case",
            hint=f"Use {existing[0]!r}, or a name that differs in more than case",
        )
    if not exist_ok:
        raise AlreadyExists(f"ledger {name!r} exists already")
    return False


def require_ledger(c: sqlite3.Connection, name: str) -> None:
    """Raise NotFound if no ledger has this name."""
    if c.execute("SELECT 1 FROM ledger WHERE name = ?", (name,)).fetchone() is None:
        raise NotFound(f"there is no ledger {name!r}")


def insert_partitioned(
    c: sqlite3.Connection,
    name: str,
    partitions: int,
    properties: Mapping[str, str],
    new_incarnation: Callable[[], str],
    *,
    exist_ok: bool,
) -> None:
    """Insert a partitioned ledger with all its partitions.

    With `exist_ok`, an existing ledger with the same number of partitions is accepted.
    """
    stated = {**properties, PARTITIONS: str(partitions)}
    if insert_ledger(c, name, new_incarnation(), stated, exist_ok=exist_ok):
        for part in partition_names(name, partitions):
            insert_ledger(c, part, new_incarnation(), properties, exist_ok=False)
        return
    found = partition_count(_properties(c, name))
    if found != partitions:
        has = f"{found} partitions" if found else "no partitions"
        hint = "Increase their number instead" if 0 < found < partitions else "Use the existing ledger or another name"
        raise AlreadyExists(f"ledger {name!r} exists with {has}, {partitions} were requested", hint=hint)


def extend_partitioned(c: sqlite3.Connection, name: str, partitions: int, new_incarnation: Callable[[], str]) -> None:
    """Increase the number of partitions to `partitions`. Raises Refused for a number below the present number."""
    properties = _properties(c, name)
    found = partition_count(properties)
    if not found:
        raise Refused(f"ledger {name!r} has no partitions", hint="Create another ledger with partitions")
    if partitions < found:
        raise Refused(
            f"ledger {name!r} has {found} partitions, {partitions} were requested",
            hint="The number can only increase: the messages of a removed partition would be lost",
        )
    own = {key: value for key, value in properties.items() if key != PARTITIONS}
    for part in partition_names(name, partitions, found):
        insert_ledger(c, part, new_incarnation(), own, exist_ok=False)
    info = _info(c, name)
    for pair in info.properties:
        if pair.key == PARTITIONS:
            pair.value = str(partitions)
    c.execute("UPDATE ledger_row SET version = version + 1, info = ? WHERE name = ?", (info.SerializeToString(), name))


def _info(c: sqlite3.Connection, name: str) -> ManagedLedgerInfo:
    row = c.execute("SELECT info FROM ledger WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NotFound(f"there is no ledger {name!r}")
    return ManagedLedgerInfo.FromString(row[0])


def _properties(c: sqlite3.Connection, name: str) -> dict[str, str]:
    return {pair.key: pair.value for pair in _info(c, name).properties}
