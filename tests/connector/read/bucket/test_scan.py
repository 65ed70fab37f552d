"""Goal: a topic of a bucket is read as exact rows, without a broker. Method: readers called directly, without a JVM.

The objects of `tests/fixtures/pulsar` were offloaded by a real Pulsar. The reference is the output of its own client.
Further objects have entries with columns, written by the offloader's code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.bucket.listing import LISTING
from pyspark_ledger.connector.read.bucket.scan import BucketScan
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata, encode_rows
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.objects.directory import DirectoryStore
from tests.ledger.message.test_fixtures_pulsar import (
    CHUNKED,
    ENCRYPTED,
    ENCRYPTED_KNOWN,
    READ_ALIKE,
    ROOT,
    TRANSACTIONS,
    expected,
    objects,
)
from tests.rigs.bucket import kafka_batch, marker, message, put_segment
from tests.rigs.scan import read_bucket as rows


def as_told(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in the form of the output of Pulsar's reader."""
    position, key = row["__position"], row["__orderingKey"]
    return {
        "place": (position["ledgerId"], position["entryId"], position["batchIndex"]),
        "topic": row["__topic"],
        "producer": row["__producer"],
        "sequenceId": row["__sequenceId"],
        "publishTime": _ms(row["__publishTime"]),
        "eventTime": _ms(row["__eventTime"]),
        "key": row["__key"],
        "orderingKeyB64": base64.b64encode(key).decode() if key is not None else None,
        "properties": row["__messageProperties"],
        "schemaVersionHex": row["__schemaVersion"].hex() if row["__schemaVersion"] is not None else None,
        "null": row["value"] is None,
        "size": len(row["value"] or b""),
        "sha256": hashlib.sha256(row["value"] or b"").hexdigest(),
        "brokerPublishTime": _ms(row["__brokerPublishTime"]) or None,
        "index": row["__index"],
    }


def _ms(time: Any) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)


def wanted(folder: str) -> list[dict[str, Any]]:
    topic = f"persistent://public/fx/{folder.replace('/partition-', '-partition-')}"
    found = []
    for one in expected(folder, objects(folder)):
        place = one["id"]
        words = {"topic": topic, "brokerPublishTime": None, "index": None, **one}
        words["place"] = (place["ledger"], place["entry"], place["batchIndex"])
        found.append(words)
    return found


@pytest.mark.parametrize("folder", [*READ_ALIKE, TRANSACTIONS, *CHUNKED])
def test_every_message_of_every_topic_is_a_row_as_pulsar_delivers_it(folder: str) -> None:
    name = f"public/fx/{folder.replace('/partition-', '-partition-')}"
    found = [as_told(row) for row in rows(ROOT / folder, name, includeMetadata="true", minPartitionBytes="20000")]
    assert found
    assert found == [{key: one[key] for key in found[0]} for one in wanted(folder)]


def test_json_of_a_real_python_client_is_read_by_its_own_schema() -> None:
    schemas = (ROOT / "52-py-json" / "schemas.json").read_text()
    found = rows(ROOT / "52-py-json", "public/fx/52-py-json", payloadSchema=schemas)
    assert [row["i"] for row in found] == list(range(20))
    assert [row["k"] for row in found[:4]] == [None, "1", None, "1"]
    assert [number for number, row in enumerate(found) if str(row["f"]) == "nan"] == [5]
    assert found[6]["d"] == float("inf")
    assert found[3]["inner"] == {"x": 3, "y": None}


def test_an_address_may_be_a_directory_or_a_file_url(tmp_path: Path) -> None:
    put_segment(tmp_path / "a bucket", 3, [message(0)])
    there = (tmp_path / "a bucket").as_uri()
    assert rows(there, "t") == rows(tmp_path / "a bucket", "t") == [{"value": b"value-0"}]
    assert [row["__messageId"] for row in rows(there, "t", includeMetadata="true")]


