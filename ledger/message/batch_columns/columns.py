"""Messages of many batches as Arrow columns, without a Python object for each message.

Rules
- `even_columns` decodes groups of *even* batches (`even_batches`). `columns_of` decodes the batches that the scanner
  marks as sound (complete, undamaged and in the usual form), and also returns which entries it decoded.
- The caller gives all other entries to `ledger.message.batch_decoder`, which decodes or refuses them. So this module
  raises no error.
- Arrow slices all values, keys and properties out of the decompressed batches with one call for each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.message.batch_columns.even_batches import EvenBatches, even_batches
from pyspark_ledger.ledger.message.batch_columns.scanner import ROOM, Integers, MessagePlaces, pairs, walk
from pyspark_ledger.ledger.message.byte_ranges import Bytes, cut
from pyspark_ledger.ledger.message.compression import NONE, UNCOMPRESSED_BYTES_MAX, decompress
from pyspark_ledger.ledger.message.entry import ParsedEntry, foreign_format, is_arrow, is_marker

_NO_PAIRS = pa.array([], pa.string()), pa.array([], pa.string())


class MessageColumns(Protocol):
    """Messages of several entries, in order. `owner` is the number of a message's entry. Event time 0 means none."""

    @property
    def owner(self) -> Integers: ...
    @property
    def batch_index(self) -> Integers: ...
    @property
    def values(self) -> pa.Array: ...
    @property
    def keys(self) -> pa.Array: ...
    @property
    def event_times(self) -> Integers: ...
    @property
    def publish_times(self) -> Integers: ...
    @property
    def properties(self) -> pa.Array: ...
    @property
    def sequence_ids(self) -> Integers: ...
    @property
    def ordering_keys(self) -> pa.Array: ...


@dataclass(frozen=True, slots=True)
class MessageArrays:
    """Messages whose columns are all in memory (`MessageColumns`)."""

    owner: Integers
    batch_index: Integers
    values: pa.Array
    keys: pa.Array
    event_times: Integers
    publish_times: Integers
    properties: pa.Array
    sequence_ids: Integers
    ordering_keys: pa.Array


def may_be_columns(entry: ParsedEntry) -> bool:
    """Return whether an entry is an unencrypted batch of Pulsar messages."""
    metadata = entry.metadata
    return (
        metadata.num_messages_in_batch > 0
        and metadata.HasField("num_messages_in_batch")
        and not metadata.encryption_keys
        and metadata.num_chunks_from_msg <= 1
        and not is_marker(metadata)
        and not is_arrow(metadata)
        and not foreign_format(metadata)
        and isinstance(metadata.producer_name, str)  # Protobuf's runtime returns invalid UTF-8 as bytes
    )


def columns_of(entries: Sequence[ParsedEntry]) -> tuple[MessageColumns | None, list[bool]]:
    """Return the messages of the decoded entries (None if no entry was decoded), and whether each entry was decoded."""
    payloads = [_batch_bytes(entry) for entry in entries]
    batches = [number for number, payload in enumerate(payloads) if payload is not None]
    is_decoded = [False] * len(entries)
    if not batches:
        return None, is_decoded
    data = np.frombuffer(b"".join([*(payloads[number] or b"" for number in batches), bytes(ROOM)]), dtype=np.uint8)
    sizes = np.fromiter((len(payloads[number] or b"") for number in batches), np.int64, len(batches))
    counts = _counts([entries[number] for number in batches])
    ends = np.cumsum(sizes)
    places = walk(data, ends - sizes, ends, counts)
    columns = _columns(data, places, np.array(batches), [entries[number] for number in batches])
    if columns is None:
        return None, is_decoded
    for number in np.flatnonzero(places.sound).tolist():
        is_decoded[batches[number]] = True
    return columns, is_decoded


def _counts(entries: Sequence[ParsedEntry]) -> Integers:
    return np.fromiter((entry.metadata.num_messages_in_batch for entry in entries), np.int64, len(entries))


class EvenColumns:
    """Messages of even batches, which have neither keys nor times nor properties (`MessageColumns`).

    All columns except the values are computed at their first use, because most reads do not use them.
    """

    def __init__(self, even: EvenBatches, entries: Sequence[ParsedEntry]) -> None:
        self.values = even.values
        self._even = even
        self._entries = entries
        self._counts = _counts(entries)

    @cached_property
    def owner(self) -> Integers:
        return np.repeat(np.arange(len(self._entries)), self._counts)

    @cached_property
    def batch_index(self) -> Integers:
        first = np.cumsum(self._counts) - self._counts
        return np.arange(len(self.values)) - first[self.owner]

    @cached_property
    def event_times(self) -> Integers:
        return _stated(self._entries, "event_time")[self.owner]

    @cached_property
    def publish_times(self) -> Integers:
        return _stated(self._entries, "publish_time")[self.owner]

    @cached_property
    def sequence_ids(self) -> Integers:
        numbered = self._even.sequence_ids()
        return np.where(numbered < 0, _stated(self._entries, "sequence_id")[self.owner], numbered)

    @property
    def keys(self) -> pa.Array:
        return pa.nulls(len(self.values), pa.string())

    @property
    def properties(self) -> pa.Array:
        offsets = np.zeros(len(self.values) + 1, dtype=np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), *_NO_PAIRS)

    @property
    def ordering_keys(self) -> pa.Array:
        return pa.nulls(len(self.values), pa.binary())


