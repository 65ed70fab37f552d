"""Goal: what Apache Pulsar wrote is read as Pulsar reads it. Method: every entry and message of real objects.

`tests/fixtures/pulsar/README.md` says where they come from. Each message is compared in all that Pulsar's own
reader told of it, each raw entry by its hash.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.message.batch_decoder import Message, decode_messages
from pyspark_ledger.ledger.message.compression import NAMES, NONE
from pyspark_ledger.ledger.message.entry import ParsedEntry, entry_rows, is_marker, parse_entry
from pyspark_ledger.ledger.metadata.pulsar_value import compression_of, parse_ledger_info
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.segment.reader import walk_segment
from tests.rigs.pulsar_value import serialise_info

ROOT = Path(__file__).resolve().parents[2] / "fixtures" / "pulsar"
READ_ALIKE = (
    "01-plain",
    "02-lz4",
    "04-zlib",
    "06-avro-evolution",
    "09-partitioned/partition-0",
    "09-partitioned/partition-1",
    "09-partitioned/partition-2",
    "10-tombstones-delayed",
    "13-broker-entry-metadata",
    "14-java-mixed",
    "15-keyvalue-inline",
    "15-keyvalue-separated",
)
TRANSACTIONS, ENCRYPTED, ENCRYPTED_KNOWN = "11-transactions", "12-encrypted", "18-encrypted-known"
CHUNKED = ("19-chunks-small", "21-txn-mixed")


def lines(topic: str, name: str, ledger_ids: Collection[int]) -> list[dict[str, Any]]:
    """The JSON objects of a file that speak of these ledgers."""
    with gzip.open(ROOT / topic / name, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [record for record in records if record.get("id", record)["ledger"] in ledger_ids]


def objects(topic: str) -> dict[int, Path]:
    """Return the data objects of a topic by segment, in order, for which the expectations were made."""
    files = (ROOT / topic / "objects").glob("*-ledger-*[0-9]")
    found = {int(path.name.rpartition("-")[2]): path for path in files}
    assert found, topic
    return dict(sorted(found.items()))


def walk(topic: str) -> Iterator[tuple[int, int, memoryview]]:
    """Ledger id, entry id and bytes of every entry in the objects of a topic."""
    info = parse_ledger_info((ROOT / topic / "managed-ledger-info.bin").read_bytes(), topic)
    entries = {ledger.ledgerId: ledger.entries for ledger in info.ledgerInfo}
    for ledger_id, file in objects(topic).items():
        data = file.read_bytes()
        for frame in walk_segment(data, ledger_id, where=topic, entries=entries[ledger_id]):
            yield ledger_id, frame.entry_id, frame.entry


def entry_metadata(metadata: MessageMetadata) -> dict[str, Any]:
    """Return the metadata that the messages of an entry share, as the reader reported them."""
    told: dict[str, Any] = {"compression": NAMES[metadata.compression]}
    for name, field in (
        ("uncompressedSize", "uncompressed_size"),
        ("numMessagesInBatch", "num_messages_in_batch"),
        ("highestSequenceId", "highest_sequence_id"),
        ("deliverAtTime", "deliver_at_time"),
        ("txnMost", "txnid_most_bits"),
        ("txnLeast", "txnid_least_bits"),
    ):
        if metadata.HasField(field):
            told[name] = getattr(metadata, field)
    return told


def told(ledger_id: int, entry_id: int, parsed: ParsedEntry, message: Message) -> dict[str, Any]:
    """Describe a message in the words of Pulsar's reader, except for its topic."""
    value = b"" if message.value is None else bytes(message.value)
    batch_size = parsed.metadata.num_messages_in_batch if message.batch_index >= 0 else 0
    words = {
        "id": {
            "ledger": ledger_id,
            "entry": entry_id,
            "batchIndex": message.batch_index,
            "batchSize": batch_size,
        },
        "producer": message.producer,
        "sequenceId": message.sequence_id,
        "publishTime": message.publish_time,
        "eventTime": message.event_time,
        "hasKey": message.key is not None,
        "key": message.key,
        "orderingKeyB64": _base64(message.ordering_key),
        "properties": message.properties,
        "schemaVersionHex": None if message.schema_version is None else message.schema_version.hex(),
        "null": message.value is None,
        "size": len(value),
        "sha256": hashlib.sha256(value).hexdigest(),
        "entryMetadata": entry_metadata(parsed.metadata),
    }
    if message.key is not None:
        words |= {"keyIsBase64": message.key_is_base64, "keyBytesB64": _base64(message.key_bytes)}
    if message.broker_time is not None:
        words["brokerPublishTime"] = message.broker_time
    if message.index is not None:
        words["index"] = message.index
    return words


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def expected(topic: str, ledger_ids: Collection[int]) -> list[dict[str, Any]]:
    """Return the report of Pulsar's reader, without the topic, and check the values that it contains."""
    records = lines(topic, "expected.jsonl.gz", ledger_ids)
    for record in records:
        del record["topic"], record["id"]["partition"]
        record.setdefault("entryMetadata", {})
        if "payloadB64" in record:
            value = base64.b64decode(record.pop("payloadB64"))
            assert (len(value), hashlib.sha256(value).hexdigest()) == (record["size"], record["sha256"])
    return records


