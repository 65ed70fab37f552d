"""Goal: no option is misread in silence. Method: every row of the table, every refusal by its words."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.options.bucket import ACCESS, BucketOptions
from pyspark_ledger.connector.options.option import Option, options_of
from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.options.positions import timestamps_json
from pyspark_ledger.connector.options.table import OPTIONS, options_reference
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST, Position

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = {
    "path": "orders",
    "ledger": "orders",
    "ledgers": "orders,clicks",
    "ledgersPattern": "orders-.*",
    "store": "/srv/store",
    "broker": "none",
    "tlsTrustCertsFilePath": "/etc/ca.pem",
    "tlsCertificateFilePath": "/etc/me.pem",
    "tlsKeyFilePath": "/etc/me.key",
    "authParams": "env:LEDGER_TOKEN",
    "subscription": "billing",
    "startingPosition": "3:17",
    "startingTimestamp": "1700000000000",
    "startingPositions": '{"orders": "3:17"}',
    "startingTimestamps": '{"orders": 1700000000000}',
    "endingPosition": "4:0",
    "endingTimestamp": "1700000000000",
    "endingPositions": '{"orders": "4:0"}',
    "endingTimestamps": '{"orders": 1700000000000}',
    "failOnDataLoss": "false",
    "waitForLedger": "TRUE",
    "waitTimeoutMs": "5",
    "includeMetadata": "true",
    "columns": "id, name",
    "payloadSchema": "INT64",
    "rescuedDataColumn": "_rescued_data",
    "deadLetterLedger": "dead",
    "mergeSchema": "true",
    "table": "cursors",
    "ackMode": "explicit",
    "ackTimeout": "30s",
    "maxRedeliveries": "3",
    "action": "ack",
    "maxBytesPerTrigger": "64m",
    "maxRowsPerTrigger": "10",
    "minRowsPerTrigger": "5",
    "maxTriggerDelay": "30s",
    "firstBatch": "everything",
    "minPartitionBytes": "1k",
    "targetPartitionBytes": "1g",
    "mapping": "off",
    "pacing": "false",
    "directReads": "off",
    "entryBytes": "1mb",
    "compression": "zstd",
    "createLedgers": "true",
    "txnAppId": "nightly",
    "txnVersion": "7",
    "repeatedBatches": "skip",
    "commitTimeoutMs": "1000",
    "history": "s3://bucket/table",
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
    "cryptoKeys": "env:PRIVATE_KEY",
}


def needed(option: Option, use: str = "batch read") -> dict[str, str]:
    """Options that an option requires in a use."""
    if option in options_of(BucketOptions) and option.name != "offload" and use.endswith("read"):
        return {"offload": "s3://other"}
    return {"minRowsPerTrigger": "1"} if option.name == "maxTriggerDelay" else {}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_changes_something_in_any_case(option: Option) -> None:
    sample = SAMPLES[option.name]
    for key in (option.name, option.name.lower(), option.name.upper()):
        assert read_options({key: sample, **needed(option)}) != read_options(needed(option))
    for use in option.uses:
        read_options({option.name: sample, **needed(option, use)}, use)


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
        ("ledgers", "a,,b"),
        ("ledgers", "a,public/default/a"),
        ("ledgersPattern", "a("),
        ("startingPositions", "3:17"),
        ("startingPositions", '{"orders": 3}'),
        ("startingPositions", "{}"),
        ("startingTimestamps", '{"orders": "yesterday"}'),
        ("failOnDataLoss", "no"),
        ("minRowsPerTrigger", "0"),
        ("maxTriggerDelay", "15 days"),
    ],
)
def test_a_bad_value_is_named(key: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        read_options({key: value})
    assert key in str(refused.value)
    assert "expected" in str(refused.value)
    assert value in str(refused.value)


def test_a_time_is_milliseconds_or_has_a_zone() -> None:
    texts = ("1795342500123", "2026-11-22T10:15:00.123Z", " 2026-11-22 11:15:00.123+01:00 ")
    for text in texts:
        read = read_options({"startingTimestamp": text, "endingTimestamps": json.dumps({"orders": text})})
        assert (read.starting_timestamp, [*read.ending_timestamps.values()]) == (1_795_342_500_123, [1_795_342_500_123])
    assert read_options({"endingTimestamp": texts[1]}).ending_timestamp == 1_795_342_500_123


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"startingTimestamp": "2026-11-22 10:15"},
            "time with its zone, 2026-11-22T10:15:00Z in UTC or 2026-11-22T10:15:00+01:00 with an offset",
        ),
        (
            {"endingTimestamps": '{"orders": "2026-11-22"}'},
            "expected for ledger 'orders' a time with its zone, 2026-11-22T00:00:00Z in UTC or",
        ),
        (
            {"endingTimestamp": "tomorrow"},
            "'tomorrow', expected milliseconds since 1970, or a time such as 2026-11-22T",
        ),
        ({"endingTimestamp": "2026-11-22T10:15:00.0001Z"}, "because the log stores milliseconds"),
        ({"startingTimestamp": "-1"}, "'-1', expected a time from 0 to 4611686018427387904 milliseconds since 1970"),
        ({"startingTimestamps": '{"orders": -1}'}, "expected for ledger 'orders' a time from 0 to"),
        ({"startingTimestamps": '{"orders": 1.5}'}, "'orders': 1.5 is invalid"),
        ({"startingTimestamps": '{"orders": true}'}, "expected for ledger 'orders' milliseconds since 1970"),
    ],
)
def test_a_time_that_is_none_is_refused_with_what_is_expected(given: dict[str, str], words: str) -> None:
    with pytest.raises(Refused) as refused:
        read_options(given)
    assert words in str(refused.value)


def test_the_json_of_times_is_built_from_what_an_option_takes() -> None:
    at = datetime(2026, 11, 22, 10, 15, tzinfo=UTC)
    built = timestamps_json({"a": 5, "b": at, "c": "2026-11-22T10:15:00Z"})
    assert built == '{"a": 5, "b": 1795342500000, "c": 1795342500000}'
    for bad, words in (
        (
            at.replace(tzinfo=None),
            "ledger 'a' is '2026-11-22 10:15:00', expected a time with its zone, 2026-11-22T10:15",
        ),
        (at.replace(microsecond=1), "because the log stores milliseconds"),
        ("noon", "the time of ledger 'a' is 'noon', expected milliseconds since 1970, or a time such as"),
        (-1, "expected a time from 0 to"),
    ):
        with pytest.raises(Refused) as refused:
            timestamps_json({"a": bad})
        assert words in str(refused.value)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refused, match=r"unknown option 'startingOffset'.*startingPosition"):
        read_options({"startingOffset": "earliest"})
    with pytest.raises(Refused, match=r"added or widened with .mergeSchema., and never replaced"):
        read_options({"overwriteSchema": "true"})
    with pytest.raises(Refused, match="Name several ledgers by option 'ledgers'"):
        read_options({"paths": '["a","b"]'})


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(Refused, match="exclude each other"):
        read_options({"startingPosition": "earliest", "startingTimestamp": "5"})
    for given, words in (
        ({"ledger": "a", "ledgers": "b,c"}, r"'ledger' \(a\) and 'ledgers' \(b,c\) exclude each other"),
        ({"path": "a", "ledgersPattern": "b.*"}, r"'ledger' \(a\) and 'ledgersPattern' \(b\.\*\) exclude each other"),
        ({"startingPositions": '{"a": "1:2"}', "startingTimestamps": '{"a": 5}'}, "in 'startingPositions' and in"),
        ({"endingPositions": '{"a": "earliest"}'}, "'endingPositions' is 'earliest' for .*/a, expected"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, r"'startingTimestamp' \(6\) is after .* \(5\)"),
        ({"minRowsPerTrigger": "6", "maxRowsPerTrigger": "5"}, r"'minRowsPerTrigger' \(6\) exceeds .* \(5\)"),
        ({"maxTriggerDelay": "1s"}, "'maxTriggerDelay' is given without 'minRowsPerTrigger'"),
        ({"table": "cursors", "ledgersPattern": "a.*"}, "'ledgersPattern' has no meaning with 'table'"),
        ({"table": "cursors", "columns": "cursor"}, "'columns' has no meaning with 'table'"),
    ):
        with pytest.raises(Refused, match=words):
            read_options(given)
    with pytest.raises(Refused, match=r"named twice.*'a'.*'b'"):
        read_options({"path": "a", "ledger": "b"})
    with pytest.raises(Refused, match=r"minPartitionBytes.*\(2048\).*targetPartitionBytes.*\(1024\)"):
        read_options({"minPartitionBytes": "2k", "targetPartitionBytes": "1k"})
    assert read_options({"targetPartitionBytes": "1k"}).min_partition_bytes == 1024  # which nobody had asked for
    assert read_options({"targetPartitionBytes": "1g"}).min_partition_bytes == 8 * 1024**2


def test_options_of_a_bucket_belong_to_one_and_exclude_what_a_broker_does() -> None:
    for option in options_of(BucketOptions)[1:]:
        given = {option.name: SAMPLES[option.name]}
        if option.key in ACCESS:
            assert read_options(given).direct is not None
            assert read_options({"directReads": "off", **given}).direct is None
            with pytest.raises(Refused, match=f"'{option.name}' has no meaning for 'directReads' = 'off' in the store"):
                LedgerSource({"store": "/srv/store", "path": "orders", "directReads": "off", **given}, "0").schema()
        else:
            with pytest.raises(Refused, match=f"option '{option.name}' is given without 'offload'"):
                read_options(given)
    for name in ("store", "subscription", "mapping", "waitForLedger", "ledgersPattern", "startingPositions"):
        with pytest.raises(Refused, match=f"option '{name}' has no meaning with 'offload'"):
            read_options({"offload": "s3://bucket", name: SAMPLES[name]})
    with pytest.raises(Refused, match=r"'endingPosition' .* and 'endingTimestamp' .* exclude each other"):
        read_options({"offload": "s3://bucket", "endingPosition": "4:0", "endingTimestamp": "5"})
    read = read_options({"offload": "s3://bucket", "endingTimestamp": "5", "failOnDataLoss": "false"}, "batch read")
    assert (read.bucket.ending_timestamp, read.bucket.fail_on_data_loss) == (5, False)
    for name in ("endingPosition", "endingTimestamp"):
        with pytest.raises(Refused, match=f"'{name}' has no meaning for a stream from a bucket"):
            read_options({"offload": "s3://bucket", name: SAMPLES[name]}, "stream read")


def test_a_path_of_pulsars_records_with_a_null_character_is_refused(tmp_path: Path) -> None:
    read = read_options({"offload": str(tmp_path), "offloadMetadata": "stats\0.json"}, "batch read")
    with pytest.raises(Refused, match=r"offloadMetadata.*U\+0000"):
        read.bucket.records()


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
    assert read.ending_position is None
    assert read.fail_on_data_loss
    assert read_options({"startingPosition": "Earliest"}).starting_position == EARLIEST
    assert read_options({"startingPosition": "3:17"}).starting_position == Position(3, 17)
    assert read_options({}).compression == "auto"


def test_what_one_use_only_makes_no_sense_of() -> None:
    for given, use, words in (
        ({"startingPosition": "latest"}, "batch read", "a batch read of all ledgers from 'latest' would be empty"),
        ({"startingPositions": '{"a": "latest"}', "path": "a"}, "batch read", "a batch read of .*/a from 'latest'"),
        ({"endingPosition": "latest"}, "stream read", "a stream that ends at 'latest' would be empty"),
        (
            {"ledgers": "a,b", "startingPosition": "1:2"},
            "stream read",
            "is 1:2, a position in one ledger; the read is of",
        ),
        (
            {"ledgers": "a,b", "endingPositions": '{"c": "1:2"}'},
            "batch read",
            "names ledger .*/c, the read is of .*/a, ",
        ),
        ({"ledgersPattern": "a.*", "startingTimestamps": '{"b": 1}'}, "batch read", "/b, the read is of ledgers like"),
    ):
        with pytest.raises(Refused, match=words):
            read_options(given, use)
    for given in (
        {"ledgersPattern": "a.*", "startingPositions": '{"a-partition-1": "1:2", "ab": "earliest"}'},
        {"path": "a", "startingTimestamps": '{"a-partition-0": 5}'},
    ):
        read_options(given, "stream read")


def test_values_of_several_ledgers_and_times() -> None:
    read = read_options({"ledgers": " orders , t/n/clicks ", "minRowsPerTrigger": "5", "maxTriggerDelay": "2M"})
    assert (read.ledgers, read.max_trigger_delay) == (("orders", "t/n/clicks"), 120_000)
    assert read.addressing().names == ("public/default/persistent/orders", "t/n/persistent/clicks")


def test_the_reference_is_current() -> None:
    written = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == options_reference(), "run python -m pyspark_ledger.connector.options.table > docs/options.md"


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.name != "table"], ids=lambda option: option.name
)
def test_a_value_of_ten_megabytes_is_measured_and_not_repeated(option: Option) -> None:
    with pytest.raises(Refused, match=f"option '{option.name}' has 10000000 characters, at most") as refused:
        read_options({option.name: "9" * 10_000_000})
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_value_that_is_no_unicode_is_refused_by_name(option: Option) -> None:
    with pytest.raises(Refused, match=f"option '{option.name}' is not valid Unicode"):
        read_options({option.name: "a\ud800b"})


def test_an_unknown_option_of_ten_megabytes_is_not_compared_with_others() -> None:
    with pytest.raises(Refused, match="of 10000000 characters") as refused:
        read_options({"x" * 10_000_000: "1"})
    assert len(str(refused.value)) < 3000


@pytest.mark.parametrize("name", ["targetPartitionBytes", "ackTimeout", "waitTimeoutMs"])
def test_a_number_of_thousands_of_digits_is_refused_by_what_is_expected(name: str) -> None:
    with pytest.raises(Refused, match=rf"option '{name}' is '9+'… \(4096 characters\), expected a "):
        read_options({name: "9" * 4096})


def test_options_of_access_belong_to_writes_too() -> None:
    given = {option.name: SAMPLES[option.name] for option in options_of(BucketOptions) if option.key in ACCESS}
    for use in ("batch write", "stream write"):
        read = read_options(given, use)
        assert read.direct is not None
        assert read.direct.s3().endpoint == SAMPLES["offloadEndpoint"]
        assert read.bucket is None


def test_async_progress_is_refused_by_name() -> None:
    assert read_options({"asyncProgressTrackingEnabled": "false"}) == read_options({})
    with pytest.raises(Refused, match="option 'asyncProgressTrackingEnabled' is 'true'"):
        read_options({"asyncprogresstrackingenabled": "true"})
