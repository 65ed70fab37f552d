"""Records of a partitioned ledger: created, extended and listed in one step, for any number of partitions.

Invariants
- The record of the number and the records of all partitions exist together or not at all.
- A partition has the properties with which the partitioned ledger was created.
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
    """Insert a record without segments. Return False if it exists and `exist_ok`.

    Refuses names that differ only in case, and names that no new ledger may have.
    """
    there = c.execute("SELECT name FROM ledger WHERE folded = ?", (name.casefold(),)).fetchone()
    if there is None:
        require_new_name(name)
        info = ManagedLedgerInfo()
        for key, value in sorted(properties.items()):
            info.properties.add(key=key, value=value)
        row = (name, name.casefold(), incarnation, info.SerializeToString())
        c.execute("INSERT INTO ledger_row VALUES (?, ?, ?, 0, ?)", row)
        return True
    if there[0] != name:
        raise Refused(
            f"ledger {name!r} differs from {there[0]!r} only in case",
            hint="Use that one or another name",
        )
    if not exist_ok:
        raise AlreadyExists(f"ledger {name!r} exists already")
    return False


def require_ledger(c: sqlite3.Connection, name: str) -> None:
    """Raise NotFound unless there is a record of that name."""
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
    """Insert a partitioned ledger with all of its partitions. An existing one must have as many."""
    stated = {**properties, PARTITIONS: str(partitions)}
    if insert_ledger(c, name, new_incarnation(), stated, exist_ok=exist_ok):
        for part in partition_names(name, partitions):
            insert_ledger(c, part, new_incarnation(), properties, exist_ok=False)
        return
    found = partition_count(_properties(c, name))
    if found != partitions:
        has = f"{found} partitions" if found else "no partitions"
        hint = "Increase their number instead" if 0 < found < partitions else "Use it as it is, or another name"
        raise AlreadyExists(f"ledger {name!r} exists with {has}, {partitions} were asked for", hint=hint)


def extend_partitioned(c: sqlite3.Connection, name: str, partitions: int, new_incarnation: Callable[[], str]) -> None:
    """Add partitions to a partitioned ledger. Fewer are refused; the same number changes nothing."""
    properties = _properties(c, name)
    found = partition_count(properties)
    if not found:
        raise Refused(f"ledger {name!r} has no partitions", hint="Create another ledger with partitions")
    if partitions < found:
        raise Refused(
            f"ledger {name!r} has {found} partitions, {partitions} were asked for",
            hint="Their number only increases: the keys of those that went would have lost their history",
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
