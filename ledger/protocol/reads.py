"""Messages about reads: splits and locations of ranges, search by time, the state of many logs, and prefetch.

`ledger.protocol.actions` has the rules of all messages.

Rules
- A request about many logs is one call. A query over a thousand ledgers makes as many calls as a query over one ledger.
- The lists of a reply are in the order of the lists in the request.
- A driver, the process of Spark that plans a query, announces the ranges that its tasks read next (`PrefetchRequest`).
  So the broker can prefetch them. The reply states how long the driver waits before the next announcement.
"""

from __future__ import annotations

from typing import Annotated, Generic

import msgspec

from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.protocol.request import READ, LedgerRequest, Reply, Request
from pyspark_ledger.ledger.settings.setting import Int64, NotNegative

HINTS_MAX = 100_000


class PrefetchRange(msgspec.Struct, frozen=True):
    """Range of a log that a reader reads next. `left_bytes`: the size from the range's start to the log's known end."""

    name: Name
    range: PositionRange
    left_bytes: NotNegative = 0


class PrefetchReply(msgspec.Struct, frozen=True):
    """Milliseconds for which the reader waits before the next announcement; 0: it does not wait."""

    wait_ms: int = 0


class PrefetchRequest(
    Request[PrefetchReply], frozen=True, action="cache.hint", ledgers=("ranges.name",), changes=False
):
    """Announcement that `reader` reads these ranges next, in this order.

    `paced`: the broker may throttle the reader. `mapping`: the reader's tasks map blocks on the broker's host.
    `direct`: its tasks fetch blocks from a bucket by themselves, and the broker prefetches only the other blocks.
    """

    reader: Name
    ranges: Annotated[list[PrefetchRange], msgspec.Meta(max_length=HINTS_MAX)]
    paced: bool = True
    mapping: bool = False
    direct: bool = False


SURVEY_MAX = 100_000


class ReadProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Start and end of a read of one log.

    - The read begins at `position`, or with the first entry stored at or after `from_ms`, or at the log's start.
    - The read ends at `until`, or with the last entry stored before `until_ms`, or at the log's end.
    - A log that is deleted and created again has a new *incarnation*, in which old positions are invalid. If the log
      has another incarnation than `incarnation`, the read covers the whole log. The reply has the log's incarnation.
    - Without `count` the reply has positions only, and the broker reads no index.
    - The reply excludes rows that `cursor` has acknowledged. A missing cursor has acknowledged no row.
    """

    position: Position | None = None
    incarnation: Name = ""
    from_ms: Int64 | None = None
    until: Position | None = None
    until_ms: Int64 | None = None
    count: bool = True
    cursor: Name = ""


class TrimmedEntries(msgspec.Struct, frozen=True):
    """Entries that retention deleted before the reader had read them.

    If the reader had read a part of a segment, only the rest counts. `known` is false if an older release deleted some
    of the entries, because it recorded no counts.
    """

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int
    known: bool = True


class LogStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a log, and the size of the remaining read: the committed entries of `[begin, stop)`.

    `head_rows`, `head_bytes` and `head_ms` describe the first remaining entry with rows; `head_bytes` includes the
    entries without rows before it. `head_ms` is the time at which the broker stored the entry. All segments up to the
    id `offloaded_id` are in object storage.
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
    offloaded_id: int = -1


class LogStatuses(msgspec.Struct, frozen=True):
    """States of the requested logs, names of the missing logs, and the time of the broker's clock, `now_ms`."""

    now_ms: int
    logs: list[LogStatus]
    missing: list[str] = []


class AskLogStatuses(Request[LogStatuses], frozen=True, action="survey", right=READ, ledgers=("names",), changes=False):
    """Request for the state of these ledgers. The name of a partitioned ledger means all its partitions.

    `readings` has the reads by canonical name of a ledger, a partition or a partitioned ledger. `otherwise` is the read
    of all other ledgers.
    """

    names: Annotated[list[Name], msgspec.Meta(max_length=SURVEY_MAX)]
    readings: dict[Name, ReadProgress] = {}
    otherwise: ReadProgress = ReadProgress()


class LimitedRange(msgspec.Struct, frozen=True):
    """Range of one log, with the maximum rows and bytes of a read. Rows that `cursor` has acknowledged do not count."""

    name: Name
    range: PositionRange
    rows: NotNegative
    size_bytes: NotNegative
    cursor: Name = ""


SPLIT_PARTS_MAX = 100_000
BLOCK_BYTES_MAX = 2**30


class BlockPlace(msgspec.Struct, frozen=True):
    """Location of a block of frames (entries with length and id) in a file on the broker's host.

    A reader maps exactly these bytes and checks the first frame. If `head` is not empty, the file is in shared memory,
    and its first bytes are `head`. The broker can delete this file at any time (`ledger.cache.shared_memory`).
    """

    ledger_id: int
    first_entry: int
    entries: int
    path: str
    offset: int
    length: int
    head: str = ""


class Places(msgspec.Struct, frozen=True):
    """Locations of the blocks of a range, in order and without a gap.

    If `mapped` is false, the client cannot map the range and must read it by DoGet. With `more` these are only the
    first blocks. The client maps them, and then requests the rest.
    """

    mapped: bool
    blocks: list[BlockPlace] = []
    more: bool = False


class ReadRequest(LedgerRequest[Places], frozen=True, action="locate", right=READ, changes=False):
    """Request to read the committed entries of a range.

    - `max_block_bytes` limits the size of a block. A block with one entry can be larger.
    - `token` is the content of `Welcome.token_path`. Only with the right token does `locate` return locations.
    - If an `incarnation` is given and the ledger has another one, the request fails. Then the ledger was deleted and
      created again.
    - `subscription` names the reader for the cache: a cursor, or a query without a cursor.
    - With `partly` the reply can have only the first locations. The client then requests the rest.
    """

    range: PositionRange
    incarnation: Name = ""
    subscription: Name = ""
    token: Name = ""
    max_block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)] = 4 * 1024 * 1024
    partly: bool = False


