"""Scanner of Pulsar's batches: the offsets of messages and fields, for many batches at once.

    batch:  size u32  SingleMessageMetadata  value …

The size of a message is known only after its metadata are read. So a batch can only be scanned from front to back. The
scanner processes many batches together: each step advances by one message in each batch. Then it reads the metadata of
all messages together, one field in each step.

Rules
- The scanner accepts a batch in its usual form only. Known fields appear in ascending order, each once (properties may
  repeat). Lengths and sizes have up to two bytes, other numbers up to eight. No byte is left over.
- A batch of any other form, or a damaged batch, is marked as not sound. `ledger.message.batch_decoder` then decodes it.
- Offsets refer to one buffer with all batches in sequence, followed by `ROOM` zero bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

ROOM = 16  # zero bytes after the last batch, so that reads of up to eight bytes at any offset stay in the buffer
_PROPERTIES, _KEY, _SIZE, _COMPACTED, _EVENT_TIME = 0x0A, 0x12, 0x18, 0x20, 0x28
_KEY_IS_BASE64, _ORDERING_KEY, _SEQUENCE, _NULL_VALUE, _NULL_KEY = 0x30, 0x3A, 0x40, 0x48, 0x50
_TAGS = (
    _PROPERTIES, _KEY, _SIZE, _COMPACTED, _EVENT_TIME, _KEY_IS_BASE64, _ORDERING_KEY, _SEQUENCE, _NULL_VALUE, _NULL_KEY,
)  # fmt: skip
_LENGTHS, _FLAGS = (_PROPERTIES, _KEY, _ORDERING_KEY), (_KEY_IS_BASE64, _NULL_VALUE, _NULL_KEY)
_FIELDS_MAX = 64  # the most fields of one message
_SLICE = 8 * 1024  # messages to read at a time: their columns fit into the processor's cache


def _table(tags: tuple[int, ...]) -> Flags:
    table = np.zeros(256, dtype=np.bool_)
    table[list(tags)] = True
    return table


def _followers() -> Flags:
    """Return a table: entry `before * 256 + tag` states whether field `tag` may follow field `before` (0: no field)."""
    table = np.zeros((256, 256), dtype=np.bool_)
    for before in (0, *_TAGS):
        table[before, [tag for tag in _TAGS if tag > before or tag == before == _PROPERTIES]] = True
    return table.reshape(-1)


def _limits() -> Integers:
    """Return the largest accepted value of each field."""
    table = np.full(256, 2**62, dtype=np.int64)
    table[list(_FLAGS)], table[_COMPACTED] = 1, 0
    return table


def _short_varints() -> tuple[Integers, Integers]:
    """Return two tables about varints: their value, and their length.

    Each table has an element for every number of two bytes, little-endian: the varint at the start of these bytes. For
    a varint of more than two bytes, value and length are 0.
    """
    low, high = np.arange(65536) & 0xFF, np.arange(65536) >> 8
    one, two = low < 0x80, (low >= 0x80) & (high < 0x80)
    return np.where(one, low, np.where(two, (low & 0x7F) | (high << 7), 0)), one + 2 * two


_HAS_LENGTH, _MAY_FOLLOW, _VALUE_MAX = _table(_LENGTHS), _followers(), _limits()
_SHORT, _SHORT_BYTES = _short_varints()
_SHORT_STEP = 1 + _SHORT_BYTES + _SHORT  # size of a field with a length: tag, length and content

# A bare message begins with metadata of less than 256 bytes, whose first field is the value's size. To recognize bare
# messages, the scanner takes their first eight bytes. The bits of `_BARE_BITS` must equal `_BARE`.
_BARE, _BARE_BITS = np.uint64(_SIZE << 32), np.uint64(0xFF00FFFFFF)
_BARE_STEP = 4 + _SHORT  # the number of bytes of the metadata's size and of the value
_CONTINUES = np.uint64(0x8080808080808080)


@dataclass(frozen=True, slots=True)
class MessagePlaces:
    """Offsets of messages and fields. An array has an element for each message of all batches, with two exceptions.

    `sound` has an element for each batch: False means that the batch's other elements have no meaning. The `property`
    arrays have an element for each property. `owner` is the number of a message's batch, `property_owner` the number
    of a property's message. Ranges are `[start, end)`. A start, time or number of -1 means that the message has none.
    """

    sound: Flags
    owner: Integers
    number: Integers
    value_start: Integers
    value_end: Integers
    null: Flags
    event_time: Integers
    sequence: Integers
    key_start: Integers
    key_end: Integers
    ordering_start: Integers
    ordering_end: Integers
    property_owner: Integers
    property_start: Integers
    property_end: Integers


def walk(data: npt.NDArray[np.uint8], starts: Integers, ends: Integers, counts: Integers) -> MessagePlaces:
    """Scan the batches at `[starts, ends)` of `data`. `counts` are the stated numbers of messages."""
    owner, sound = np.repeat(np.arange(len(counts)), counts), np.ones(len(counts), dtype=np.bool_)
    heads = _heads(data, starts, counts, owner)
    number = _numbers(counts)
    found = _Fields(data, heads, owner, sound)
    found.read()
    begin, end = found.ends, found.ends + found.size
    last = np.cumsum(counts) - 1
    following = np.append(heads[1:], 0)
    following[last] = ends
    found.refuse(end != following)
    return MessagePlaces(
        sound, owner, number, begin, end, found.null, found.event_time, found.sequence, *found.key, *found.ordering,
        *found.properties(),
    )  # fmt: skip


def _numbers(counts: Integers) -> Integers:
    """Return the number of each message in its batch."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _heads(data: npt.NDArray[np.uint8], starts: Integers, counts: Integers, owner: Integers) -> Integers:
    """Return the start of each message. This function uses the sizes unchecked; the caller checks them afterwards.

    Most batches have neither keys nor properties: all their messages are bare. So a batch that begins with a bare
    message is first read as if all its messages were bare. If a message turns out not to be bare, its batch is read
    again.
    """
    words: Words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    bare = np.flatnonzero((words[starts] & _BARE_BITS) == _BARE)
    rest = np.ones(len(counts), dtype=np.bool_)
    heads = np.empty(len(owner), dtype=np.int64)
    if len(bare):
        messages = np.flatnonzero(np.isin(owner, bare)) if len(bare) < len(counts) else slice(None)
        heads[messages] = bare_heads = _bare_heads(data, starts[bare], counts[bare])
        rest[bare] = False
        rest[owner[messages][(words[bare_heads] & _BARE_BITS) != _BARE]] = True
    if rest.any():
        heads[rest[owner]] = _any_heads(data, starts[rest], counts[rest])
    return heads


