"""Decisions about log objects: which may be put, acknowledged, skipped by readers or deleted. Pure functions.

A *slot* is the place of one number in the log. A slot is free or has one object. The *window* is the number of slots
that a broker may use at the same time. The *manifest* is the object that names the owner of the store. The *epoch* in
the manifest is a number that each new owner raises. A *taker* is a broker that takes the store over from an earlier
broker. It puts *claims*, empty objects, into slots, so that a late put of the earlier broker fails there.

    acknowledged │ stored, not acknowledged │ in flight │ free
    ─────────────┼──────────────────────────┼───────────┼──────
                 lowest                                 lowest + window

Rules
- A broker puts objects only at numbers below `lowest + window`. `lowest` is its lowest unacknowledged number.
- A broker acknowledges numbers in ascending order. After a put has succeeded, the broker first reads the manifest. It
  acknowledges the object only if the manifest shows the broker's epoch.
- If a broker finds another broker's object in a slot into which it puts, the slot is lost. Then the broker ends.
- An object is *void* if an object with a lower number has a higher epoch. Readers skip void objects.
- A taker claims the first free slot and the rest of the window.
- A taker reads the manifest again before its first claim and after its last one. If the epoch has changed, the taker
  ends. So a taker that was suspended takes no slot from the broker that owns the store now.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from enum import Enum, auto

from msgspec import UNSET, UnsetType

from pyspark_ledger.ledger.errors import Fenced, Refused
from pyspark_ledger.ledger.ownership import owner_hint, restored_hint
from pyspark_ledger.ledger.wal.log_object import Header
from pyspark_ledger.ledger.wal.manifest import StoreManifest


class Slot(Enum):
    """Content of a slot after S3 responded to a put with 412 (precondition failed)."""

    MINE = auto()
    """The object of an earlier attempt of this put. The response to that attempt was lost."""
    LOST = auto()
    """The object of another broker."""
    FREE = auto()
    """No object, so the put is repeated.

    The object was deleted. Or another put into this slot is still running: S3 then responds with 412, too.
    """


def slot_content(found: Header | None, mine: Header) -> Slot:
    """Return the content of a slot after S3 refused to put the object with the header `mine`.

    `found` is the header of the object that is in the slot, or None.
    """
    if found is None:
        return Slot.FREE
    same = (found.nonce, found.epoch, found.number) == (mine.nonce, mine.epoch, mine.number)
    return Slot.MINE if same else Slot.LOST


def require_own(slot: Slot, mine: Header, where: str) -> None:
    """Raise Fenced if a slot of this broker has the object of another broker."""
    if slot is Slot.LOST:
        raise Fenced(
            f"log object {mine.number} of {where} was written by another broker, this broker has epoch {mine.epoch}",
            hint="Another broker has taken the store over; connect to it",
        )


def may_put(number: int, lowest: int, window: int) -> bool:
    """Return whether a broker may put `number` while `lowest` is its lowest unacknowledged number."""
    return number < lowest + window


def require_epoch(manifest: StoreManifest, epoch: int, where: str) -> None:
    """Raise Fenced if the manifest has another epoch than the broker.

    A replaced broker learns in this way that it must end.
    """
    if manifest.epoch != epoch:
        by = f" by {manifest.broker.address}" if manifest.broker else ""
        raise Fenced(
            f"the store {where} has epoch {manifest.epoch}{by}, this broker has {epoch}",
            hint="Another broker has taken the store over; connect to it",
        )


def acknowledged_to(lowest: int, stored_numbers: Iterable[int]) -> int:
    """Return the lowest number that is not acknowledged after a read of the manifest.

    The objects of `stored_numbers` were stored before this read began.
    """
    stored = set(stored_numbers)
    while lowest in stored:
        lowest += 1
    return lowest


def is_void(epoch: int, highest: int) -> bool:
    """Return whether readers skip an object of `epoch`. `highest` is the highest epoch of the objects before it."""
    return epoch < highest


def claimed_slots(first_free: int, window: int) -> range:
    """Return the slots that a taker claims: all slots for which the earlier broker may have a put in flight."""
    return range(first_free, first_free + window)


def taken_over(
    before: StoreManifest,
    nonce: uuid.UUID,
    window: int,
    *,
    home: str | UnsetType = UNSET,
    new_id: str = "",
) -> StoreManifest:
    """Return the manifest of a taker. `before` is the manifest of the earlier broker.

    The window never becomes smaller, because the earlier broker may still have puts in flight for its whole window.
    `home` is the address of the bucket. With `new_id`, the store is a copy, and gets this id.
    """
    return StoreManifest(
        store_id=new_id or before.store_id,
        nonce=str(nonce),
        epoch=before.epoch + 1,
        revision=before.revision + 1,
        first=before.first,
        window=max(before.window, window),
        snapshot=before.snapshot,
        settings=before.settings,
        home=home or before.home,
        former=[*before.former_ids, before.store_id] if new_id else before.former,
        acknowledged=before.acknowledged,
    )


def require_home(manifest: StoreManifest, address: str) -> None:
    """Raise Refused if a manifest names another bucket or prefix: its objects were copied or moved here."""
    if manifest.home and manifest.home != address:
        raise Refused(
            f"the store {address} has the id {manifest.store_id} and the objects of {manifest.home}: it was moved, "
            "restored or copied from there",
            hint=f"{owner_hint(address)}. {restored_hint(address)}",
        )


def require_served(manifest: StoreManifest, where: str, *, take_over: bool = False) -> None:
    """Raise Refused if the store is being moved into the bucket, or an earlier version moved it to a directory.

    With `take_over`, the caller ends the move and serves the store from the bucket. Then only an incomplete move into
    the bucket is refused.
    """
    move = manifest.move
    if isinstance(move, UnsetType):
        return
    there = f"{move.directory} of host {move.host}"
    if move.state == "arriving" and (manifest.snapshot is None or not take_over):
        raise Refused(
            f"the store {where} is not complete: its move from {there} has not ended",
            hint=f"Run there again: ledger store move {move.directory} {where}",
        )
    if take_over:
        return
    undo = f"To end the move and use the bucket: ledger serve --take-over broker --store {where}"
    if move.state == "leaving":
        raise Refused(f"the store {where} is being moved to {there} by an earlier version", hint=undo)
    raise Refused(
        f"the store {where} was moved to {there}",
        hint=f"Use the store there. {undo}. Entries that were appended to the directory since then are lost",
    )


def is_own_replacement(found: StoreManifest, wanted: StoreManifest) -> bool:
    """Return whether the bucket has the manifest that a broker put. Called after the response to the put was lost.

    All fields are compared. Nonce (the broker's random id) and revision (the number of replacements) are not enough.
    Reason: an earlier put of this broker, whose response was lost too, may have had the same nonce and revision.
    """
    return found == wanted


def first_live(records_from: int, oldest_bytes: Iterable[int], unfinished: int | None, end: int) -> int:
    """Return the lowest number that a taker needs.

    `records_from` is the first object with records that are not in the snapshot. `oldest_bytes` has one number for each
    segment that is open or not uploaded: the oldest object with bytes of this segment. `unfinished` is the first object
    of a batch whose last part is not in the log yet. `end` is the lowest unacknowledged number.
    """
    needed = [records_from, end, *oldest_bytes]
    if unfinished is not None:
        needed.append(unfinished)
    return min(needed)


def may_sweep(epoch: int, mine: int, age_ms: int, age_min_ms: int) -> bool:
    """Return whether a broker may delete a snapshot or secret that its manifest does not name.

    `epoch` is the epoch in the object's name, and `mine` the broker's epoch. An object of the broker's own epoch is
    kept, because a put of the manifest that names the object may be in flight. A young object of a lower epoch is kept,
    because a client of an earlier broker may be reading it.
    """
    return epoch < mine and age_ms > age_min_ms