def test_partitions_are_read_together_or_alone(tmp_path: Path) -> None:
    whole = rows(ROOT / "09-partitioned", "public/fx/09-partitioned", includeMetadata="true")
    assert {row["__topic"][-1] for row in whole} == {"0", "1", "2"}
    alone = rows(ROOT / "09-partitioned", "public/fx/09-partitioned-partition-1", includeMetadata="true")
    assert alone == [row for row in whole if row["__topic"].endswith("1")]
    with pytest.raises(Refused, match="has 3 partitions here"):
        rows(ROOT / "09-partitioned", "public/fx/09-partitioned", startingPosition="47:0")


def test_payloads_become_columns_by_the_schemas_of_the_topic() -> None:
    found = rows(
        ROOT / "06-avro-evolution",
        "public/fx/06-avro-evolution",
        payloadSchema=str(ROOT / "06-avro-evolution" / "schemas.json"),
    )
    assert len(found) == len(rows(ROOT / "06-avro-evolution", "public/fx/06-avro-evolution"))
    assert "value" not in found[0]
    assert len(found[0]) > 1


def test_a_range_is_cut_by_position_and_by_time() -> None:
    folder, name = ROOT / "01-plain", "public/fx/01-plain"
    whole = rows(folder, name, includeMetadata="true")
    part = rows(folder, name, includeMetadata="true", startingPosition="9:10", endingPosition="9:30")
    assert part == whole[10:30]
    middle = _ms(whole[500]["__publishTime"])
    first = next(number for number, row in enumerate(whole) if _ms(row["__publishTime"]) >= middle)
    assert rows(folder, name, includeMetadata="true", startingTimestamp=str(middle)) == whole[first:]
    assert rows(folder, name, includeMetadata="true", endingTimestamp=str(middle)) == whole[:first]
    assert rows(folder, name, startingTimestamp=str(2**50)) == []
    with pytest.raises(Refused, match="begins at 9:30 and ends before it, at 9:10"):
        rows(folder, name, startingPosition="9:30", endingPosition="9:10")


def test_what_is_encrypted_is_refused_and_what_is_not_there_named() -> None:
    with pytest.raises(Unsupported, match="is encrypted with key 'fxkey'"):
        rows(ROOT / ENCRYPTED, f"public/fx/{ENCRYPTED}")
    with pytest.raises(NotFound, match="Did you mean 'public/fx/persistent/01-plain'"):
        rows(ROOT / "01-plain", "public/fx/01-plane")


KEYS = {
    "fxkey": f"file:{ROOT / ENCRYPTED_KNOWN / 'fxkey.pem'}",
    "eckey": f"file://{ROOT / ENCRYPTED_KNOWN / 'eckey.pem'}",
}


def encrypted_rows(**options: str) -> list[dict[str, Any]]:
    return rows(ROOT / ENCRYPTED_KNOWN, f"public/fx/{ENCRYPTED_KNOWN}", includeMetadata="true", **options)


def test_what_is_encrypted_is_opened_with_the_keys_that_are_given() -> None:
    found = [as_told(row) for row in encrypted_rows(cryptoKeys=json.dumps(KEYS), minPartitionBytes="20000")]
    ledgers = sorted({row["place"][0] for row in found})
    assert len(ledgers) == 3, "by RSA, by EC, and by either"
    assert found == [{key: one[key] for key in found[0]} for one in wanted(ENCRYPTED_KNOWN)]
    # Either key decrypts a message that was encrypted for both. The key's name does not matter.
    with_one = encrypted_rows(cryptoKeys=KEYS["eckey"], startingPosition=f"{ledgers[1]}:0")
    assert [as_told(row) for row in with_one] == [row for row in found if row["place"][0] in ledgers[1:]]