def even_columns(entries: Sequence[ParsedEntry]) -> MessageColumns | None:
    """Return the messages of even batches. Returns None if an entry is not an even batch."""
    size = sum(_stated_bytes(entry) for entry in entries)
    if size > UNCOMPRESSED_BYTES_MAX:
        return None
    even = even_batches(map(_batch_bytes, entries), _counts(entries).tolist(), size)
    return None if even is None else EvenColumns(even, entries)


def _stated(entries: Sequence[ParsedEntry], field: str) -> Integers:
    """Return a number of each entry's metadata."""
    return np.fromiter((getattr(entry.metadata, field) for entry in entries), np.uint64, len(entries)).astype(np.int64)


def _stated_bytes(entry: ParsedEntry) -> int:
    metadata = entry.metadata
    return len(entry.payload) if metadata.compression == NONE else metadata.uncompressed_size


def _batch_bytes(entry: ParsedEntry) -> memoryview | None:
    """Return the decompressed bytes of a batch.

    Returns None for an entry of another kind, and for a damaged or short batch.
    """
    if not may_be_columns(entry):
        return None
    metadata = entry.metadata
    try:
        payload = decompress(metadata.compression, entry.payload, metadata.uncompressed_size, "", framed=True)
    except LedgerError:
        return None  # `batch_decoder` decompresses the payload again, and raises an error that names its place.
    # A message has at least six bytes: four of its size, and two that state the length of its value.
    return payload if len(payload) >= 6 * metadata.num_messages_in_batch else None


def _columns(
    data: Bytes, places: MessagePlaces, numbers: Integers, entries: Sequence[ParsedEntry]
) -> MessageColumns | None:
    """Return the columns of all sound batches. If a batch has damaged properties, its `places.sound` is set to False.

    `numbers[i]` is the index of `entries[i]` in the caller's list of all entries.
    """
    names = _Properties(data, places)
    places.sound[places.owner[names.owner[~names.sound]]] = False
    kept = np.flatnonzero(places.sound[places.owner])
    if not len(kept):
        return None
    owner = places.owner[kept]
    keys = cut(data, places.key_start[kept], places.key_end[kept], places.key_start[kept] < 0)
    try:
        text = keys.view(pa.string())
        text.validate(full=True)
        properties = names.column(kept)
    except pa.ArrowInvalid:
        return None  # there is invalid UTF-8: `batch_decoder` raises an error that names its place
    stated, numbered = places.event_time[kept], places.sequence[kept]
    publish, event, sequence = (_stated(entries, name) for name in ("publish_time", "event_time", "sequence_id"))
    ordering = places.ordering_start[kept], places.ordering_end[kept]
    return MessageArrays(
        numbers[owner],
        places.number[kept],
        cut(data, places.value_start[kept], places.value_end[kept], places.null[kept]),
        text,
        np.where(stated < 0, event[owner], stated),
        publish[owner],
        properties,
        np.where(numbered < 0, sequence[owner], numbered),
        cut(data, *ordering, ordering[0] < 0),
    )


class _Properties:
    """Properties of all messages."""

    def __init__(self, data: Bytes, places: MessagePlaces) -> None:
        self._data, self._count = data, len(places.owner)
        self._start, self._end = places.property_start, places.property_end
        known = places.sound[places.owner[places.property_owner]]
        self.owner = places.property_owner[known]
        self._start, self._end = self._start[known], self._end[known]
        self._key, self._key_end, self._value, self.sound = pairs(data, self._start, self._end)

    def column(self, kept: Integers) -> pa.Array:
        """Return the properties of the messages `kept`. Raises ArrowInvalid for invalid UTF-8."""
        if not len(self.owner):
            return pa.MapArray.from_arrays(pa.array(np.zeros(len(kept) + 1, dtype=np.int32)), *_NO_PAIRS)
        new = np.full(self._count, -1, dtype=np.int64)
        new[kept] = np.arange(len(kept))
        mine = new[self.owner] >= 0
        owner, key, key_end = new[self.owner[mine]], self._key[mine], self._key_end[mine]
        no_nulls = np.zeros(len(owner), dtype=np.bool_)
        keys = cut(self._data, key, key_end, no_nulls).view(pa.string())
        values = cut(self._data, self._value[mine], self._end[mine], no_nulls).view(pa.string())
        keys.validate(full=True)
        values.validate(full=True)
        counts = np.bincount(owner, minlength=len(kept))
        if len(owner) and counts.max() > 1:
            _require_different(owner, keys, int(counts.max()))
        offsets = np.zeros(len(kept) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _require_different(owner: Integers, keys: pa.Array, most: int) -> None:
    """Raise ArrowInvalid if a message states a property twice.

    `batch_decoder` then decodes the message and returns the property's last value. Such messages are rare.
    """
    codes = keys.dictionary_encode().indices.to_numpy()
    for apart in range(1, most):
        if ((owner[apart:] == owner[:-apart]) & (codes[apart:] == codes[:-apart])).any():
            raise pa.ArrowInvalid("a property is stated twice")
