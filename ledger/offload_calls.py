"""What a client and the broker say to each other about offloading: see `ledger.protocol`, whose part it is."""

from __future__ import annotations

import msgspec

from ledger.position import Position
from ledger.wire_names import Name


class OffloadPrefix(msgspec.Struct, frozen=True):
    """Offload all sealed ledgers before a position; without one, all there are. Answered at once: it runs by itself.

    With `seal` the ledger that is being written is sealed first, if it holds an entry, so that it goes, too.
    With `cancel` what runs is to stop instead. With `sweep` objects that nobody refers to are deleted instead: those
    that are noted, and what a listing of the bucket finds of this store.
    """

    name: Name
    until: Position | None = None
    cancel: bool = False
    sweep: bool = False
    seal: bool = False


class OffloadStatus(msgspec.Struct, frozen=True):
    """How far the offload of a managed ledger is. `state`: idle, waiting, running, done, failed, cancelled.

    `bytes_done` of `bytes_total` of the ledgers `left` and those `done` in this run; `first_left` begins the first
    ledger that is not offloaded. `failure` is the first error; other ledgers went on after it. `swept`: objects that a
    sweep deleted.
    """

    name: str
    state: str
    first_left: Position
    done: list[int] = []
    left: list[int] = []
    bytes_done: int = 0
    bytes_total: int = 0
    failure: str = ""
    swept: int = 0
    offloaded: int = 0
    """Ledgers that are in object storage, of this run or others."""
    local: int = 0
    """Of those, how many are here as well."""
