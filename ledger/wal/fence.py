"""Decisions about slots of the write-ahead log: who may put, what is acknowledged, what counts, what is deleted. Pure.

A *slot* is the place of one number. A slot is free, or has one object until the collector deletes the object. A *taker*
is a broker that takes the store over. A *claim* is an empty object that it puts into a slot.

    acknowledged │ stored, not acknowledged │ in flight │ free
    ─────────────┼──────────────────────────┼───────────┼──────
                 lowest                                 lowest + window

Rules
- A broker has no put in flight at or behind `lowest + window`, where `lowest` is its lowest unacknowledged number.
- A number is acknowledged after all lower numbers, and after a read of the manifest that shows the broker's epoch. The
  read begins after the put has succeeded.
- If a slot has another object than the one that the broker put, the slot is lost. Then the broker ends.
- An object is void if an object of a higher epoch has a lower number.
- A taker claims the first free slot and the rest of the window.
- A taker reads the manifest again before its first claim and after its last one. Another epoch ends it. So an owner
  never loses a slot to a taker that was suspended.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from enum import Enum, auto

from msgspec import UNSET, UnsetType

from pyspark_ledger.ledger.errors import Fenced, Refused
from pyspark_ledger.ledger.wal.log_object import Header
from pyspark_ledger.ledger.wal.manifest import Move, StoreManifest


class Slot(Enum):
    """Content of a slot after the answer 412 (precondition failed) to a put."""

    MINE = auto()
    """The object of an earlier attempt of this put. Its answer was lost."""
    LOST = auto()
    """The object of another broker."""
    FREE = auto()
    """No object: the object was deleted, or a server answered 412 for a conflict. The put is repeated."""


def slot_content(found: Header | None, mine: Header) -> Slot:
    """Return the content of a slot that refused the object of `mine`. `found` is the header of its object."""
    if found is None:
        return Slot.FREE
    same = (found.nonce, found.epoch, found.number) == (mine.nonce, mine.epoch, mine.number)
    return Slot.MINE if same else Slot.LOST


def require_own(slot: Slot, mine: Header, where: str) -> None:
    """Raise Fenced if a slot of this broker has the object of another one."""
    if slot is Slot.LOST:
        raise Fenced(
            f"log object {mine.number} of {where} was written by another broker, this broker has epoch {mine.epoch}",
            hint="Another broker has taken the store over; connect to it",
        )


def may_put(number: int, lowest: int, window: int) -> bool:
    """Return whether a broker may put `number` while `lowest` is its lowest unacknowledged number."""
    return number < lowest + window


def require_epoch(manifest: StoreManifest, epoch: int, where: str) -> None:
    """Raise Fenced if the manifest shows another epoch than the broker's. So a read of the manifest fences a broker."""
    if manifest.epoch != epoch:
        by = f" by {manifest.broker.address}" if manifest.broker else ""
        raise Fenced(
            f"the store {where} has epoch {manifest.epoch}{by}, this broker has {epoch}",
            hint="Another broker has taken the store over; connect to it",
        )


def acknowledged_to(lowest: int, stored_numbers: Iterable[int]) -> int:
    """Return the new lowest unacknowledged number.

    `stored_numbers` have objects that were stored before the read of the manifest began.
    """
    stored = set(stored_numbers)
    while lowest in stored:
        lowest += 1
    return lowest


def is_void(epoch: int, highest: int) -> bool:
    """Return whether an object is ignored. `highest` is the highest epoch at lower numbers, or of the snapshot."""
    return epoch < highest


def claimed_slots(first_free: int, window: int) -> range:
    """Return the slots that a taker claims: an earlier broker may have a put in flight for each of them."""
    return range(first_free, first_free + window)


def taken_over(before: StoreManifest, nonce: uuid.UUID, window: int, move: Move | UnsetType = UNSET) -> StoreManifest:
    """Return the manifest of a taker. The window never shrinks: an even earlier broker may have its puts in flight.

    `move` says that the taker is no broker, and moves the store to a directory.
    """
    return StoreManifest(
        store_id=before.store_id,
        nonce=str(nonce),
        epoch=before.epoch + 1,
        revision=before.revision + 1,
        first=before.first,
        window=max(before.window, window),
        snapshot=before.snapshot,
        move=move,
        settings=before.settings,
    )


def require_served(manifest: StoreManifest, where: str, *, take_over: bool = False) -> None:
    """Raise Refused if the store moves between the bucket and a directory, or has left the bucket.

    `take_over` ends the move. Exception: a store that arrives and is not complete cannot be served.
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
    undo = f"To end the move and use the bucket: ledger serve --take-over --store {where}"
    if move.state == "leaving":
        again = f"Run there again: ledger store move {where} {move.directory}"
        raise Refused(f"the store {where} is being moved to {there}", hint=f"{again}. {undo}")
    raise Refused(
        f"the store {where} was moved to {there}",
        hint=f"Use the store there. {undo}. Entries that the directory got since are lost then",
    )


def is_own_replacement(found: StoreManifest, wanted: StoreManifest) -> bool:
    """Return whether the bucket has the manifest that a broker put, after the answer to the put was lost.

    All fields count: an earlier change of this broker, whose answers were lost until the deadline, has the same nonce
    and revision.
    """
    return found == wanted


def first_live(records_from: int, oldest_bytes: Iterable[int], unfinished: int | None, end: int) -> int:
    """Return the lowest number that a taker needs.

    `records_from` is the first object whose records the snapshot lacks. `oldest_bytes` are, for each segment that is
    not sealed and uploaded, its oldest object. `unfinished` is the first object of a batch without its last part.
    `end` is the lowest unacknowledged number.
    """
    needed = [records_from, end, *oldest_bytes]
    if unfinished is not None:
        needed.append(unfinished)
    return min(needed)


def may_sweep(epoch: int, mine: int, age_ms: int, age_min_ms: int) -> bool:
    """Return whether a broker may delete an object that no record names, by the epoch in the object's name.

    An object of the broker's own epoch may be named by a change that is in flight. A young object of a lower epoch may
    be read by a client of that broker.
    """
    return epoch < mine and age_ms > age_min_ms
