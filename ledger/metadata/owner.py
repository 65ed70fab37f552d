"""Owner of a store's directory and of its objects in object storage, after a move, a restore or a copy.

    question      the recorded host or directory differs from the present one: the store is refused
    answer        `OwnerChange`: moved, copied or broker
    moved, broker the record of the store gets the present place
    copied        the record also gets a new id, and every object in object storage stays the original's

Invariants
- The answer takes effect in one transaction. A crash before it leaves the question, a crash after it leaves nothing to
  do. Before the transaction, the record and the token of the original's broker are deleted.
- A copy reads the objects that its original wrote, and never deletes them (`OffloadAttempt.owner`). It uploads segments
  with a local file again, because the original may delete its objects at any time.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import location_text
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.ownership import OwnerChange, owner_hint
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo

_LISTED = ManagedLedgerInfo.LedgerInfo
_log = logging.getLogger(__name__)


class _Record(Protocol):
    """Identity in the store's record. `former` are the former ids of a copy."""

    @property
    def store_id(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def former(self) -> tuple[str, ...]: ...


class _Owned(Protocol):
    """Metadata of a store, as far as the question of the owner needs them. Their module imports this module."""

    def store_record(self) -> _Record: ...
    def adopt(self, host: str, new_id: str = "") -> None: ...


def require_owner(
    metadata: _Owned, path: Path, host: str, change: OwnerChange | None, new_id: Callable[[], str]
) -> None:
    """Raise Refused if the store belongs to another host or directory, or adopt the store as `change` says.

    `COPIED` is also accepted at the recorded place, because a cloned machine has the same numbers. A copy that has an
    id of its own at this place gets no other id. Reason: the answer may be given again at the next start.
    """
    record = metadata.store_record()
    if record.host != host and change is None:
        raise Refused(
            f"the store at {path} belongs to host and directory {record.host}, this is {host}: it was moved, restored "
            "or copied",
            hint=owner_hint(location_text(path)),
        )
    new = new_id() if change is OwnerChange.COPIED and (record.host != host or not record.former) else ""
    if record.host == host and not new:
        return
    for name in ("broker.json", "broker.token"):
        (path / name).unlink(missing_ok=True)
    metadata.adopt(host, new)
    _log.warning("the store at %s belonged to %s and belongs to %s from now on", path, record.host, host)
    if new:
        _log.warning("the copy at %s had the id %s of its original and has the id %s", path, record.store_id, new)


def disown_objects(c: sqlite3.Connection, former: str) -> None:
    """Record that all objects in object storage are those of the store `former`. Called when a copy gets its own id.

    A segment with a local file is not offloaded any more, so that this store uploads it again. Reason: the original may
    delete its objects at any time.
    """
    c.execute("DELETE FROM unwanted_row")
    for ledger_id, info in c.execute("SELECT ledger_id, info FROM segment").fetchall():
        listed = _LISTED.FromString(info)
        attempt = OffloadAttempt.of(listed)
        if attempt is None:
            continue
        if attempt.complete and attempt.local_deleted:
            attempt.owned_by(attempt.owner or former).put(listed)
        else:
            listed.ClearField("offloadContext")
        c.execute("UPDATE segment_row SET info = ? WHERE ledger_id = ?", (listed.SerializeToString(), ledger_id))


def adopt_objects(c: sqlite3.Connection, name: str) -> int:
    """Record that the objects of a managed ledger are this store's. Return the number of segments that changed."""
    adopted = 0
    query = "SELECT ledger_id, info FROM segment WHERE ledger = ?"
    for ledger_id, info in c.execute(query, (name,)).fetchall():
        listed = _LISTED.FromString(info)
        attempt = OffloadAttempt.of(listed)
        if attempt is not None and attempt.owner:
            attempt.owned_by("").put(listed)
            c.execute("UPDATE segment_row SET info = ? WHERE ledger_id = ?", (listed.SerializeToString(), ledger_id))
            adopted += 1
    return adopted