@pytest.mark.parametrize("topic", [*READ_ALIKE, TRANSACTIONS, ENCRYPTED])
def test_entries_are_byte_for_byte_those_of_the_ledger(topic: str) -> None:
    found = [
        {"ledger": ledger_id, "entry": entry_id, "len": len(entry), "sha256": hashlib.sha256(entry).hexdigest()}
        for ledger_id, entry_id, entry in walk(topic)
    ]
    records = lines(topic, "entries.jsonl.gz", objects(topic))
    assert found == [{key: record[key] for key in ("ledger", "entry", "len", "sha256")} for record in records]


@pytest.mark.parametrize("topic", READ_ALIKE)
def test_messages_are_those_that_pulsar_delivers(topic: str) -> None:
    found: list[dict[str, Any]] = []
    for ledger_id, entry_id, entry in walk(topic):
        parsed = parse_entry(entry, f"{ledger_id}:{entry_id}")
        messages = decode_messages(parsed, f"{ledger_id}:{entry_id}")
        assert len(messages) == entry_rows(parsed.metadata)
        found += (told(ledger_id, entry_id, parsed, message) for message in messages)
    wanted = expected(topic, objects(topic))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one == other


def test_markers_hold_no_message_and_committed_messages_are_all_there() -> None:
    found: dict[str, dict[str, Any]] = {}
    markers = aborted = 0
    for ledger_id, entry_id, entry in walk(TRANSACTIONS):
        parsed = parse_entry(entry, f"{ledger_id}:{entry_id}")
        messages = decode_messages(parsed, f"{ledger_id}:{entry_id}")
        assert len(messages) == entry_rows(parsed.metadata)
        if is_marker(parsed.metadata):
            assert not messages
            assert parsed.metadata.HasField("txnid_most_bits")
            markers += 1
            aborted += parsed.metadata.marker_type == 22
        for message in messages:
            words = told(ledger_id, entry_id, parsed, message)
            found[json.dumps(words["id"], sort_keys=True)] = words
    assert 0 < aborted < markers
    wanted = expected(TRANSACTIONS, objects(TRANSACTIONS))
    assert 0 < len(wanted) < len(found)
    for record in wanted:
        assert found[json.dumps(record["id"], sort_keys=True)] == record


def test_encrypted_entries_are_refused_by_the_name_of_their_key() -> None:
    entries = list(walk(ENCRYPTED))
    for ledger_id, entry_id, entry in entries:
        parsed = parse_entry(entry, f"{ledger_id}:{entry_id}")
        with pytest.raises(Unsupported, match=f"entry {ledger_id}:{entry_id} is encrypted with key 'fxkey'"):
            decode_messages(parsed, f"entry {ledger_id}:{entry_id}")
    assert len(entries) > 100


@pytest.mark.parametrize("topic", [*READ_ALIKE, TRANSACTIONS, ENCRYPTED])
def test_record_of_the_managed_ledger_is_written_as_it_was_read(topic: str) -> None:
    value = (ROOT / topic / "managed-ledger-info.bin").read_bytes()
    info = parse_ledger_info(value, topic)
    assert [ledger.ledgerId for ledger in info.ledgerInfo]
    assert parse_ledger_info(serialise_info(info), topic) == info
    if compression_of(value, topic) == NONE:
        assert serialise_info(info) == value