def test_what_no_key_opens_is_refused_or_rescued_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        Unsupported, match=r"entry \d+:0 in .* is encrypted with key 'fxkey', private keys were given for 'other'"
    ):
        encrypted_rows(cryptoKeys=json.dumps({"other": KEYS["fxkey"]}))
    with pytest.raises(Refused, match="is encrypted with key 'fxkey', and the given private key does not decrypt"):
        encrypted_rows(cryptoKeys=KEYS["eckey"])
    monkeypatch.setenv("EC_KEY", (ROOT / ENCRYPTED_KNOWN / "eckey.pem").read_text())
    found = encrypted_rows(cryptoKeys="env:EC_KEY", rescuedDataColumn="_rescued")
    lost = [json.loads(row["_rescued"]) for row in found if row["_rescued"]]
    assert 0 < len(lost) < len(found)
    assert {one["_reason"].partition("is ")[2][:28] for one in lost} == {"encrypted with key 'fxkey', "}
    without = encrypted_rows(rescuedDataColumn="_rescued")
    assert sum(row["_rescued"] is None for row in without) == 3, "what was sent in the clear"


def test_keys_are_named_and_never_shown(tmp_path: Path) -> None:
    secret = (ROOT / ENCRYPTED_KNOWN / "fxkey.pem").read_text()
    for given in (secret, json.dumps({"fxkey": secret}), "file:relative.pem", "{}", '{"": "env:K"}', "[1]"):
        with pytest.raises(Refused, match="option 'cryptoKeys'") as refused:
            encrypted_rows(cryptoKeys=given)
        assert secret[40:80] not in str(refused.value)
    for name, reference, error, said in (
        (
            "variable",
            "env:NO_SUCH_KEY",
            NotFound,
            "names variable 'NO_SUCH_KEY' for key '\\*', which is not set",
        ),
        ("file", f"file:{tmp_path}/none.pem", NotFound, "none.pem' for key '\\*', which cannot be read"),
        ("no key", f"file:{ROOT / ENCRYPTED_KNOWN / 'schemas.json'}", Refused, "is not a private key in PEM"),
    ):
        with pytest.raises(error, match=said):
            encrypted_rows(cryptoKeys=reference)
        assert name
    with pytest.raises(Refused, match="option 'cryptoKeys' is given without 'offload'"):
        read_options({"path": "t", "cryptoKeys": "env:K"})


def test_missing_entries_fail_the_read_or_are_left_out(tmp_path: Path) -> None:
    for ledger_id in (3, 4, 5):
        put_segment(tmp_path, ledger_id, [message(ledger_id * 10 + number) for number in range(3)])
    (gone,) = tmp_path.glob("*-ledger-4-index")
    gone.unlink()
    with pytest.raises(DataLoss, match=r"not in the bucket: 4:0 to the end \(.*-ledger-4 has no index object"):
        rows(tmp_path, "t")
    assert len(rows(tmp_path, "t", endingPosition="3:2")) == 2
    assert [row["value"] for row in rows(tmp_path, "t", failOnDataLoss="false")] == [
        f"value-{number}".encode() for number in (30, 31, 32, 50, 51, 52)
    ]


@pytest.mark.parametrize("batched", [{"num_messages_in_batch": 3}, {}])
def test_record_batches_of_kafka_are_unsupported_or_rescued(tmp_path: Path, batched: dict[str, int]) -> None:
    kafka = kafka_batch(1, checksum=False, **batched)
    put_segment(tmp_path, 3, [message(0, b"first"), kafka, message(2, b"last")])
    with pytest.raises(Unsupported, match=r"entry 3:1 .*stored by KoP with entry.format=kafka"):
        rows(tmp_path, "t")
    found = rows(tmp_path, "t", rescuedDataColumn="_bad")
    assert [row["value"] for row in found] == [b"first", None, b"last"]
    assert "entry.format=kafka" in found[1]["_bad"]


def columns_entry(number: int, batch: pa.RecordBatch) -> bytes:
    metadata = arrow_metadata("spark", number, 1_000 + number, batch.num_rows, 0, txn=(0, number + 1))
    return b"".join(bytes(part) for part in encode_entry(metadata, encode_rows([batch])))


