"""Policies of ledgers and namespaces, as rows of the metadata file.

    policy        scope (a ledger's canonical name, or tenant/namespace), JSON of values by the name of the policy

Rules
- A change is one transaction, checked as a whole within it, and durable when it returns.
- Names of ledgers have four parts and those of namespaces two, so they never collide. A ledger's row is deleted with
  the ledger.
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
    """All policies of a store. Any thread may call any method."""

    def stated(self, scope: str) -> dict[str, int]:
        return self._file.read(lambda c: _stated(c, scope))

    def of_ledger(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return the policies of a ledger and of its namespace. A partition has those of its partitioned
        ledger, too.
        """

        def read(c: sqlite3.Connection) -> tuple[dict[str, int], dict[str, int]]:
            whole, *part = scopes_of(name)
            own = {key: value for scope in (whole, *part) for key, value in _stated(c, scope).items()}
            return own, _stated(c, namespace_of(name))

        return self._file.read(read)

    def scopes(self) -> dict[str, dict[str, int]]:
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
        """Set and delete values in one step, and return the result. `check` refuses an invalid result."""

        def change(c: sqlite3.Connection) -> dict[str, int]:
            if ledger and c.execute("SELECT 1 FROM ledger WHERE name = ?", (scope,)).fetchone() is None:
                raise NotFound(f"there is no ledger {scope!r}")
            kept = {name: value for name, value in _stated(c, scope).items() if name not in forget}
            wanted = {**kept, **values}
            check(wanted)
            if wanted:
                c.execute("INSERT OR REPLACE INTO policy_row VALUES (?, ?)", (scope, msgspec.json.encode(wanted)))
            else:
                c.execute("DELETE FROM policy_row WHERE scope = ?", (scope,))
            return wanted

        return self._file.change(change)


def scopes_of(name: str) -> tuple[str, ...]:
    """Return the scopes of a ledger's own policies: for a partition that of its partitioned ledger first."""
    part = partition_of(name)
    return (name,) if part is None else (part[0], name)


def _stated(c: sqlite3.Connection, scope: str) -> dict[str, int]:
    row = c.execute("SELECT body FROM policy WHERE scope = ?", (scope,)).fetchone()
    return {} if row is None else _decoded(row[0])


def _decoded(body: bytes) -> dict[str, int]:
    return msgspec.json.decode(body, type=dict[str, int])
