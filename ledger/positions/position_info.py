"""Encoder and decoder of Pulsar's `PositionInfo`: a cursor's mark-delete position and its individual acknowledgements.

Encoder and decoder work on whole arrays, because a cursor may have millions of ranges. A ledger id is the id of a
segment.

    08 ledger  10 entry                                           mark-delete; entry -1 is before the first entry
    1a n 0a n 08 ledger 10 lower  12 n 08 ledger 10 upper         field 3: acknowledged entries (lower, upper]
    22 n {0a name  10 value}                                      field 4: a property
    2a n 0a n 08 ledger 10 entry  10 word  10 word …              field 5: unacknowledged rows of an entry as bits
    32 n 08 ledger  10 word  10 word …                            field 6: acknowledged entries of a ledger as bits

The hexadecimal numbers are Protobuf's tags of fields. `n` is the length of a field in bytes.

Rules
- Every number is a varint, Protobuf's number of one to ten bytes. A negative int64 has ten bytes.
- Fields are written in the order of their numbers, and each word has its own tag, as in Pulsar's protobuf. The decoder
  also accepts packed words, which have one tag for all.
- Acknowledged entries are written as field 3 or field 6, whichever is smaller. The caller can choose the field.
- If a message has both fields, the decoder uses field 3, as Pulsar does.
- An unknown field raises `Unsupported`, because it may contain acknowledgements, which would be lost silently.
- A range across segments is not split, because only the caller has the list of segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyspark_ledger.ledger.errors import Corrupt, Unsupported
from pyspark_ledger.ledger.message.varints import (
    Bytes,
    decode_varints,
    gather,
    lengths,
    put_varints,
    read_varint,
    tagged,
    varint,
)
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.bitset import Integers, Words
from pyspark_ledger.ledger.positions.partial_entries import BatchRows
from pyspark_ledger.ledger.positions.position_set import ENTRY_ID_MAX, PositionSet
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LongProperty, ManagedCursorInfo, PositionInfo

_RANGE_NUMBERS = 14  # the numbers in one field 3, including tags and lengths
_RANGE_TAGS = {0: 0x1A, 2: 0x0A, 4: 0x08, 6: 0x10, 8: 0x12, 10: 0x08, 12: 0x10}
_WINDOW_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DecodedInfo:
    """Decoded PositionInfo. `crossing` has the ranges `(lower, upper]` across segments.

    `encoding` is "ranges" for field 3, "words" for field 6, and empty if the message has neither.
    """

    mark_delete: Position
    acknowledged: PositionSet
    properties: Mapping[str, int] = field(default_factory=dict)
    crossing: tuple[tuple[Position, Position], ...] = ()
    encoding: str = ""


def encode_info(
    mark_delete: Position,
    acknowledged: PositionSet,
    properties: Mapping[str, int] | None = None,
    *,
    as_words: bool | None = None,
) -> bytes:
    """Encode a PositionInfo. `as_words` selects field 6 (True), field 3 (False), or the smaller of both (None)."""
    if as_words is None:
        words_bytes = sum(9 * len(acknowledged.words(ledger_id)) for ledger_id in acknowledged.ledgers())
        as_words = words_bytes <= 20 * acknowledged.range_count()
    encoded_properties = [
        PositionInfo(properties=[LongProperty(name=name, value=value)]).SerializePartialToString()
        for name, value in (properties or {}).items()
    ]
    head = b"\x08" + varint(mark_delete.ledger_id) + b"\x10" + varint(mark_delete.entry_id)
    rows = [_encode_rows(ledger_id, acknowledged.rows(ledger_id)) for ledger_id in acknowledged.ledgers()]
    if not as_words:
        ranges = [_encode_ranges(runs.ledger_id, runs.starts, runs.ends) for runs in acknowledged.runs()]
        return b"".join([head, *ranges, *encoded_properties, *rows])
    words = [_encode_words(ledger_id, acknowledged.words(ledger_id)) for ledger_id in acknowledged.ledgers()]
    return b"".join([head, *encoded_properties, *rows, *words])


def decode_info(data: bytes | memoryview, where: str) -> DecodedInfo:
    """Decode a PositionInfo. Raises Corrupt or Unsupported naming `where`."""
    return _Decoder(memoryview(data).cast("B"), where).run()


def decode_cursor_info(info: ManagedCursorInfo, where: str) -> DecodedInfo:
    """Decode the state in a cursor's record: the state at a clean close, or the last stored mark-delete position."""
    position_info = PositionInfo(
        ledgerId=info.markDeleteLedgerId,
        entryId=info.markDeleteEntryId,
        individualDeletedMessages=info.individualDeletedMessages,
        properties=info.properties,
        batchedEntryDeletionIndexInfo=info.batchedEntryDeletionIndexInfo,
    )
    return decode_info(position_info.SerializeToString(), where)


def _encode_words(ledger_id: int, words: Words) -> bytes:
    if not len(words):
        return b""
    body = b"\x08" + varint(ledger_id) + tagged(0x10, words).tobytes()
    return b"\x32" + varint(len(body)) + body