def _bare_heads(data: npt.NDArray[np.uint8], starts: Integers, counts: Integers) -> Integers:
    """Return the start of each message in batches whose messages are all bare.

    If the first two messages have the same size, the batch is first read as if all its messages had that size. If a
    message has another size, its batch is read again.
    """
    windows: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    limit = len(data) - ROOM

    def step(at: Integers) -> Integers:  # `at` is the last byte of the metadata's size; the value's size follows
        window = windows[at]
        size: Integers = (window & 0xFF) + _BARE_STEP[window >> 16]
        return size

    firsts = starts + 3
    sizes = step(firsts)
    even = step(np.minimum(firsts + sizes, limit)) == sizes
    heads = np.empty(int(counts.sum()), dtype=np.int64)
    if even.any():
        batch, number = np.repeat(np.arange(int(even.sum())), counts[even]), _numbers(counts[even])
        found = np.minimum(firsts[even][batch] + number * sizes[even][batch], limit)
        same = np.logical_and.reduceat(step(found) == sizes[even][batch], np.flatnonzero(number == 0))
        heads[np.repeat(even, counts)] = found
        even[even] = same
    if not even.all():
        rest = ~even
        heads[np.repeat(rest, counts)] = _follow(
            firsts[rest], counts[rest], lambda at: np.minimum(at + step(at), limit)
        )
    return heads - 3


