"""Handles that a user closes: a store, a ledger, a cursor. `with` closes them at the end of its block.

Rules
- Only a store holds something: its connection, and the producers that its ledgers have opened. A ledger and a cursor
  use the connection of their store. After `close`, they refuse calls, and their store stays open.
- A closed store closes its ledgers, cursors, producers and scans. A closed ledger closes its cursors.
- After `close`, each call raises Refused, which names the handle. A second `close` has no effect.
- Any thread may close a handle. A call that another thread has begun ends, or raises the same error.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self

from pyspark_ledger.ledger.errors import closed_error


class Handle:
    """Base of the handles. A derived class has `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse all later calls of this handle."""
        raise NotImplementedError


class _Closed:
    """Substitute for the client of a closed handle."""

    def __init__(self, handle: str) -> None:
        self._handle = handle

    def __reduce__(self) -> tuple[type[_Closed], tuple[str]]:
        return _Closed, (self._handle,)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise closed_error(self._handle)


def closed_client(handle: str) -> Any:
    """Return a client whose calls raise Refused. `handle` names the closed handle."""
    return _Closed(handle)


def is_closed(client: object) -> bool:
    """Return whether a client is that of a closed handle."""
    return isinstance(client, _Closed)