def _encode_ranges(ledger_id: int, starts: Integers, ends: Integers) -> bytes:
    """Return field 3 for each range `[starts[i], ends[i])` of one segment. All ranges are encoded together."""
    ledger = np.frombuffer(b"\x08" + varint(ledger_id) + b"\x10", dtype=np.uint8)
    lower, upper = (starts - 1).astype(np.uint64), (ends - 1).astype(np.uint64)
    sizes = lengths(lower), lengths(upper)
    inner = [len(ledger) + size for size in sizes]
    body = inner[0] + inner[1] + 4
    at = np.append(0, np.cumsum(body + 2))
    out = np.empty(int(at[-1]), dtype=np.uint8)
    at = at[:-1]
    out[at], out[at + 1] = 0x1A, body
    at = at + 2
    for tag, size, length, values in zip((0x0A, 0x12), sizes, inner, (lower, upper), strict=True):
        out[at], out[at + 1] = tag, length
        out[at[:, None] + 2 + np.arange(len(ledger))] = ledger
        put_varints(out, at + 2 + len(ledger), values, size)
        at = at + 2 + length
    return out.tobytes()


def _encode_rows(ledger_id: int, rows: BatchRows) -> bytes:
    """Return field 5 for each entry of one segment. Trailing zero words are left out."""
    if not len(rows):
        return b""
    owner = np.repeat(np.arange(len(rows)), np.diff(rows.starts))
    number = np.arange(len(rows.words))
    last = np.maximum.reduceat(np.where(rows.words != 0, number, -1), rows.starts[:-1])
    kept = number <= last[owner]
    words, owner = rows.words[kept], owner[kept]
    word_bytes = np.bincount(owner, lengths(words) + 1, len(rows)).astype(np.int64)
    ledger = np.frombuffer(b"\x08" + varint(ledger_id) + b"\x10", dtype=np.uint8)
    entries = rows.entries.astype(np.uint64)
    entry_sizes = lengths(entries)
    inner = len(ledger) + entry_sizes
    body = (2 + inner + word_bytes).astype(np.uint64)
    body_sizes = lengths(body)
    ends = np.cumsum(1 + body_sizes + body.astype(np.int64))
    out = np.empty(int(ends[-1]), dtype=np.uint8)
    at = ends - (1 + body_sizes + body.astype(np.int64))
    out[at] = 0x2A
    put_varints(out, at + 1, body, body_sizes)
    at = at + 1 + body_sizes
    out[at], out[at + 1] = 0x0A, inner
    out[at[:, None] + 2 + np.arange(len(ledger))] = ledger
    put_varints(out, at + 2 + len(ledger), entries, entry_sizes)
    begins = ends - word_bytes
    before = np.append(0, np.cumsum(word_bytes)[:-1])
    out[np.repeat(begins - before, word_bytes) + np.arange(int(word_bytes.sum()))] = tagged(0x10, words)
    return out.tobytes()


