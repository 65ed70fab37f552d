"""Messages about reads: ranges of a log split, located, read and sought; the state of many logs; announced reads.

They are a part of `ledger.protocol.actions`, whose rules hold here too.

Rules
- A request about many logs is one call. A reader of a thousand ledgers makes as many calls as a reader of one.
- The lists of a reply are in the order of the request's.
- A driver announces the ranges that its tasks read next (`PrefetchRequest`). The broker answers how long to wait.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import Int64, NotNegative

HINTS_MAX = 100_000


class PrefetchRange(msgspec.Struct, frozen=True):
    """Range of a log that a reader reads next. `left_bytes` counts from the range's start to the log's known end."""

    name: Name
    range: PositionRange
    left_bytes: NotNegative = 0


class PrefetchRequest(msgspec.Struct, frozen=True):
    """Announcement that `reader` reads these ranges next, in this order.

    `paced`: the broker may throttle it. `mapping`: its tasks map blocks on the broker's host.
    """

    reader: Name
    ranges: Annotated[list[PrefetchRange], msgspec.Meta(max_length=HINTS_MAX)]
    paced: bool = True
    mapping: bool = False


class PrefetchReply(msgspec.Struct, frozen=True):
    """Milliseconds to wait before the next announcement; 0: continue."""

    wait_ms: int = 0


SURVEY_MAX = 100_000


class ReadProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Start and end of a read of one log.

    - The read begins at `position`, or with the first entry stored at or after `from_ms`, or at the log's start.
    - The read ends at `until`, or with the last entry stored before `until_ms`, or at the log's end.
    - A position is valid in one incarnation of a log only. If `incarnation` is not the log's, the broker takes the
      whole log, and the answer has the present incarnation.
    - Without `count` the answer has positions only, and the broker reads no index.
    - Rows that `cursor` has acknowledged are not counted. A missing cursor has acknowledged nothing.
    """

    position: Position | None = None
    incarnation: Name = ""
    from_ms: Int64 | None = None
    until: Position | None = None
    until_ms: Int64 | None = None
    count: bool = True
    cursor: Name = ""


class AskLogStatuses(msgspec.Struct, frozen=True):
    """Request for the state of these ledgers. A partitioned ledger means its partitions.

    `readings` are by canonical name, of a log or of its partitioned ledger; `otherwise` applies to the rest.
    """

    names: Annotated[list[Name], msgspec.Meta(max_length=SURVEY_MAX)]
    readings: dict[Name, ReadProgress] = {}
    otherwise: ReadProgress = ReadProgress()


class TrimmedEntries(msgspec.Struct, frozen=True):
    """Entries that were trimmed before a read got to them. A segment that was read in part counts with its share.

    `known` is false if a release that kept no counts trimmed some of the entries.
    """

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int
    known: bool = True


class LogStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a log, and what a read has left: the committed entries of `[begin, stop)`.

    The head of the rest ends with its first entry with rows. `head_ms` is the time at which the broker stored it.
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
    """All requested logs, the `missing` ones, and the broker's time."""

    now_ms: int
    logs: list[LogStatus]
    missing: list[str] = []


class LimitedRange(msgspec.Struct, frozen=True):
    """Range of one log, and the most that may be read of it. Rows that `cursor` has acknowledged do not count."""

    name: Name
    range: PositionRange
    rows: NotNegative
    size_bytes: NotNegative
    cursor: Name = ""


class AskLimitedRanges(msgspec.Struct, frozen=True):
    """Request for the end of each limited range."""

    quotas: Annotated[list[LimitedRange], msgspec.Meta(max_length=SURVEY_MAX)]


SPLIT_PARTS_MAX = 100_000
BLOCK_BYTES_MAX = 2**30


class ReadRequest(msgspec.Struct, frozen=True):
    """Request to read the committed entries of a range. `max_block_bytes` limits a block (one entry is always whole).

    `token` is the content of `Welcome.token_path`; with the right one, `locate` returns locations. `incarnation`, if
    given, must be the ledger's: a ledger that was created again is an error. `subscription` names the reader for the
    cache: a cursor, or the name of a query without one. With `partly` the answer may have only the first locations, and
    the client requests the rest.
    """

    name: Name
    range: PositionRange
    incarnation: Name = ""
    subscription: Name = ""
    token: Name = ""
    max_block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)] = 4 * 1024 * 1024
    partly: bool = False


class BlockPlace(msgspec.Struct, frozen=True):
    """Location of a block of frames on the broker's host. Map it, check the first frame, read no byte beyond.

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
    """Blocks of a range, in order, without a gap. `mapped` is false if the range must be read by DoGet.

    With `more` they are only the first ones: request the rest when these are mapped.
    """

    mapped: bool
    blocks: list[BlockPlace] = []
    more: bool = False


class OpenRead(msgspec.Struct, frozen=True):
    """Request that opens a read of `[start, end)` of a log; without an `end`, up to the end of the log.

    With a `cursor` the answer excludes all rows that the cursor has acknowledged. `token` and `max_block_bytes` are
    those of a `ReadRequest`.
    """

    name: Name
    start: Position
    end: Position | None = None
    cursor: Name = ""
    token: Name = ""
    max_block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)] = 4 * 1024 * 1024


class OpenedRead(msgspec.Struct, frozen=True):
    """Remaining range, the newest schema (version -1: none), and locations of the range's first blocks.

    `skip` is a PositionInfo of what the cursor acknowledged in the range. `same_host` is false for an unknown token.
    """

    range: PositionRange
    incarnation: str
    schema_version: int
    schema: bytes = b""
    skip: bytes = b""
    places: Places = Places(mapped=False)
    same_host: bool = True


class SplitRequest(msgspec.Struct, frozen=True):
    """Request to split a range at entry boundaries into parts of about `target_bytes`, at most `max_parts`."""

    name: Name
    range: PositionRange
    target_bytes: NotNegative
    max_parts: Annotated[int, msgspec.Meta(ge=1, le=SPLIT_PARTS_MAX)] = 1024


class SplitPart(msgspec.Struct, frozen=True):
    """Part of a split, and its size."""

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int


class SplitParts(msgspec.Struct, frozen=True):
    """Parts in order; together exactly the committed part of the requested range."""

    parts: list[SplitPart]


class SplitRanges(msgspec.Struct, frozen=True):
    """Request to split ranges of many ledgers."""

    requests: Annotated[list[SplitRequest], msgspec.Meta(max_length=SURVEY_MAX)]


class RangeParts(msgspec.Struct, frozen=True):
    """Parts of each range, in order."""

    ranges: list[SplitParts]


class LocateRanges(msgspec.Struct, frozen=True):
    """Request for the locations of many ranges' blocks, as for `locate`, with one token."""

    requests: Annotated[list[ReadRequest], msgspec.Meta(max_length=SURVEY_MAX)]
    token: Name = ""


class RangePlaces(msgspec.Struct, frozen=True):
    """Locations of each range, in order; none at all if they must be read by DoGet."""

    ranges: list[Places]


class SeekTime(msgspec.Struct, frozen=True):
    """Request for the first position whose broker timestamp is at or after `timestamp_ms` (the end if there is
    none).
    """

    name: Name
    timestamp_ms: Int64


class PositionReply(msgspec.Struct, frozen=True):
    """Position in a log."""

    position: Position
