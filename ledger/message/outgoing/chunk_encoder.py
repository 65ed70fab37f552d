"""Encoder of a message that is too large for one entry. Each entry has a part of the payload, a chunk. Pure functions.

An *entry* is the unit of storage: it has one message, a batch of messages, or a chunk.

    payload, compressed once   ├── chunk 0 ──┼── chunk 1 ──┼─ chunk 2 ─┤      `ChunkAssembler` joins the chunks

Rules
- Every chunk has the metadata of the whole message: sequence id, key, properties, times, schema version and the size
  before compression. Four fields are added: `uuid`, `num_chunks_from_msg`, `total_chunk_msg_size` and `chunk_id`.
- The format is Pulsar's. The uuid is the producer's name and the sequence id. The total size is the size of the
  compressed payload.
- All chunks have the same size, except the last, which may be smaller. This size is the limit of a chunk, or less if
  the metadata leave less room in an entry.
- A message that fits into one entry after compression has none of these fields.
- A message of more than `UNCOMPRESSED_BYTES_MAX` is refused, because no reader assembles it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.compression import UNCOMPRESSED_BYTES_MAX
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.message.outgoing.message import OutgoingMessage, ProducerMetadata, single_message
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

_AROUND_BYTES = 2 + 4 + 4  # the magic number, the checksum and the size of the metadata
_INT32_MAX = 2**31 - 1


def encode_chunks(
    envelope: ProducerMetadata,
    message: OutgoingMessage,
    publish_time_ms: int,
    *,
    entry_bytes_max: int,
    chunk_bytes_max: int,
) -> Iterator[list[Buffer]]:
    """Return an iterator over the entries of a message, in order: a single entry if the message fits into it.

    Raises Refused before the first entry if the metadata leave no room, or the message is too large for readers.
    """
    _require_readable(message.size)
    metadata, payload = single_message(envelope, message, publish_time_ms)
    _require_readable(len(payload))
    fits = _AROUND_BYTES + metadata.ByteSize() + len(payload) <= entry_bytes_max
    if fits and len(payload) <= chunk_bytes_max:
        return iter([encode_entry(metadata, payload)])
    metadata.uuid = f"{envelope.producer}-{message.sequence_id}"
    metadata.total_chunk_msg_size = len(payload)
    return _chunks(metadata, payload, min(chunk_bytes_max, _room(metadata, entry_bytes_max)))


def _require_readable(size: int) -> None:
    if size > UNCOMPRESSED_BYTES_MAX:
        raise Refused(
            f"a message has {size} bytes, readers assemble at most {UNCOMPRESSED_BYTES_MAX} from chunks",
            hint="Send smaller messages",
        )


def _room(metadata: MessageMetadata, entry_bytes_max: int) -> int:
    """Return the number of payload bytes that fit into an entry beside the largest metadata of a chunk."""
    largest = MessageMetadata()
    largest.CopyFrom(metadata)
    largest.num_chunks_from_msg = largest.chunk_id = _INT32_MAX
    around = _AROUND_BYTES + largest.ByteSize()
    if around >= entry_bytes_max:
        raise Refused(
            f"a message's key and properties take {around} bytes of each entry, an entry of this ledger holds at most "
            f"{entry_bytes_max}",
            hint="Put key and properties into the value, or create the ledger with larger blocks",
        )
    return entry_bytes_max - around


def _chunks(metadata: MessageMetadata, payload: bytes, size: int) -> Iterator[list[Buffer]]:
    view = memoryview(payload)
    metadata.num_chunks_from_msg = -(-len(view) // size)
    for number in range(metadata.num_chunks_from_msg):
        metadata.chunk_id = number
        yield encode_entry(metadata, view[number * size : (number + 1) * size])
