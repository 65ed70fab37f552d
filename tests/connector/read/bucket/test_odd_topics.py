"""Goal: a topic's unusual messages are read as a Pulsar consumer gets them. Method: entries encoded by this file.

Cases
- interleaved chunks of two messages, with a repeated and a missing chunk
- a batch with a message that was compacted out
- replication markers
- empty keys and ordering keys
- a transaction without an end
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.compression import ZSTD, compress
from tests.rigs.bucket import marker, message, put_segment
from tests.rigs.entry import item
from tests.rigs.scan import read_bucket as rows

TOPIC = "public/fx/persistent/20-%C3%BCn%C3%AF+code%2Bplus%2525+x"
WHOLE = bytes(range(256)) * 40
PACKED = compress(ZSTD, WHOLE)
PARTS = (PACKED[:10], PACKED[10:20], PACKED[20:])


def chunk(name: str, number: int) -> bytes:
    said = {"uuid": name, "chunk_id": number, "num_chunks_from_msg": 3, "total_chunk_msg_size": len(PACKED)}
    return message(number, PARTS[number], compression=ZSTD, uncompressed_size=len(WHOLE), **said)


BATCH = (
    item(b"one", partition_key="a", sequence_id=5)
    + item(b"", compacted_out=True, partition_key="b")
    + item(b"", null_value=True, partition_key="c")
    + item(b"four", null_partition_key=True, ordering_key=b"")
)
FIRST = [
    message(0, b"\0", marker_type=10),
    message(1, BATCH, num_messages_in_batch=4),
    message(2, b"\0", marker_type=12),
    chunk("a", 0),
    chunk("b", 0),
    chunk("a", 1),
    chunk("a", 1),
    message(4, b"plain", partition_key="", ordering_key=b"\0", properties=[(f"k{i}", "v" * 1000) for i in range(99)]),
    message(5, b"of one chunk", uuid="c", chunk_id=0, num_chunks_from_msg=1, total_chunk_msg_size=12),
    message(6, b"delayed", deliver_at_time=2**62, replicated_from="west"),
]
LATER = [
    chunk("a", 2),
    chunk("b", 2),
    marker(3, 7, commit=False),
    message(7, b"open", txnid_most_bits=0, txnid_least_bits=8),
    message(8, b"behind"),
]
SEEN = [
    ((3, 1, 0), "a", b"one", None, 0),
    ((3, 1, 2), "c", None, None, 0),
    ((3, 1, 3), None, b"four", b"", 0),
    ((3, 7, -1), "", b"plain", b"\0", 99),
    ((3, 8, -1), None, b"of one chunk", None, 0),
    ((3, 9, -1), None, b"delayed", None, 0),
    ((4, 0, -1), None, WHOLE, None, 0),
]


@pytest.mark.parametrize(
    "name", ["public/fx/20-ünï code+plus%25 x", "persistent://public/fx/20-ünï code+plus%25 x", TOPIC]
)
def test_what_a_consumer_gets_is_a_row_and_nothing_else(tmp_path: Path, name: str) -> None:
    put_segment(tmp_path, 3, FIRST, topic=TOPIC, block_bytes=110_000)
    put_segment(tmp_path, 4, LATER, topic=TOPIC)
    found = [
        (
            tuple(row["__position"].values()), row["__key"], row["value"], row["__orderingKey"],
            len(row["__messageProperties"]),
        )
        for row in rows(tmp_path, name, includeMetadata="true")
    ]  # fmt: skip
    assert found == SEEN
    with pytest.raises(Refused, match="entry 3:3 is a chunk of a message, and option 'offloadScan' is 'none'"):
        rows(tmp_path, name, offloadScan="none")