class _Decoder:
    """Decoder of one PositionInfo."""

    def __init__(self, view: memoryview, where: str) -> None:
        self._view = view
        self._data: Bytes = np.frombuffer(view, dtype=np.uint8)
        self._where = where
        self._place: dict[int, int] = {}
        self._ranges: list[Integers] = []
        self._words: list[tuple[int, Words]] = []
        self._rows: dict[int, list[tuple[int, Words]]] = {}
        self._properties: dict[str, int] = {}

    def run(self) -> DecodedInfo:
        at = 0
        while at < len(self._view):
            at = self._field(at)
        if self._place.keys() != {1, 2}:
            raise Corrupt(f"{self._where} of {len(self._view)} bytes is no PositionInfo: its position is missing")
        acknowledged = PositionSet()
        crossing = self._add_ranges(acknowledged) if self._ranges else ()
        if not self._ranges:
            for ledger_id, words in self._words:
                acknowledged.add_words(ledger_id, words)
        for ledger_id, parts in self._rows.items():
            entries = np.fromiter((entry for entry, _ in parts), np.int64, len(parts))
            acknowledged.add_rows(ledger_id, BatchRows.of_pieces(entries, [words for _, words in parts]))
        encoding = "ranges" if self._ranges else "words" if self._words else ""
        return DecodedInfo(Position(self._place[1], self._place[2]), acknowledged, self._properties, crossing, encoding)

    def _field(self, at: int) -> int:
        tag = self._view[at]
        if tag in {0x08, 0x10}:
            value, after = read_varint(self._view, at + 1, self._where)
            self._place[tag >> 3] = _signed(value)
            return after
        if tag == 0x1A:
            return self._range_fields(at)
        if tag not in {0x22, 0x2A, 0x32}:
            raise Unsupported(
                f"{self._where} has at byte {at} the tag {tag:#04x}, which this version does not know",
                hint="A newer version wrote the field, which may contain acknowledgements. Upgrade pyspark-ledger",
            )
        size, at = read_varint(self._view, at + 1, self._where)
        if size > len(self._view) - at:
            raise Corrupt(f"{self._where} states {size} bytes at byte {at}, {len(self._view) - at} are left")
        part = self._view[at : at + size]
        if tag == 0x22:
            property_ = LongProperty.FromString(bytes(part))
            self._properties[property_.name] = property_.value
        elif tag == 0x2A:
            self._row_field(part)
        else:
            ledger_id, words = self._numbered(part, 0)
            self._words.append((ledger_id, words))
        return at + size

    def _range_fields(self, at: int) -> int:
        """Decode consecutive fields 3 from `at` on, in at most `_WINDOW_BYTES`. Returns the offset after them."""
        end = min(at + _WINDOW_BYTES, len(self._view))
        data = self._data[at:end]
        numbers = np.flatnonzero(data < 0x80)
        stops = numbers[: len(numbers) // _RANGE_NUMBERS * _RANGE_NUMBERS].reshape(-1, _RANGE_NUMBERS)
        starts: npt.NDArray[np.int64] = np.append(0, stops.reshape(-1) + 1)[:-1].reshape(-1, _RANGE_NUMBERS)
        sizes = stops - starts + 1
        good = np.ones(len(stops), dtype=np.bool_)
        for column, tag in _RANGE_TAGS.items():
            good &= (sizes[:, column] == 1) & (data[starts[:, column]] == tag)
        for column, last in ((1, 13), (3, 7), (9, 13)):
            good &= (sizes[:, column] == 1) & (data[starts[:, column]] == stops[:, last] - stops[:, column])
        count = len(good) if good.all() else int(np.argmin(good))
        if not count:
            raise Corrupt(f"{self._where} has at byte {at} no range of messages (field 3)")
        columns = [
            gather(data, starts[:count, column], sizes[:count, column], self._where).view(np.int64)
            for column in (5, 7, 11, 13)
        ]
        self._ranges.append(np.stack(columns))
        return at + int(stops[count - 1, -1]) + 1

    def _row_field(self, part: memoryview) -> None:
        if not len(part) or part[0] != 0x0A:
            raise Corrupt(f"{self._where} has a batch (field 5) that does not begin with its position")
        size, at = read_varint(part, 1, self._where)
        end = at + size
        ledger_id, found = self._numbered(part[at:end], 0)
        if end > len(part) or len(found) != 1:
            raise Corrupt(f"{self._where} has a batch (field 5) without a position")
        self._rows.setdefault(ledger_id, []).append((_signed(int(found[0])), self._tagged(part[end:])))

    def _numbered(self, part: memoryview, at: int) -> tuple[int, Words]:
        """Decode a message with a number in field 1 and numbers in field 2."""
        if at >= len(part) or part[at] != 0x08:
            raise Corrupt(f"{self._where} has a message of {len(part)} bytes that does not begin with a ledger id")
        ledger_id, at = read_varint(part, at + 1, self._where)
        return _signed(ledger_id), self._tagged(part[at:])

    def _tagged(self, part: memoryview) -> Words:
        """Decode the numbers of field 2. Each number has its own tag, or all are packed after one tag."""
        if not len(part):
            return bitset.NO_WORDS
        data = np.frombuffer(part, dtype=np.uint8)
        if part[0] == 0x12:
            size, at = read_varint(part, 1, self._where)
            if size != len(part) - at:
                raise Corrupt(f"{self._where} states {size} bytes of packed words, {len(part) - at} follow")
            return decode_varints(data[at:], self._where)
        stops = np.flatnonzero(data < 0x80)
        tags, stops = stops[0::2], stops[1::2]
        if len(tags) != len(stops) or int(stops[-1]) != len(data) - 1 or (data[tags] != 0x10).any():
            raise Corrupt(f"{self._where} has {len(part)} bytes that are not words of field 2")
        if (tags[1:] != stops[:-1] + 1).any() or tags[0] != 0:
            raise Corrupt(f"{self._where} has a word of field 2 without its tag")
        return gather(data, tags + 1, stops - tags, self._where)

    def _add_ranges(self, acknowledged: PositionSet) -> tuple[tuple[Position, Position], ...]:
        lower_ledger, lower, upper_ledger, upper = np.concatenate(self._ranges, axis=1)
        inside = lower_ledger == upper_ledger
        if (upper[inside] > ENTRY_ID_MAX).any() or (lower[inside] < -1).any() or (upper < -1).any():
            raise Corrupt(f"{self._where} has a range of entries outside of 0 to {ENTRY_ID_MAX}")
        for ledger_id in np.unique(lower_ledger[inside]).tolist():
            chosen = inside & (lower_ledger == ledger_id)
            acknowledged.add_words(ledger_id, bitset.of_ranges(lower[chosen] + 1, upper[chosen] + 1))
        crossing = [column[~inside].tolist() for column in (lower_ledger, lower, upper_ledger, upper)]
        return tuple((Position(a, b), Position(c, d)) for a, b, c, d in zip(*crossing, strict=True))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