def _any_heads(data: npt.NDArray[np.uint8], starts: Integers, counts: Integers) -> Integers:
    """Return the start of each message in batches of any messages."""
    sizes: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), dtype=">u4", buffer=data, strides=(1,))
    windows: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    limit = len(data) - ROOM

    def after(at: Integers) -> Integers:
        field = at + 4
        for _ in range(_FIELDS_MAX):
            window = windows[field]
            number = window >> 8 & 0xFFFF
            skipped = _HAS_LENGTH[window & 0xFF]
            if not skipped.any():
                break
            field = np.minimum(field + _SHORT_STEP[number] * skipped, limit)
        following: Integers = np.minimum(at + 4 + sizes[at] + _SHORT[number], limit)
        return following

    return _follow(starts, counts, after)


def _follow(starts: Integers, counts: Integers, after: Callable[[Integers], Integers]) -> Integers:
    """Return the offsets of `counts` messages of each batch. `after` maps offsets to the next offsets."""
    order = np.argsort(-counts, kind="stable")  # longest batches first, so unfinished batches come first
    unfinished = np.searchsorted(-counts[order], -np.arange(int(counts.max())))
    at, steps = starts[order], []
    for live in unfinished.tolist():
        at = at[:live]
        steps.append(at)
        at = after(at)
    batch = np.arange(int(unfinished.sum())) - np.repeat(np.cumsum(unfinished) - unfinished, unfinished)
    number = np.repeat(np.arange(len(unfinished)), unfinished)
    offsets = np.empty(len(batch), dtype=np.int64)
    offsets[(np.cumsum(counts) - counts)[order][batch] + number] = np.concatenate(steps)
    return offsets