def test_entries_of_columns_come_out_as_their_columns(tmp_path: Path) -> None:
    first = pa.record_batch({"id": pa.array(range(50)), "name": pa.array([f"n{i}" for i in range(50)])})
    later = first.append_column("more", pa.array([1.5] * 50))
    put_segment(tmp_path, 3, [columns_entry(0, first), marker(1, 1, commit=True)], block_bytes=4096)
    put_segment(tmp_path, 7, [columns_entry(2, later), marker(3, 3, commit=True)], block_bytes=4096)
    found = rows(tmp_path, "t")
    assert [row["id"] for row in found] == [*range(50), *range(50)]
    assert [row["more"] for row in found] == [None] * 50 + [1.5] * 50
    assert len(rows(tmp_path, "t", columns="name")[0]) == 1
    placed = rows(tmp_path, "t", includeMetadata="true", startingPosition="7:0")
    assert placed[49]["__position"] == {"ledgerId": 7, "entryId": 0, "batchIndex": 49}
    assert placed[49]["__producer"] == "spark"


def test_what_was_there_at_load_is_read_and_nobody_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_segment(tmp_path, 3, [columns_entry(0, pa.record_batch({"id": [1], "body": [bytes(2 * 1024 * 1024)]}))])
    fetched: list[int] = []
    get_range = DirectoryStore.get_range

    def counting(store: DirectoryStore, key: str, start: int, length: int) -> Any:
        fetched.append(length)
        return get_range(store, key, start, length)

    monkeypatch.setattr(DirectoryStore, "get_range", counting)
    source = LedgerSource({"offload": str(tmp_path), "path": "t"}, "0.1.0")
    schema = source.schema()
    assert max(fetched) == 256 * 1024, "the first bytes of a block tell its columns"
    put_segment(tmp_path, 5, [columns_entry(1, pa.record_batch({"id": [2], "body": [b""]}))])
    with monkeypatch.context() as nobody:
        nobody.setattr("pyspark_ledger.connector.read.bucket.scan.BucketListing", None)
        reader = pickle.loads(pickle.dumps(source)).batch_reader(schema)  # noqa: S301 — as Spark does
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [batch.column("id").to_pylist() for batch in batches] == [[1]]
    assert [row["id"] for row in rows(tmp_path, "t")] == [1, 2]


def test_without_a_name_the_bucket_is_listed(tmp_path: Path) -> None:
    put_segment(tmp_path, 3, [message(0), message(1)])
    lost = put_segment(tmp_path, 4, [message(2)])
    (tmp_path / lost.index_name).unlink()
    source = LedgerSource({"offload": str(tmp_path)}, "0.1.0")
    reader = source.batch_reader(source.schema())
    (part,) = reader.partitions()
    (batch,) = reader.read(part)
    assert batch.schema == LISTING
    lines = {line["ledgerId"]: line for line in batch.to_pylist()}
    assert lines[3]["state"] == "complete"
    assert (lines[3]["topic"], lines[3]["entries"], lines[3]["blocks"]) == ("public/default/persistent/t", 2, 1)
    assert "has no index object" in lines[4]["state"]
    with pytest.raises(Refused, match="a stream needs a ledger"):
        source.stream_reader(source.schema())
    with pytest.raises(Refused, match="a bucket can only be read"):
        source.batch_writer(source.schema(), overwrite=False)


class Limit:
    """Read limit that Spark passes for Trigger.AvailableNow and Trigger.Once."""


def stream(directory: Path, **options: str) -> LedgerStreamReader:
    given = {"offload": str(directory), "path": "t", **options}
    source = LedgerSource(given, "0.1.0")
    return source.stream_reader(source.schema())


def batches(
    reader: LedgerStreamReader, start: dict[str, Any], most: int = 99
) -> tuple[list[list[bytes]], dict[str, Any]]:
    """Return the values of each batch until the stream is at its end, and the last offset."""
    found = []
    for _ in range(99):
        end = reader.latestOffset(start, Limit())
        if end == start:
            break
        again = stream_of(reader)
        assert [p.value for p in again.partitions(start, end)] == [p.value for p in reader.partitions(start, end)]
        values = [
            value.as_py()
            for part in reader.partitions(start, end)
            for batch in reader.read(part)
            for value in batch.column("value")
        ]
        found.append(values)
        start = end
    return found, start


