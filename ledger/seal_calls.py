"""What a client and the broker say to each other to seal what is being written: see `ledger.protocol`."""

from __future__ import annotations

import msgspec

from ledger.wire_names import Name
from ledger.wire_numbers import NotNegative


class SealLedger(msgspec.Struct, frozen=True):
    """Seal the open segment of a ledger, if it holds an entry and is at least so old; the next append opens another."""

    name: Name
    older_than_ms: NotNegative = 0


class SealedLedger(msgspec.Struct, frozen=True):
    """Whether there was something to seal."""

    name: str
    sealed: bool
