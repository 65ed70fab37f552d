"""Functions that make entries, and that read the entries of a block and check every byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark_ledger.ledger.client.block_reader import FrameBlock
from pyspark_ledger.ledger.message.entry import ParsedEntry, encode_entry, parse_entry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata, SingleMessageMetadata
from pyspark_ledger.ledger.segment.reader import SegmentBlock, iter_frames
from pyspark_ledger.ledger.transport.mapped_block import read_block


def entry(payload: bytes, *, rows: int = 1, run: int = 0, **fields: Any) -> bytes:
    """Return an entry of one message, or of a batch of `rows`, in transaction `run`. `fields` go into its metadata."""
    said: dict[str, Any] = {"producer_name": "p", "sequence_id": 0, "publish_time": 1}
    if rows != 1:
        said["num_messages_in_batch"] = rows
    if run:
        said |= {"txnid_most_bits": 7, "txnid_least_bits": run}
    return b"".join(encode_entry(MessageMetadata(**said | fields), payload))


def item(value: bytes, more: bytes = b"", **fields: Any) -> bytes:
    """Return a message of a batch: its metadata, the bytes `more` after the metadata, and its value."""
    head = SingleMessageMetadata(payload_size=len(value), **fields).SerializeToString() + more
    return len(head).to_bytes(4, "big") + head + value


def chunk(payload: bytes, number: int, count: int, uuid: str, total: int, producer: str = "p") -> bytes:
    """Return chunk `number` of the `count` chunks of a message of `total` bytes."""
    of = {"uuid": uuid, "chunk_id": number, "num_chunks_from_msg": count, "total_chunk_msg_size": total}
    return entry(payload, producer_name=producer, **of)


def parsed(block: SegmentBlock | FrameBlock) -> Iterator[tuple[str, ParsedEntry]]:
    """Yield the positions and entries of a block. An error names the block's file if the block is from a log."""
    of_log = isinstance(block, SegmentBlock)
    frames, file = (read_block(block), f" of {block.path}") if of_log else (block.frames, "")
    for entry_id, frame in iter_frames(frames, block.ledger_id, block.first_entry, block.entries):
        position = f"{block.ledger_id}:{entry_id}"
        yield position, parse_entry(frame, position + file)
