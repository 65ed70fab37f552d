"""Messages about reads: ranges of a log split, located, read and sought; the state of many logs; announced reads.

A part of `ledger.protocol.actions`, whose rules hold here too.

Rules
- A question about many logs is one call. A reader of a thousand ledgers asks as often as a reader of one.
- The lists of a reply are in the order of the request's.
- A driver announces which ranges its tasks read next (`PrefetchRequest`); the broker answers how long to wait.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import Int64, NotNegative

HINTS_MAX = 100_000


class PrefetchRange(msgspec.Struct, frozen=True):
    """A range of a log that is read next, `left_bytes` of it and all that is known to come behind it."""

    name: Name
    range: PositionRange
    left_bytes: NotNegative = 0


class PrefetchRequest(msgspec.Struct, frozen=True):
    """`reader` reads these ranges next, in this order.

    `paced`: it may be asked to wait for those close behind it. `mapping`: its tasks map blocks on the broker's host.
    """

    reader: Name
    ranges: Annotated[list[PrefetchRange], msgspec.Meta(max_length=HINTS_MAX)]
    paced: bool = True
    mapping: bool = False


class PrefetchReply(msgspec.Struct, frozen=True):
    """Wait for so many milliseconds and ask again; at 0 go on."""

    wait_ms: int = 0


SURVEY_MAX = 100_000


class ReadProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Start and end of a read of one log.

    It begins at `position`, or with the first entry stored at or after `from_ms`, or where the log does; it ends at
    `until`, or with the last entry stored before `until_ms`, or where the log does. A position means something in one
    log only: with another `incarnation` than the log's, all of this is passed over, and the answer says which it is.
    Without `count` the answer says places only, and no index is looked at. What a `cursor` of the log has acknowledged
    is not left (`ledger.log.queries`); one that is not there has acknowledged nothing.
    """

    position: Position | None = None
    incarnation: Name = ""
    from_ms: Int64 | None = None
    until: Position | None = None
    until_ms: Int64 | None = None
    count: bool = True
    cursor: Name = ""


class AskLogStatuses(msgspec.Struct, frozen=True):
    """Ask for the state of these ledgers. A partitioned ledger means its partitions.

    `readings` are by canonical name, of a log or of the partitioned ledger that it is part of; `otherwise` counts for
    the rest.
    """

    names: Annotated[list[Name], msgspec.Meta(max_length=SURVEY_MAX)]
    readings: dict[Name, ReadProgress] = {}
    otherwise: ReadProgress = ReadProgress()


class TrimmedEntries(msgspec.Struct, frozen=True):
    """Entries of a read that retention took. A ledger that was read in part counts with its share of rows and bytes.

    `known` is false for entries that were trimmed by a release that kept no account.
    """

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int
    known: bool = True


class LogStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One log and what a reading of it has left: the committed entries of `[begin, stop)`.

    The head is what comes first: up to the first entry that has rows, with the time at which the broker stored that.
    """

    name: str
    incarnation: str
    start: Position
    end: Position
    begin: Position
    stop: Position
    entries: int = 0
    rows: int = 0
    size_bytes: int = 0
    head_rows: int = 0
    head_bytes: int = 0
    head_ms: int = 0
    last_publish_ms: int = 0
    terminated: bool = False
    trimmed: TrimmedEntries | None = None


class LogStatuses(msgspec.Struct, frozen=True):
    """All logs that were asked for, those that are `missing`, and the time at the broker."""

    now_ms: int
    logs: list[LogStatus]
    missing: list[str] = []


class LimitedRange(msgspec.Struct, frozen=True):
    """A range of one log, and the most that may be read of it; what `cursor` has acknowledged counts nothing."""

    name: Name
    range: PositionRange
    rows: NotNegative
    size_bytes: NotNegative
    cursor: Name = ""


class AskLimitedRanges(msgspec.Struct, frozen=True):
    """Ask how far each quota reaches."""

    quotas: Annotated[list[LimitedRange], msgspec.Meta(max_length=SURVEY_MAX)]


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
    """Place of a block of frames on the broker's host. Map it, check the first frame, read no byte beyond.

    With a `head` it is in a file of shared memory, which begins with the head and may be gone
    (`ledger.cache.shared_memory`).
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


class OpenRead(msgspec.Struct, frozen=True):
    """Ask for all that one read of a log needs. The read is `[start, end)`; without an `end`, up to the log's.

    With a `cursor` the entries before its position, and what it acknowledged behind that, are left out. `token` and
    `max_block_bytes` are those of a `ReadRequest`.
    """

    name: Name
    start: Position
    end: Position | None = None
    cursor: Name = ""
    token: Name = ""
    max_block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)] = 4 * 1024 * 1024


class OpenedRead(msgspec.Struct, frozen=True):
    """The range that is left to read, the newest schema (version -1: none), and places of the range's first blocks.

    `skip` is a PositionInfo of what the cursor acknowledged in the range. `same_host` is false for a token that the
    broker does not know.
    """

    range: PositionRange
    incarnation: str
    schema_version: int
    schema: bytes = b""
    skip: bytes = b""
    places: Places = Places(mapped=False)
    same_host: bool = True


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
    """Ask for the places of many ranges' blocks, as `locate` answers them; the token is given once."""

    requests: Annotated[list[ReadRequest], msgspec.Meta(max_length=SURVEY_MAX)]
    token: Name = ""


class RangePlaces(msgspec.Struct, frozen=True):
    """The places of each range, in order; none at all when they must be read by DoGet."""

    ranges: list[Places]


class SeekTime(msgspec.Struct, frozen=True):
    """Ask for the first position whose broker timestamp is at or after `timestamp_ms` (the end if there is none)."""

    name: Name
    timestamp_ms: Int64


class PositionReply(msgspec.Struct, frozen=True):
    """One position."""

    position: Position