class _Fields:
    """Fields of all messages. Each step reads the next field of every message."""

    def __init__(self, data: npt.NDArray[np.uint8], heads: Integers, owner: Integers, sound: Flags) -> None:
        count = len(heads)
        self._data = data
        self._words: Words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
        self._windows: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
        sizes: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), dtype=">u4", buffer=data, strides=(1,))
        self._owner, self._sound = owner, sound
        self._limit = len(data) - ROOM
        self._begin = heads + 4
        self.ends = self._begin + sizes[heads]
        self.refuse(self.ends > self._limit)
        self.size = np.full(count, -1, dtype=np.int64)
        self.null = np.zeros(count, dtype=np.bool_)
        self.event_time, self.sequence = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        self.key = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        self.ordering = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        self._pairs: list[tuple[Integers, Integers, Integers]] = []

    def refuse(self, wrong: Flags) -> None:
        """Mark the batches of the `wrong` messages as not sound."""
        self._sound[self._owner[wrong]] = False

    def properties(self) -> tuple[Integers, Integers, Integers]:
        """Return owner, start and end of each property, in the order of messages."""
        if not self._pairs:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty, empty
        owner, start, end = (np.concatenate(column) for column in zip(*self._pairs, strict=True))
        order = np.argsort(owner, kind="stable")
        return owner[order], start[order], end[order]

    def read(self) -> None:
        """Read the fields of all messages, and mark each batch that has a faulty message."""
        live = np.flatnonzero(self._sound[self._owner] & (self._begin < self.ends))
        for start in range(0, len(live), _SLICE):
            self._read(live[start : start + _SLICE])
        self.refuse((self.size < 0) | (self.size > self._limit))

    def _read(self, live: Integers) -> None:
        at, ends, before = self._begin[live], self.ends[live], _shared(np.zeros(len(live), dtype=np.int64))
        for _ in range(_FIELDS_MAX):
            window = self._windows[at]
            tag, number = _shared((window & 0xFF).astype(np.int64)), window >> 8 & 0xFFFF
            value, width = _SHORT[number], _SHORT_BYTES[number]
            long = np.flatnonzero(width == 0)
            if len(long):
                value[long], width[long] = _varint(self._words[at[long] + 1])
            start = at + 1 + width
            has_length = _HAS_LENGTH[tag]
            at = start + np.minimum(value, self._limit) * has_length if has_length.any() else start
            fits = (at <= ends) & _MAY_FOLLOW[before * 256 + tag] & (value <= _VALUE_MAX[tag]) & (width > 0)
            self._store(live, tag, value, start)
            unfinished = fits & (at < ends)
            if not fits.all():
                self._sound[self._owner[live[~fits]]] = False
            before = tag
            if not unfinished.all():
                live, at, ends = live[unfinished], at[unfinished], ends[unfinished]
                before = tag if len(tag) == 1 else tag[unfinished]
            if not len(live):
                return
        self._sound[self._owner[live]] = False

    def _store(self, live: Integers, tag: Integers, value: Integers, start: Integers) -> None:
        for field, column in ((_SIZE, self.size), (_EVENT_TIME, self.event_time), (_SEQUENCE, self.sequence)):
            hit = _hits(tag, field)
            if hit is not None:
                column[live[hit]] = value[hit]
        for field, (begins, ends) in ((_KEY, self.key), (_ORDERING_KEY, self.ordering)):
            hit = _hits(tag, field)
            if hit is not None:
                messages, begin = live[hit], start[hit]
                begins[messages], ends[messages] = begin, begin + value[hit]
        hit = _hits(tag, _NULL_VALUE)
        if hit is not None:
            self.null[live[hit]] = value[hit] == 1
        hit = _hits(tag, _PROPERTIES)
        if hit is not None:
            self._pairs.append((live[hit], start[hit], start[hit] + value[hit]))


def _shared(tags: Integers) -> Integers:
    """Return the tags, or a single tag if all are equal, because numpy then computes less.

    Messages of one producer usually have the same fields in the same order, so their tags are equal in each step.
    """
    return tags[:1] if (tags == tags[0]).all() else tags


def _hits(tag: Integers, field: int) -> Flags | slice | None:
    """Return which messages have the tag of `field`; None if no message has it."""
    hit: Flags = tag == field
    if not hit.any():
        return None
    return slice(None) if len(hit) == 1 else hit


def _varint(words: Words) -> tuple[Integers, Integers]:
    """Return the varint at the start of each word, and its number of bytes: 0 for a varint of more than eight bytes."""
    ends = ~words & _CONTINUES
    lowest = ends & (~ends + np.uint64(1))
    width = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) >> 3
    bits = words & ((lowest << np.uint64(1)) - np.uint64(1))
    for shift, mask in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        low = np.uint64(mask)
        bits = (bits & low) | ((bits >> np.uint64(shift)) & (low << np.uint64(shift * 7)))
    return bits.astype(np.int64), width


def pairs(data: npt.NDArray[np.uint8], start: Integers, end: Integers) -> tuple[Integers, Integers, Integers, Flags]:
    """Return start and end of each property's key, the start of its value, and which properties are sound.

    Property `i` is at `[start[i], end[i])`, and its value ends at `end[i]`.
    """
    words: Words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    limit = len(data) - ROOM
    length, width = _varint(words[np.minimum(start + 1, limit)])
    key = start + 1 + width
    key_end = np.minimum(key + np.minimum(length, limit), limit)
    value_length, value_width = _varint(words[np.minimum(key_end + 1, limit)])
    value = key_end + 1 + value_width
    sound = (data[start] == _PROPERTIES) & (data[key_end] == _KEY) & (width > 0) & (value_width > 0)
    return key, key_end, value, sound & (key_end < end) & (value + value_length == end)
