"""What a driver says that its tasks read next, and what the broker answers: a part of `ledger.protocol`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ledger.position import PositionRange
from ledger.wire_names import Name
from ledger.wire_numbers import NotNegative

HINTS_MAX = 100_000


class HintedRange(msgspec.Struct, frozen=True):
    """A range of a log that is read next, `left_bytes` of it and all that is known to come behind it."""

    name: Name
    range: PositionRange
    left_bytes: NotNegative = 0


class HintReads(msgspec.Struct, frozen=True):
    """`reader` reads these ranges next, in this order.

    `paced`: it may be asked to wait for those close behind it. `mapping`: its tasks map blocks on the broker's host.
    """

    reader: Name
    ranges: Annotated[list[HintedRange], msgspec.Meta(max_length=HINTS_MAX)]
    paced: bool = True
    mapping: bool = False


class HintReply(msgspec.Struct, frozen=True):
    """Wait for so many milliseconds and ask again; at 0 go on."""

    wait_ms: int = 0