class OpenedRead(msgspec.Struct, frozen=True):
    """Range that remains to be read, the newest schema (version -1: none), and the locations of the first blocks.

    `skip` is a PositionInfo (Pulsar's message for a set of positions) of the rows in the range that the cursor has
    acknowledged. `same_host` is false if the request did not have the broker's token. A read with
    limits gets the last three fields: the rows of the range, the end of the log, and whether this end is final.
    """

    range: PositionRange
    incarnation: str
    schema_version: int
    schema: bytes = b""
    skip: bytes = b""
    places: Places = Places(mapped=False)
    same_host: bool = True
    rows: int = 0
    log_end: Position = EARLIEST
    terminated: bool = False


class ReadLimits(msgspec.Struct, frozen=True):
    """Limits of a read. The read ends between entries. Its first entry with rows may be larger than the limits."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class OpenRead(LedgerRequest[OpenedRead], frozen=True, action="read.open", changes=False):
    """Request that opens a read of `[start, end)` of a log. Without `end` the read ends at the end of the log.

    With a `cursor` the read excludes all rows that the cursor has acknowledged. `limits` shorten the range.
    `ReadRequest` explains `incarnation`, `token` and `max_block_bytes`.
    """

    start: Position
    end: Position | None = None
    cursor: Name = ""
    token: Name = ""
    max_block_bytes: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES_MAX)] = 4 * 1024 * 1024
    limits: ReadLimits | None = None
    incarnation: Name = ""


class SplitPart(msgspec.Struct, frozen=True):
    """Part of a split range, and its size."""

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int


def limited(opened: OpenedRead, part: SplitPart, log_end: Position, *, terminated: bool) -> OpenedRead:
    """Return the reply to a read with limits, which covers only `part` of its range."""
    return msgspec.structs.replace(opened, range=part.range, rows=part.rows, log_end=log_end, terminated=terminated)


class SplitParts(msgspec.Struct, frozen=True):
    """Parts in order. Together they cover exactly the committed part of the requested range."""

    parts: list[SplitPart]


class SplitRequest(LedgerRequest[SplitParts], frozen=True, action="split", changes=False):
    """Request to split a range at entry boundaries into parts of about `target_bytes`, at most `max_parts`."""

    range: PositionRange
    target_bytes: NotNegative
    max_parts: Annotated[int, msgspec.Meta(ge=1, le=SPLIT_PARTS_MAX)] = 1024


class AskLimitedRanges(Request[SplitParts], frozen=True, action="quotas", ledgers=("quotas.name",), changes=False):
    """Request to cut each range at the position at which a read reaches its limits."""

    quotas: Annotated[list[LimitedRange], msgspec.Meta(max_length=SURVEY_MAX)]


class RangeParts(msgspec.Struct, frozen=True):
    """Parts of each range, in order."""

    ranges: list[SplitParts]


class SplitRanges(Request[RangeParts], frozen=True, action="split.many", ledgers=("requests.name",), changes=False):
    """Request to split ranges of many ledgers."""

    requests: Annotated[list[SplitRequest], msgspec.Meta(max_length=SURVEY_MAX)]


class RangesRequest(Request[Reply], Generic[Reply], frozen=True, ledgers=("requests.name",)):
    """Request for the places of the blocks of many ranges.

    `token` is the token of a `ReadRequest`, for all ranges.
    """

    requests: Annotated[list[ReadRequest], msgspec.Meta(max_length=SURVEY_MAX)]
    token: Name = ""


class RangePlaces(msgspec.Struct, frozen=True):
    """Locations of each range, in order. The list is empty if the client must read all ranges by DoGet."""

    ranges: list[Places]


class LocateRanges(RangesRequest[RangePlaces], frozen=True, action="locate.many", right=READ, changes=False):
    """Request for the locations of the blocks of many ranges on the broker's host."""


class StoredPlace(msgspec.Struct, frozen=True):
    """Place of a block in a data object in a bucket: bytes `[offset, offset + length)` of the object `key`.

    If the stamps in the object are provisional, `stamp_ms` and `row_start` are the values of the real stamps.
    """

    ledger_id: int
    first_entry: int
    entries: int
    key: str
    offset: int
    length: int
    stamp_ms: int | None = None
    row_start: int = 0


class StoredPart(msgspec.Struct, frozen=True):
    """Part of a range.

    The client fetches its blocks from the bucket. A part without blocks is read through the broker.
    """

    range: PositionRange
    blocks: list[StoredPlace] = []


class StoredPlaces(msgspec.Struct, frozen=True):
    """Parts of each range, in order and without a gap, and the bucket of all blocks, without credentials.

    The broker has counted the blocks as read by the client. Without an `address` no part has blocks.
    """

    ranges: list[list[StoredPart]]
    address: str = ""
    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    bucket_owner: str = ""


class LocateStored(RangesRequest[StoredPlaces], frozen=True, action="locate.stored", right=READ, changes=False):
    """Request for the places of the blocks of many ranges in a bucket."""


class PositionReply(msgspec.Struct, frozen=True):
    """Position in a log."""

    position: Position


class SeekTime(LedgerRequest[PositionReply], frozen=True, action="seek", changes=False):
    """Request for the position of the first entry that the broker stored at or after `timestamp_ms`.

    The reply is the end of the log if there is no such entry.
    """

    timestamp_ms: Int64