def stream_of(reader: LedgerStreamReader) -> LedgerStreamReader:
    """Return a reader as another process has it, with a new planner."""
    other = LedgerStreamReader(reader._options, reader._plan)
    other._ignored_start = reader._ignored_start
    return other


def test_a_stream_admits_batches_and_goes_on_with_what_is_offloaded_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = [f"value-{number}".encode() for number in range(12)]
    put_segment(tmp_path, 3, [message(number) for number in range(7)], block_bytes=400)
    reader = stream(tmp_path, maxRowsPerTrigger="3")
    found, end = batches(reader, reader.initialOffset())
    assert found == [values[:3], values[3:6], values[6:7]]
    assert reader.latestOffset(end, Limit()) == end
    put_segment(tmp_path, 5, [message(number) for number in range(7, 12)], block_bytes=400)
    found, end = batches(reader, end)
    assert found == [values[7:10], values[10:12]]
    later = stream(tmp_path, startingPosition="latest")
    assert batches(later, end)[0] == []
    assert [record.getMessage() for record in caplog.records] == [
        "the query continues from its checkpoint: option startingPosition is ignored"
    ]
    later = stream(tmp_path, startingPosition="earliest")
    assert batches(later, later.initialOffset())[0] == [values]
    assert len(caplog.records) == 1


def test_a_stream_of_another_topic_is_refused(tmp_path: Path) -> None:
    put_segment(tmp_path, 3, [message(0)])
    reader = stream(tmp_path, failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, Limit())
    elsewhere = json.loads(json.dumps(end).replace("/t", "/another"))
    for plan in (lambda: reader.latestOffset(elsewhere, Limit()), lambda: reader.partitions(start, elsewhere)):
        with pytest.raises(DataLoss, match=r"has read .*/another, which is not a topic of .*t in "):
            plan()


def test_a_pinned_stream_ends_where_it_was_pinned(tmp_path: Path) -> None:
    put_segment(tmp_path, 3, [message(0), message(1)])
    reader = stream(tmp_path)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    put_segment(tmp_path, 5, [message(2)])
    found, end = batches(reader, start)
    assert found == [[b"value-0", b"value-1"]]
    assert batches(stream(tmp_path), end)[0] == [[b"value-2"]]


def test_a_stream_shares_its_limits_between_partitions(tmp_path: Path) -> None:
    for partition in (0, 1):
        entries = [message(number, f"{partition}{number}".encode()) for number in range(4)]
        put_segment(tmp_path, partition + 1, entries, topic=f"public/default/persistent/t-partition-{partition}")
    reader = stream(tmp_path, maxRowsPerTrigger="4")
    found, _ = batches(reader, reader.initialOffset())
    assert found == [[b"00", b"01", b"10", b"11"], [b"02", b"03", b"12", b"13"]]


def test_options_without_a_bucket_reach_no_reader() -> None:
    with pytest.raises(Refused, match="no bucket is named"):
        BucketScan(read_options({"path": "t"})).tasks()


def test_second_read_scans_only_objects_that_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = [message(0, txnid_most_bits=0, txnid_least_bits=1), marker(1, 1, commit=True)]
    put_segment(tmp_path, 3, first)
    put_segment(tmp_path, 4, [message(2)])
    assert [row["value"] for row in rows(tmp_path, "t")] == [b"value-0", b"value-2"]
    assert "the entry heads of 2 segments" in caplog.text
    caplog.clear()
    assert [row["value"] for row in rows(tmp_path, "t")] == [b"value-0", b"value-2"]
    assert "the entry heads" not in caplog.text
    key = put_segment(tmp_path, 3, [first[0], marker(1, 1, commit=False)])
    os.utime(tmp_path / key.data_name, (2_000_000_000, 2_000_000_000))
    assert [row["value"] for row in rows(tmp_path, "t")] == [b"value-2"]
    assert "the entry heads of 1 segments" in caplog.text
