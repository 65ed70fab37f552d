"""Owner of a store's directory and of its objects in object storage, after a move, a restore or a copy.

    question      the recorded host or directory differs from the present one: the store is refused
    answer        `OwnerChange`: moved, copied or broker
    moved, broker the record of the store gets the present place
    copied        the record also gets a new id, and every object in object storage stays the original's
    moved, copied later segments have ids which the other history of the store has not used

Invariants
- The answer takes effect in one transaction. A crash before it leaves the question, a crash after it leaves nothing to
  do. Before the transaction, the record and the token of the original's broker are deleted.
- A copy reads the objects that its original wrote, and never deletes them (`OffloadAttempt.owner`). It uploads segments
  with a local file again, because the original may delete its objects at any time.
- A position of a restored or copied store is never a position of other rows in the history that went on. So a
  checkpoint of that history skips no row that is appended here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import location_text
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.ownership import OwnerChange, owner_hint

SKIPPED_IDS = 1_000_000_000
"""More than the number of segments that the other history can have begun since the copy was made."""
_log = logging.getLogger(__name__)


def require_owner(
    metadata: Metadata, path: Path, host: str, change: OwnerChange | None, new_id: Callable[[], str]
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
    metadata.adopt(host, new, 0 if change is OwnerChange.BROKER else SKIPPED_IDS)
    _log.warning("the store at %s belonged to %s and belongs to %s from now on", path, record.host, host)
    if new:
        _log.warning("the copy at %s had the id %s of its original and has the id %s", path, record.store_id, new)
