"""Objects in the format of Pulsar's offloader, made from any entries, for tests of their readers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LedgerMetadataFormat
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import KeyValue, MessageMetadata
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES, HEADER_BYTES, PADDING, BlockHeader, pack_header
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.offload.format.block_index import MANAGED_LEDGER, BlockIndex, IndexedBlock

_CHECKSUM_BYTES = 6
TOPIC = "public/default/persistent/t"


def message(number: int, payload: bytes = b"", **fields: object) -> bytes:
    """Return an entry of one message. `fields` are set in its metadata."""
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1_000 + number)
    for name, value in fields.items():
        if name == "properties":
            metadata.properties.extend(KeyValue(key=key, value=text) for key, text in value)  # type: ignore[attr-defined]
        else:
            setattr(metadata, name, value)
    return b"".join(bytes(part) for part in encode_entry(metadata, payload or f"value-{number}".encode()))


def kafka_batch(number: int, *, checksum: bool = True, **fields: object) -> bytes:
    """Return an entry that KoP stores: a record batch of Kafka. KoP writes no checksum."""
    entry = message(number, bytes(61), properties=[("entry.format", "kafka")], **fields)
    return entry if checksum else entry[_CHECKSUM_BYTES:]


def marker(number: int, run: int, *, commit: bool) -> bytes:
    """Return the entry that ends a transaction."""
    return message(number, b"\0", marker_type=21 if commit else 22, txnid_most_bits=0, txnid_least_bits=run)


def lay_down(entries: Sequence[bytes], block_bytes: int) -> tuple[bytes, list[IndexedBlock]]:
    """Return the bytes of a data object with these entries, and its blocks."""
    data, blocks, first = bytearray(), [], 0
    while first < len(entries):
        left = HEADER_BYTES + sum(FRAME_BYTES + len(entry) for entry in entries[first:])
        size, body, number = min(block_bytes, left), bytearray(), first
        while number < len(entries) and HEADER_BYTES + len(body) + FRAME_BYTES + len(entries[number]) <= size:
            body += FRAME.pack(len(entries[number]), number) + entries[number]
            number += 1
        assert number > first, "an entry is larger than a block"
        room = size - HEADER_BYTES - len(body)
        blocks.append(IndexedBlock(first, len(blocks) + 1, len(data)))
        data += pack_header(BlockHeader(size, first)) + body + (PADDING * (room // 4 + 1))[:room]
        first = number
    return bytes(data), blocks


def put_segment(
    directory: Path,
    ledger_id: int,
    entries: Sequence[bytes],
    *,
    topic: str = TOPIC,
    block_bytes: int = 64 * 1024 * 1024,
    cluster: str = "c",
    attempt: uuid.UUID | None = None,
    sidecar: bool = True,
) -> ObjectKey:
    """Write the data object and the index object. With `sidecar`, also write the metadata of both."""
    directory.mkdir(parents=True, exist_ok=True)
    data, blocks = lay_down(entries, block_bytes)
    metadata = LedgerMetadataFormat(
        quorumSize=1, ensembleSize=1, length=sum(map(len, entries)), lastEntryId=len(entries) - 1, state="CLOSED"
    )
    metadata.customMetadata.add(key=MANAGED_LEDGER, value=topic.encode())
    key = ObjectKey(attempt or uuid.uuid5(uuid.NAMESPACE_OID, f"{topic}/{ledger_id}"), ledger_id)
    (directory / key.data_name).write_bytes(data)
    (directory / key.index_name).write_bytes(BlockIndex(len(data), metadata, tuple(blocks)).encode())
    if sidecar:
        for name, role in ((key.data_name, "data"), (key.index_name, "index")):
            said = {"managedledgername": topic, "pulsarclustername": cluster, "role": role}
            said["s3managedledgeroffloaderformatversion"] = "1"
            (directory / f"{name}.meta.json").write_text(json.dumps({"key": name, "userMetadata": said}))
    return key
