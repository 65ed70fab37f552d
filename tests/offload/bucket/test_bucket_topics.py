"""Goal: every message that a real Pulsar offloaded is read from the objects as Pulsar's client delivered it.

Method: the objects of `tests/fixtures/pulsar` are read from a directory and from the S3 server. Every known field of
each message is compared. Reads are split into small parts, so parts begin inside batches, blocks and messages.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.errors import DataLoss, Unsupported
from pyspark_ledger.ledger.message.batch_decoder import decode_messages
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.segment.format import PADDING, BlockHeader, pack_header
from pyspark_ledger.offload.bucket.fetch import read_heads, read_part
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from pyspark_ledger.offload.bucket.topic_metadata import parse_records
from streaming_examples.s3_server import S3Server
from tests.ledger.message.test_fixtures_pulsar import ENCRYPTED, READ_ALIKE, ROOT, TRANSACTIONS, expected, told

TOPICS = [*READ_ALIKE, TRANSACTIONS]
SHORT = "c1394889-6f67-4121-b532-a486c007df48-ledger-44"


def topic_of(folder: str) -> str:
    return f"persistent://public/fx/{folder.replace('/partition-', '-partition-')}"


def opened(store: ObjectStore, name: str, *, scan: bool = True) -> BucketLog:
    (topic,) = read_catalogue(store).find(name)
    return BucketLog(topic, read_heads(store, topic.segments) if scan else {})


def messages(store: ObjectStore, log: BucketLog, part_bytes: int) -> list[dict[str, Any]]:
    found = []
    for part in log.parts(PositionRange(log.start, log.end), part_bytes):
        for position, entry in read_part(store, part):
            found += [
                told(position.ledger_id, position.entry_id, entry, one) for one in decode_messages(entry, str(position))
            ]
    return found


@pytest.mark.parametrize("part_bytes", [20_000, 64 * 1024 * 1024])
@pytest.mark.parametrize("folder", TOPICS)
def test_messages_of_a_directory_are_those_that_pulsar_delivers(folder: str, part_bytes: int) -> None:
    store = open_object_store(ROOT / folder)
    log = opened(store, topic_of(folder))
    wanted = expected(folder, [segment.ledger_id for segment in log.topic.segments])
    assert wanted
    assert messages(store, log, part_bytes) == wanted


@pytest.mark.thorough
def test_messages_of_a_bucket_are_those_of_the_directory(bucket: str, s3_server: S3Server) -> None:
    store = open_object_store(bucket, s3_server.options)
    for path in sorted(ROOT.rglob("*-ledger-*")):
        beside = path.with_name(f"{path.name}.meta.json")
        if beside.exists():
            said = open_object_store(path.parent).head(path.name).metadata
            store.put(path.name, path.read_bytes(), said)
    for folder in TOPICS:
        log = opened(store, topic_of(folder))
        wanted = expected(folder, [segment.ledger_id for segment in log.topic.segments])
        assert messages(store, log, 50_000) == wanted


def test_encrypted_messages_are_refused_by_the_name_of_their_key() -> None:
    store = open_object_store(ROOT / ENCRYPTED)
    log = opened(store, topic_of(ENCRYPTED))
    with pytest.raises(Unsupported, match="is encrypted with key 'fxkey'"):
        messages(store, log, 10**6)


@pytest.fixture
def short(tmp_path: Path) -> ObjectStore:
    """The objects of a topic whose offload stopped silently. The 10 MB of padding are generated here."""
    shutil.copytree(ROOT / "08-chunked" / "objects", tmp_path / "objects")
    begin = (ROOT / "08-chunked" / f"{SHORT}.begin").read_bytes()
    block = 5 * 1024 * 1024
    room = block - len(begin)
    empty = pack_header(BlockHeader(block, 1)) + PADDING * (block // 4 - 32)
    (tmp_path / "objects" / SHORT).write_bytes(begin + (PADDING * (room // 4 + 1))[:room] + empty)
    return open_object_store(tmp_path)


def test_entries_that_pulsar_lost_are_named_and_the_others_read(short: ObjectStore) -> None:
    log = opened(short, "public/fx/08-chunked")
    assert [(gap.ledger_id, gap.first, gap.end) for gap in log.topic.gaps] == [(44, 1, 7)]
    whole = PositionRange(log.start, log.end)
    with pytest.raises(
        DataLoss, match="6 entries of public/fx/persistent/08-chunked are not in the bucket: 44:1 to 44:6"
    ):
        log.require_whole(whole)
    log.require_whole(PositionRange(Position(44, 0), Position(44, 1)))
    wanted = [one for one in expected("08-chunked", [44, 45]) if one["id"]["entry"] == 0]
    assert messages(short, log, 10**6) == wanted
    assert messages(short, opened(short, "public/fx/08-chunked", scan=False), 10**6) == wanted


def test_what_pulsar_says_of_its_ledgers_makes_missing_ones_known(short: ObjectStore) -> None:
    for name in ("managed-ledger-info.bin", "internal-stats.json"):
        records = parse_records((ROOT / "08-chunked" / name).read_bytes(), name)
        (topic,) = read_catalogue(short).find("public/fx/08-chunked", records)
        assert [(gap.ledger_id, gap.first, gap.end) for gap in topic.gaps] == [(43, 0, 5), (44, 1, 7)]
