"""Effects of the options of a bucket and of a published table: objects in a folder, and requests to an S3 server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.connector.read.bucket.test_scan import ENCRYPTED_KNOWN, KEYS, ROOT
from tests.rigs.bucket import marker, message, put_segment
from tests.rigs.data_source import Given, OptionDrive, OptionDrives, World, said
from tests.rigs.published_history import publish_sealed, trim
from tests.rigs.recording_s3 import Request

S3 = {"offload": "s3://bucket"}
FOLDER = {"offload": "{folder}"}
OTHER = "http://other.localhost:{port}"
ROLE = "arn:aws:iam::123456789012:role/reader"


def segments(world: World, *ledgers: int, entries: int = 3, **how: Any) -> Path:
    """A folder with so many ledgers of topic `t`, whose values count from 0."""
    world.ledger(0)
    folder = Path(world.places["folder"])
    for place, ledger_id in enumerate(ledgers):
        messages = [message(entries * place + number) for number in range(entries)]
        put_segment(folder, ledger_id, messages, **how)
    return folder


def topic(world: World, given: Given) -> object:
    """The numbers of the values of topic `t`."""
    with world.patch.context() as patch:
        patch.chdir(world.folder)
        patch.delenv("LEDGER_STORE", raising=False)
        rows = said(lambda: world.rows({"store": "", "path": "t", **given}))
    return [int(row["value"].split(b"-")[1]) for row in rows] if isinstance(rows, list) else rows


def read(world: World, given: Given) -> object:
    segments(world, 3, 5)
    return topic(world, given)


def two_clusters(world: World, given: Given) -> object:
    folder = segments(world, 3)
    put_segment(folder, 4, [message(7)], cluster="other")
    return topic(world, given)


def transaction(world: World, given: Given) -> object:
    within = message(1, txnid_most_bits=0, txnid_least_bits=1)
    put_segment(segments(world), 3, [message(0), within, marker(2, 1, commit=True)])
    return topic(world, given)


def known_to_pulsar(world: World, given: Given) -> object:
    """A topic of which Pulsar knows one more ledger than the bucket has."""
    ledgers = [{"ledgerId": number, "entries": 3, "offloaded": True} for number in (3, 5, 7)]
    folder = segments(world, 3, 7)
    (folder / "stats.json").write_text(json.dumps({"ledgers": ledgers}))
    return topic(world, given)


def one_missing(world: World, given: Given) -> object:
    (gone,) = segments(world, 3, 5, 7).glob("*-ledger-5-index")
    gone.unlink()
    return topic(world, given)


def last_column(world: World, given: Given) -> object:
    segments(world, 3)
    return world.names({"store": "", "path": "t", **given})[-1]


def typed(world: World, given: Given) -> object:
    put_segment(segments(world), 3, [message(0, (7).to_bytes(8, "big"))])
    return world.rows({"store": "", "path": "t", **given})[0]["value"]


def tasks(world: World, given: Given) -> object:
    segments(world, 3, entries=50, block_bytes=1024)
    return world.tasks({"store": "", "path": "t", **given})


def first_batch(world: World, given: Given) -> object:
    """Return the rows of the first batch of a stream."""
    segments(world, 3, 5)
    source = world.source({"store": "", "path": "t", "startingPosition": "earliest", **given})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    return sum(batch.num_rows for part in parts for batch in reader.read(part))


def opened(world: World, given: Given) -> object:
    where = {"offload": str(ROOT / ENCRYPTED_KNOWN), "store": "", "path": f"public/fx/{ENCRYPTED_KNOWN}"}
    texts = {name: text.replace("{", "{{").replace("}", "}}") for name, text in given.items()}
    rows = said(lambda: world.rows({**where, **texts}))
    return len(rows) > 3 if isinstance(rows, list) else rows


def asked(show: Callable[[Request], object]) -> Callable[[World, Given], object]:
    """Return the shown part of the request that lists the objects of a bucket."""

    def observe(world: World, given: Given) -> object:
        world.s3.requests.clear()
        said(lambda: world.rows({"store": "", "path": "t", **given}))
        return show(world.s3.requests[-1])

    return observe


def external_id(world: World, given: Given) -> object:
    world.s3.requests.clear()
    said(lambda: world.rows({"store": "", "path": "t", **given}))
    return {found for request in world.s3.requests for found in parse_qs(request.body).get("ExternalId", [])}


def host(request: Request) -> tuple[str, bool]:
    return request.host.partition(":")[0], request.path.startswith("/bucket")


def published(world: World, given: Given) -> object:
    """Return the rows of a ledger whose sealed segments are in a table only: of a bounded read, and of a stream."""
    world.ledger(4, entries=1)
    name, store = world.places["name"], world.broker.store
    world.broker.record.write(store.path)
    publish_sealed(store.path, Path(world.places["folder"]), name)
    trim(store.path, name)
    return [sorted(world.numbers(given)), sorted(world.stream(given))]


ALL = list(range(6))
DRIVES: OptionDrives = {
    "startingPosition": [OptionDrive(read, ALL, {"5:1": ALL[4:]}, FOLDER)],
    "startingTimestamp": [OptionDrive(read, ALL, {"1004": ALL[4:], "1970-01-01 00:00:01.004Z": ALL[4:]}, FOLDER)],
    "endingPosition": [OptionDrive(read, ALL, {"5:1": ALL[:4]}, FOLDER)],
    "endingTimestamp": [OptionDrive(read, ALL, {"1004": ALL[:4], "1970-01-01 00:00:01.004Z": ALL[:4]}, FOLDER)],
    "failOnDataLoss": [OptionDrive(one_missing, "DataLoss", {"false": [0, 1, 2, 6, 7, 8]}, FOLDER)],
    "includeMetadata": [OptionDrive(last_column, "value", {"true": "__index"}, FOLDER)],
    "columns": [OptionDrive(last_column, "value", {"__topic": "__topic"}, FOLDER)],
    "rescuedDataColumn": [OptionDrive(last_column, "value", {"_rescued": "_rescued"}, FOLDER)],
    "payloadSchema": [OptionDrive(typed, (7).to_bytes(8, "big"), {"INT64": 7}, FOLDER)],
    "minPartitionBytes": [OptionDrive(tasks, 1, {"1": 4}, FOLDER)],
    "targetPartitionBytes": [OptionDrive(tasks, 4, {"1": 50}, {**FOLDER, "minPartitionBytes": "1"})],
    "maxRowsPerTrigger": [OptionDrive(first_batch, 6, {"4": 4}, FOLDER)],
    "maxBytesPerTrigger": [OptionDrive(first_batch, 6, {"1": 1}, FOLDER)],
    "offload": [OptionDrive(read, "NotFound", {"{folder}": ALL})],
    "offloadMetadata": [OptionDrive(known_to_pulsar, ALL, {"{folder}/stats.json": "DataLoss"}, FOLDER)],
    "offloadCluster": [OptionDrive(two_clusters, "Refused", {"other": [7], "c": [0, 1, 2]}, FOLDER)],
    "offloadScan": [OptionDrive(transaction, [0, 1], {"none": "Refused"}, FOLDER)],
    "cryptoKeys": [OptionDrive(opened, "Unsupported", {json.dumps(KEYS): True})],
    "offloadEndpoint": [OptionDrive(asked(host), ("localhost", True), {OTHER: ("other.localhost", True)}, S3)],
    "offloadRegion": [OptionDrive(asked(lambda r: r.region), "us-east-1", {"eu-north-1": "eu-north-1"}, S3)],
    "offloadPathStyle": [
        OptionDrive(
            asked(host),
            ("other.localhost", True),
            {"false": ("bucket.other.localhost", False)},
            {**S3, "offloadEndpoint": OTHER},
        )
    ],
    "offloadProfile": [OptionDrive(asked(lambda r: r.signed_by), "ENVIRONMENT", {"other": "PROFILE"}, S3)],
    "offloadRole": [OptionDrive(asked(lambda r: r.signed_by), "ENVIRONMENT", {ROLE: "ASSUMED"}, S3)],
    "offloadRoleExternalId": [OptionDrive(external_id, set(), {"x1": {"x1"}}, {**S3, "offloadRole": ROLE})],
    "offloadBucketOwner": [
        OptionDrive(
            asked(lambda r: r.headers.get("x-amz-expected-bucket-owner")), None, {"123456789012": "123456789012"}, S3
        )
    ],
    "credentialProvider": [
        OptionDrive(asked(lambda r: r.signed_by), "ENVIRONMENT", {"tests.rigs.recording_s3:keys_of": "PROVIDED"}, S3)
    ],
    "history": [OptionDrive(published, [[3], [3]], {"{folder}": [[0, 1, 2, 3]] * 2})],
}
