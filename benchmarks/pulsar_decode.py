"""Decoding of batches of Pulsar's clients into Arrow columns, against a straightforward implementation.

The messages are those of a real topic (`tests/fixtures/pulsar/02-lz4`). They have keys, properties, event times, and
values of up to 500 bytes. They are put into LZ4 batches of 100, a million rows in all.

Ours starts with entries as in a segment, verifies their checksums, and returns the record batches for Spark. The base
starts with the same entries and does not verify them. It decodes metadata by `ParseFromString` and LZ4 by Arrow. For
each message it calls `ParseFromString`, and appends to a list for each column. After each 16 Ki rows it makes an array
of each list.

The result is the ratio for whole messages: value, key, times, properties and position. With `value` alone the base has
little to do, so the ratio of this case is printed under its own name.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa

from benchmarks.harness import Loop, compare
from pyspark_ledger.connector.rows.message_rows import PulsarRows
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.message.compression import LZ4, compress, decompress
from pyspark_ledger.ledger.message.entry import encode_entry, parse_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata, SingleMessageMetadata
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic
from tests.ledger.message.test_fixtures_pulsar import walk

ROWS = 1_000_000
PER_BATCH = 100
_DISTINCT = 100  # distinct batches, which are repeated
_ARRAY_ROWS = 16 * 1024
_VALUE = pa.schema([pa.field("value", pa.binary())])
_WHOLE = pa.schema([*_VALUE, *METADATA])
_PROPERTIES = METADATA.field("__messageProperties").type
_TIME = METADATA.field("__publishTime").type


def real_items() -> list[bytes]:
    """Return every message of the topic as encoded in its batch: size, metadata, value."""
    items = []
    for _, _, data in walk("02-lz4"):
        parsed = parse_entry(data, "fixture")
        plain = decompress(LZ4, parsed.payload, parsed.metadata.uncompressed_size, "fixture")
        at = 0
        for _ in range(parsed.metadata.num_messages_in_batch):
            start, head = at, int.from_bytes(plain[at : at + 4], "big")
            item = SingleMessageMetadata.FromString(plain[at + 4 : at + 4 + head])
            at += 4 + head + item.payload_size
            items.append(bytes(plain[start:at]))
    return items


def entries() -> list[bytes]:
    """Return a million messages in batches of 100."""
    items = real_items()
    made = []
    for number in range(_DISTINCT):
        plain = b"".join(items[(number * 37 + i) % len(items)] for i in range(PER_BATCH))
        metadata = MessageMetadata(
            producer_name="bench",
            sequence_id=number,
            publish_time=int(datetime.now(UTC).timestamp() * 1000),
            num_messages_in_batch=PER_BATCH,
            compression=LZ4,
            uncompressed_size=len(plain),
        )
        made.append(b"".join(bytes(part) for part in encode_entry(metadata, compress(LZ4, plain))))
    return made * (ROWS // PER_BATCH // _DISTINCT)


def ours(data: list[bytes], target: pa.Schema) -> Loop:
    """Decode through the connector."""
    topic = Topic.of("public/default/persistent/bench")
    shape = RowShape(schema_bytes(target), 1, rescues=False, raw=True)

    def loop() -> None:
        parsed = ((Position(1, number), parse_entry(entry, "entry")) for number, entry in enumerate(data))
        rows = sum(batch.num_rows for batch in PulsarRows(topic, shape).batches(parsed))
        _require(rows)

    return loop


def base(data: list[bytes], *, whole: bool) -> Loop:
    """Decode message by message."""

    def loop() -> None:
        _require(sum(len(columns[0]) for columns in _plainly(data, whole=whole)))

    return loop


def _plainly(data: list[bytes], *, whole: bool) -> Iterator[list[pa.Array]]:
    codec, lists = pa.Codec("lz4_raw"), _Lists()
    for entry_id, entry in enumerate(data):
        metadata = MessageMetadata()
        size = int.from_bytes(entry[6:10], "big")
        metadata.ParseFromString(entry[10 : 10 + size])
        plain = codec.decompress(entry[10 + size :], metadata.uncompressed_size, asbytes=True)
        at = 0
        for number in range(metadata.num_messages_in_batch):
            start = at + 4 + int.from_bytes(plain[at : at + 4], "big")
            item = SingleMessageMetadata()
            item.ParseFromString(plain[at + 4 : start])
            at = start + item.payload_size
            lists.values.append(plain[start:at])
            if whole:
                lists.add(metadata, item, entry_id, number)
        if len(lists.values) >= _ARRAY_ROWS:
            yield lists.arrays(whole=whole)
            lists = _Lists()
    if lists.values:
        yield lists.arrays(whole=whole)


class _Lists:
    """Lists of values, one per column."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._keys: list[str | None] = []
        self._published: list[int] = []
        self._events: list[int | None] = []
        self._properties: list[list[tuple[str, str]]] = []
        self._entries: list[int] = []
        self._numbers: list[int] = []

    def add(self, metadata: MessageMetadata, item: SingleMessageMetadata, entry_id: int, number: int) -> None:
        """Append the metadata of a message."""
        self._keys.append(item.partition_key if item.HasField("partition_key") else None)
        self._published.append(metadata.publish_time * 1000)
        self._events.append(item.event_time * 1000 if item.HasField("event_time") else None)
        self._properties.append([(pair.key, pair.value) for pair in item.properties])
        self._entries.append(entry_id)
        self._numbers.append(number)

    def arrays(self, *, whole: bool) -> list[pa.Array]:
        """Return one array per column."""
        columns = [pa.array(self.values, pa.binary())]
        if whole:
            columns += [
                pa.array(self._keys, pa.string()),
                pa.array(self._published, _TIME),
                pa.array(self._events, _TIME),
                pa.array(self._properties, _PROPERTIES),
                pa.array(self._entries, pa.int64()),
                pa.array(self._numbers, pa.int32()),
            ]
        return columns


def _require(rows: int) -> None:
    if rows != ROWS:
        message = f"{rows} rows were decoded of {ROWS}"
        raise RuntimeError(message)


def main() -> None:
    """Measure both cases. The last line is the ratio for whole messages."""
    data = entries()
    compare("pulsar_decode_value", ours(data, _VALUE), base(data, whole=False))
    compare("pulsar_decode", ours(data, _WHOLE), base(data, whole=True))


if __name__ == "__main__":
    main()
