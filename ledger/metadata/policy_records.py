"""Policies of ledgers and namespaces, as rows of the metadata file.

    policy        scope (a ledger's full name, or tenant/namespace), JSON of values by the name of the policy

A *scope* is a ledger or a namespace, a group of ledgers.

Rules
- A change is one transaction, which checks all values of the scope. A change is durable when the call returns.
- The name of a ledger has four parts, the name of a namespace two. A ledger's row is deleted with the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping

import msgspec

from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.names import namespace_of, partition_of

POLICY_TABLE = RecordTable("policy", ("scope TEXT PRIMARY KEY", "body BLOB NOT NULL"))


class PolicyRecords(Records):
    """Policies of a store. Any thread may call any method."""

    def stated(self, scope: str) -> dict[str, int]:
        """Return the policies that are set at the scope itself, a ledger or a namespace."""
        return self._file.read(lambda c: _stated(c, scope))

    def of_ledger(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return the policies of a ledger, and the policies of its namespace.

        A partition also has the policies of its partitioned ledger, unless it sets them itself.
        """

        def read(c: sqlite3.Connection) -> tuple[dict[str, int], dict[str, int]]:
            own = {key: value for scope in scopes_of(name) for key, value in _stated(c, scope).items()}
            return own, _stated(c, namespace_of(name))

        return self._file.read(read)

    def scopes(self) -> dict[str, dict[str, int]]:
        """Return the policies of all scopes that have any."""
        rows = self._file.read(lambda c: c.execute("SELECT scope, body FROM policy").fetchall())
        return {scope: _decoded(body) for scope, body in rows}

    def change(
        self,
        scope: str,
        *,
        values: Mapping[str, int],
        forget: Collection[str],
        check: Callable[[Mapping[str, int]], None],
        ledger: bool,
    ) -> dict[str, int]:
        """Set and delete values in one transaction, and return the result. `check` refuses an invalid result."""

        def change(c: sqlite3.Connection) -> dict[str, int]:
            if ledger and c.execute("SELECT 1 FROM ledger WHERE name = ?", (scope,)).fetchone() is None:
                raise NotFound(f"there is no ledger {scope!r}")
            remaining = {name: value for name, value in _stated(c, scope).items() if name not in forget}
            result = {**remaining, **values}
            check(result)
            if result:
                c.execute("INSERT OR REPLACE INTO policy_row VALUES (?, ?)", (scope, msgspec.json.encode(result)))
            else:
                c.execute("DELETE FROM policy_row WHERE scope = ?", (scope,))
            return result

        return self._file.change(change)


def scopes_of(name: str) -> tuple[str, ...]:
    """Return the ledgers whose policies a ledger has. For a partition these are its partitioned ledger, then itself."""
    part = partition_of(name)
    return (name,) if part is None else (part[0], name)


def _stated(c: sqlite3.Connection, scope: str) -> dict[str, int]:
    row = c.execute("SELECT body FROM policy WHERE scope = ?", (scope,)).fetchone()
    return {} if row is None else _decoded(row[0])


def _decoded(body: bytes) -> dict[str, int]:
    return msgspec.json.decode(body, type=dict[str, int])
