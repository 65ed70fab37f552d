"""Mark of a directory whose store has moved to a bucket. Each later open of the directory fails.

The error names the new address.

    moved.json               {"address": "s3://…", "store_id": …, "nonce": …}, written first
    metadata.moved.sqlite    the store's metadata; its new name is the mark

Rules
- A rename of `metadata.sqlite` marks a directory. A program of an earlier version, without this module, finds no
  metadata and refuses the directory.
- A rename back removes the mark. `moved.json` beside `metadata.sqlite` is no mark.
- Earlier versions also moved a store from a bucket to a directory. `moving.json` without metadata is such a move that
  is incomplete.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS

METADATA, MOVED_METADATA, _NOTE, _ARRIVING = "metadata.sqlite", "metadata.moved.sqlite", "moved.json", "moving.json"


class MovedStore(msgspec.Struct, frozen=True):
    """New address of a store, and the nonce (random id) of its manifest there."""

    address: str
    store_id: str
    nonce: str


def moved_store(directory: Path) -> MovedStore | None:
    """Return the new address of the store that was in a directory, None if the directory is not marked.

    If `moved.json` is damaged, the address is empty.
    """
    if (directory / METADATA).exists() or not (directory / MOVED_METADATA).exists():
        return None
    try:
        return msgspec.json.decode((directory / _NOTE).read_bytes(), type=MovedStore)
    except (OSError, *JSON_FAULTS):
        return MovedStore("", "", "")


def require_not_moved(directory: Path) -> None:
    """Raise Refused if the store of a directory has moved to a bucket, or has not arrived from a bucket."""
    if (directory / _ARRIVING).exists() and not (directory / METADATA).exists():
        raise Refused(
            f"an earlier version did not complete the move of a store from a bucket to {directory}",
            hint="Delete the directory, and use the bucket: ledger serve --take-over broker --store s3://BUCKET/PREFIX",
        )
    found = moved_store(directory)
    if found is None:
        return
    address = found.address or "a bucket"
    raise Refused(
        f"the store of {directory} was moved to {address}",
        hint=f"Use {address}. To undo the move, delete the objects there first, and then rename "
        f"{directory / MOVED_METADATA} to {METADATA}",
    )


def mark_moved(directory: Path, moved: MovedStore) -> None:
    """Mark a directory. Durable on return. The caller has the lock of the store."""
    disk.replace_file(directory / _NOTE, msgspec.json.encode(moved))
    # A client of the directory must not find a broker of the new place, which has the same store id.
    (directory / "broker.json").unlink(missing_ok=True)
    disk.sync_directory(directory)
    (directory / METADATA).rename(directory / MOVED_METADATA)
    disk.sync_directory(directory)
