"""Encodings of the columns of entries: plain buffers, dictionaries, and compressed buffers.

    plain         the column's Arrow buffers; a reader that maps the file copies nothing
    dictionary    the distinct values, and an index of one or two bytes for each row
    compressed    all buffers of the entry by LZ4 or ZSTD

Rules
- A column that this module stores as a dictionary has the field metadata `ledger.encoding: dictionary`. Readers get a
  column of the values. A column that a user appended as a dictionary has no such metadata, and stays a dictionary.
- The encoding is chosen by a sample: the beginning of the first entry of a writer, and later of every 256th entry.
- A column becomes a dictionary if this makes the sample smaller. In an entry with too many distinct values the column
  stays without a dictionary. This is possible because each entry is an Arrow stream of its own.
- With `auto`, entries are encoded if the sample shrinks by a fifth. Otherwise all columns are plain, because reading
  plain columns costs nothing. Small entries are always plain.
- Floating-point numbers are compared as bits, so that NaN and the sign of zero are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.types as of

from pyspark_ledger.ledger.message.arrow_payload import DICTIONARY, encode_rows

Compression = Literal["auto", "none", "lz4", "zstd"]
Codec = Literal["lz4", "zstd"]

_AUTO: Codec = "lz4"
_SAVED_MIN = 0.2
_SAMPLE_ROWS = 65_536
_ENTRIES_PER_SAMPLE = 256
_BYTES_MIN = 16 * 1024
_ROWS_PER_VALUE = 4  # with fewer rows for each distinct value, a dictionary saves little
_INDEXES = ((2**8, pa.uint8()), (2**16, pa.uint16()))
_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


@dataclass(frozen=True)
class Encoding:
    """Encoding of an entry: a codec for its buffers, and the names of its dictionary columns."""

    codec: Codec | None = None
    dictionaries: frozenset[str] = frozenset()


class RowEncoder:
    """Encoder of one writer's entries. Used by one thread at a time."""

    def __init__(self, compression: Compression = "auto") -> None:
        self._compression = compression
        self._encoding = Encoding()
        self._entries = 0

    def encode(self, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
        """Return the payload of an entry with these batches. Raises the errors of `encode_rows`."""
        if self._compression == "none" or sum(batch.nbytes for batch in batches) < _BYTES_MIN:
            return encode_rows(batches)
        joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
        if len(joined) != 1:
            return encode_rows(batches)  # Arrow cannot join a column of more than 2 GiB of text
        (batch,) = joined
        if self._entries % _ENTRIES_PER_SAMPLE == 0:
            self._encoding = choose_encoding(batch.slice(0, _SAMPLE_ROWS), self._compression)
        self._entries += 1
        return encode_rows([_with_dictionaries(batch, self._encoding)], compression=self._encoding.codec)


def choose_encoding(sample: pa.RecordBatch, compression: Compression) -> Encoding:
    """Return the encoding that makes the sample smallest. With `auto`, it must save a fifth, or columns stay plain."""
    if compression == "none":
        return Encoding()
    codec: Codec = _AUTO if compression == "auto" else compression
    dictionaries, size = set[str](), 0
    for name, column in zip(sample.schema.names, sample.columns, strict=True):
        plain = _stream_size(column, codec)
        encoded = dictionary_of(column)
        size += plain
        if encoded is not None and (small := _stream_size(encoded, codec)) < plain:
            dictionaries.add(name)
            size += small - plain
    if compression == "auto" and size > (1 - _SAVED_MIN) * sample.nbytes:
        return Encoding()
    return Encoding(codec, frozenset(dictionaries))


def dictionary_of(column: pa.Array) -> pa.DictionaryArray | None:
    """Return the column as a dictionary with an index of one or two bytes.

    Returns None for a type without dictionaries, or too many distinct values.
    """
    if not _has_dictionary(column.type):
        return None
    bits = _BITS.get(column.type)
    encoded = (column if bits is None else column.view(bits)).dictionary_encode()
    values = encoded.dictionary if bits is None else encoded.dictionary.view(column.type)
    index = next((kind for most, kind in _INDEXES if len(values) <= most), None)
    if index is None or len(values) * _ROWS_PER_VALUE > len(column):
        return None
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(index), values)


def _has_dictionary(kind: pa.DataType) -> bool:
    """Return whether Arrow makes dictionaries of a type, and its values have two bytes or more.

    Shorter values are not larger than their index.
    """
    text = of.is_string(kind) or of.is_binary(kind) or of.is_large_string(kind) or of.is_large_binary(kind)
    wide = of.is_primitive(kind) and not of.is_boolean(kind) and kind.bit_width > 8
    return bool(text or wide or of.is_decimal128(kind) or of.is_decimal256(kind))


def _with_dictionaries(batch: pa.RecordBatch, encoding: Encoding) -> pa.RecordBatch:
    if not encoding.dictionaries:
        return batch
    fields, columns = list(batch.schema), list(batch.columns)
    for number, field in enumerate(batch.schema):
        encoded = dictionary_of(columns[number]) if field.name in encoding.dictionaries else None
        if encoded is not None:
            columns[number] = encoded
            fields[number] = field.with_type(encoded.type).with_metadata({**(field.metadata or {}), **DICTIONARY})
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def _stream_size(column: pa.Array, codec: Codec) -> int:
    """Return the number of bytes of a compressed stream that has only this column."""
    batch, sink = pa.RecordBatch.from_arrays([column], names=["_"]), pa.MockOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return int(sink.size())
