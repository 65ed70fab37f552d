"""Goal: no option is misread in silence. Method: every row of the table, every refusal by its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.bucket_options import BUCKET_OPTIONS
from connector.option_kinds import Option
from connector.options import OPTIONS, options_reference, read_options
from ledger.errors import Refused
from ledger.position import EARLIEST, LATEST, Position

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = {
    "path": "orders",
    "ledger": "orders",
    "store": "/srv/store",
    "tlsTrustCertsFilePath": "/etc/ca.pem",
    "tlsCertificateFilePath": "/etc/me.pem",
    "tlsKeyFilePath": "/etc/me.key",
    "authParams": "env:LEDGER_TOKEN",
    "subscription": "billing",
    "startingPosition": "3:17",
    "startingTimestamp": "1700000000000",
    "endingPosition": "4:0",
    "waitForLedger": "TRUE",
    "waitTimeoutMs": "5",
    "includeMetadata": "true",
    "columns": "id, name",
    "payloadSchema": "INT64",
    "rescuedDataColumn": "_rescued_data",
    "mergeSchema": "true",
    "table": "cursors",
    "ackMode": "explicit",
    "ackTimeout": "30s",
    "maxRedeliveries": "3",
    "action": "ack",
    "maxBytesPerTrigger": "64m",
    "maxRowsPerTrigger": "10",
    "minPartitionBytes": "1k",
    "targetPartitionBytes": "1g",
    "mapping": "off",
    "entryBytes": "1mb",
    "compression": "zstd",
    "createLedgers": "true",
    "txnAppId": "nightly",
    "txnVersion": "7",
    "commitTimeoutMs": "1000",
    "offload": "s3://bucket/prefix",
    "offloadMetadata": "stats.json",
    "offloadCluster": "east",
    "offloadScan": "none",
    "offloadEndpoint": "http://127.0.0.1:9000",
    "offloadRegion": "eu-central-1",
    "offloadPathStyle": "false",
    "offloadProfile": "reader",
    "offloadRole": "arn:aws:iam::123456789012:role/reader",
    "offloadRoleExternalId": "x1",
    "offloadBucketOwner": "123456789012",
    "credentialProvider": "module:function",
    "failOnDataLoss": "false",
    "endingTimestamp": "1700000000000",
}
# What an option needs beside it to have a meaning.
OF_BUCKETS = {option.name: {"offload": "s3://other"} for option in BUCKET_OPTIONS if option.name != "offload"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_changes_something_in_any_case(option: Option) -> None:
    sample = SAMPLES[option.name]
    beside = OF_BUCKETS.get(option.name, {})
    for key in (option.name, option.name.lower(), option.name.upper()):
        assert read_options({**beside, key: sample}) != read_options(beside)
    for use in option.uses:
        read_options({**beside, option.name: sample}, use)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_without_meaning_for_the_use_is_refused(option: Option) -> None:
    for use in {"batch read", "stream read", "batch write", "stream write"} - set(option.uses):
        with pytest.raises(Refused, match=f"{option.name}.*has no meaning for a {use}"):
            read_options({option.name: SAMPLES[option.name]}, use)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", " "),
        ("columns", "id,,name"),
        ("columns", "id,id"),
        ("startingPosition", "3-17"),
        ("startingPosition", "-1:0"),
        ("endingPosition", "earliest"),
        ("waitForLedger", "yes"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "5 potatoes"),
        ("maxBytesPerTrigger", "5bb"),
        ("maxRowsPerTrigger", "1.5"),
        ("ackMode", "always"),
        ("ackTimeout", "5 days"),
        ("ackTimeout", "25h"),
        ("ackTimeout", "-1"),
        ("action", "delete"),
        ("entryBytes", "1"),
        ("compression", "gzip"),
        ("mapping", "maybe"),
        ("startingTimestamp", "2024-01-01"),
    ],
)
def test_a_bad_value_is_named(key: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        read_options({key: value})
    assert key in str(refused.value)
    assert "expected" in str(refused.value)
    assert value in str(refused.value)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refused, match=r"unknown option 'startingOffset'.*startingPosition"):
        read_options({"startingOffset": "earliest"})
    with pytest.raises(Refused, match="a log keeps what was written"):
        read_options({"overwriteSchema": "true"})
    with pytest.raises(Refused, match="one load reads one ledger"):
        read_options({"paths": '["a","b"]'})


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(Refused, match="exclude each other"):
        read_options({"startingPosition": "earliest", "startingTimestamp": "5"})
    with pytest.raises(Refused, match=r"named twice.*'a'.*'b'"):
        read_options({"path": "a", "ledger": "b"})
    with pytest.raises(Refused, match=r"minPartitionBytes.*\(8388608\).*targetPartitionBytes.*\(1024\)"):
        read_options({"targetPartitionBytes": "1k"})


def test_options_of_a_bucket_belong_to_one_and_exclude_what_a_broker_does() -> None:
    for name in OF_BUCKETS:
        with pytest.raises(Refused, match=f"option '{name}' is given without 'offload'"):
            read_options({name: SAMPLES[name]})
    for name in ("store", "subscription", "mapping", "waitForLedger"):
        with pytest.raises(Refused, match=f"option '{name}' has no meaning with 'offload'"):
            read_options({"offload": "s3://bucket", name: SAMPLES[name]})
    with pytest.raises(Refused, match="'endingPosition' and 'endingTimestamp' exclude each other"):
        read_options({"offload": "s3://bucket", "endingPosition": "4:0", "endingTimestamp": "5"})


def test_an_application_is_named_by_both_its_options_or_by_none() -> None:
    assert read_options({}).application is None
    assert read_options({"txnAppId": "nightly", "txnVersion": "0"}).application == ("nightly", 0)
    with pytest.raises(Refused, match="'txnAppId' is given without 'txnVersion'"):
        assert read_options({"txnAppId": "nightly"}).application
    with pytest.raises(Refused, match="'txnVersion' is given without 'txnAppId'"):
        assert read_options({"txnVersion": "3"}).application


def test_values_and_sparks_own_options() -> None:
    read = read_options({"path": "orders", "checkpointLocation": "/c", "queryName": "q", "maxBytesPerTrigger": "64MB"})
    assert (read.ledger, read.max_bytes_per_trigger) == ("orders", 64 * 1024 * 1024)
    assert read.starting_position is None
    assert read.ending_position == LATEST
    assert read_options({"startingPosition": "Earliest"}).starting_position == EARLIEST
    assert read_options({"startingPosition": "3:17"}).starting_position == Position(3, 17)
    assert read_options({"compression": "none"}).compression is None


def test_the_reference_is_current() -> None:
    written = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == options_reference(), "run python -m connector.options > docs/options.md"
