"""What is said of ranges of a log, cut, located, read and sought by time: a part of `ledger.protocol`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ledger.position import Position, PositionRange
from ledger.survey_calls import SURVEY_MAX
from ledger.wire_names import Name
from ledger.wire_numbers import Int64, NotNegative

SPLIT_PARTS_MAX = 100_000
BLOCK_BYTES_MAX = 2**30


class ReadRequest(msgspec.Struct, frozen=True):
    """Read the committed entries of a range. `max_block_bytes` bounds one block (one entry is always whole).

    `token` is what the client read from `Welcome.token_path`: with the right one, `locate` answers places.
    `incarnation`, when given, must be the ledger's: a ledger deleted and made again is an error, not other rows.
    `subscription` is who reads, for the cache: a cursor, or the name that a query without one follows by. Who says
    `partly` may be answered places of the beginning only, and asks again.
    """

    name: Name
    range: PositionRange
    incarnation: Name = ""
    subscription: Name = ""
    token: Name = ""
    max_block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)] = 4 * 1024 * 1024
    partly: bool = False


class BlockPlace(msgspec.Struct, frozen=True):
    """Where a block of frames is on the broker's host. Map it, check the first frame, read no byte beyond.

    With a `head` it is in a file of shared memory, which begins with that and may be gone (`cache.shared_blocks`).
    """

    ledger_id: int
    first_entry: int
    entries: int
    path: str
    offset: int
    length: int
    head: str = ""


class Places(msgspec.Struct, frozen=True):
    """The blocks of a range, in order, without gap. `mapped` is false when the range must be read by DoGet.

    With `more` they are the beginning of it: ask for the rest when these are mapped.
    """

    mapped: bool
    blocks: list[BlockPlace] = []
    more: bool = False


class SplitRequest(msgspec.Struct, frozen=True):
    """Cut a range at entry boundaries into parts of about `target_bytes`, at most `max_parts`."""

    name: Name
    range: PositionRange
    target_bytes: NotNegative
    max_parts: Annotated[int, msgspec.Meta(ge=1, le=SPLIT_PARTS_MAX)] = 1024


class SplitPart(msgspec.Struct, frozen=True):
    """One part of a split, with what it holds."""

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int


class SplitParts(msgspec.Struct, frozen=True):
    """The parts, in order; together exactly the range asked for, as far as it is committed."""

    parts: list[SplitPart]


class SplitRanges(msgspec.Struct, frozen=True):
    """Cut ranges of many ledgers."""

    requests: Annotated[list[SplitRequest], msgspec.Meta(max_length=SURVEY_MAX)]


class RangeParts(msgspec.Struct, frozen=True):
    """The parts of each range, in order."""

    ranges: list[SplitParts]


class LocateRanges(msgspec.Struct, frozen=True):
    """Where the blocks of many ranges are, as `locate` answers it; the token is said once."""

    requests: Annotated[list[ReadRequest], msgspec.Meta(max_length=SURVEY_MAX)]
    token: Name = ""


class RangePlaces(msgspec.Struct, frozen=True):
    """The places of each range, in order; none at all when they must be read by DoGet."""

    ranges: list[Places]


class SeekTime(msgspec.Struct, frozen=True):
    """The first position whose broker timestamp is at or after `timestamp_ms` (the end, if there is none)."""

    name: Name
    timestamp_ms: Int64


class PositionReply(msgspec.Struct, frozen=True):
    """One position."""

    position: Position
