"""Goal: direct segments in a store of a bucket survive the loss of the broker and its disk, a move, and damage.

Method: direct segments made by hand, a take-over at each moment of the index objects, views, moves, flipped bytes.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, Unavailable, Unsupported
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.message.entry import BrokerStamp, is_marker
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.direct_objects import direct_metadata
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata
from pyspark_ledger.offload.bucket.fetch import read_heads, read_part
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from pyspark_ledger.offload.home_verification import VerifiedHome, verify_home
from pyspark_ledger.offload.home_view import open_home_view
from pyspark_ledger.offload.stored_blocks import BlockFetcher
from tests.rigs.bucket_store import BLOCK, BucketRig, append, log, numbered, offload
from tests.rigs.direct import commit_direct, direct_part
from tests.rigs.entry import parsed

Found = tuple[str, BrokerStamp | None, bytes]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options())
    yield rig
    rig.close()


def filled(rig: BucketRig) -> BucketStore:
    """Return a broker whose log has appends, two direct segments, and appends."""
    broker = rig.host("first")
    append(broker, numbered(5))
    commit(rig, broker, 1, [numbered(30, 100), numbered(40, 200)])
    append(broker, numbered(5, 300))
    return broker


def commit(rig: BucketRig, broker: BucketStore, batch: int, groups: list[list[bytes]]) -> list[int]:
    sized = [[value.ljust(150, b".") for value in group] for group in groups]
    parts = [direct_part(rig.directory, batch, group, BLOCK, rows=3) for group in sized]
    return commit_direct(broker.store, rig.offloaders[-1], batch, parts)


def entries(store: Store, name: str = "log") -> list[Found]:
    """Return each entry that a reader of the log gets, with the markers."""
    ledger = store.ledger(name)
    blocks = ledger.blocks(PositionRange(ledger.snapshot.start, ledger.snapshot.end), 700)
    return [(position, each.stamp, bytes(each.payload)) for block in blocks for position, each in parsed(block)]


def viewed(rig: BucketRig) -> list[Found]:
    """Return each entry that a task of a read without a broker gets."""
    view = open_home_view(rig.address, rig.options)
    try:
        snapshot = view.ledger("log").snapshot
        request = ReadRequest("log", PositionRange(snapshot.start, snapshot.end), max_block_bytes=700)
        view.load_indexes([request])
        blocks = view.stored_blocks(request)
        found = []
        with BlockFetcher(rig.bucket, blocks) as fetcher:
            for block in (fetcher.fetch(number) for number in range(len(blocks))):
                found += [(place, each.stamp, bytes(each.payload)) for place, each in parsed(block)]
        assert found == [
            (place, each.stamp, bytes(each.payload))
            for block in view.read_blocks(request)
            for place, each in parsed(block)
        ]
        return found
    finally:
        view.close()


def by_objects(rig: BucketRig) -> list[Found]:
    """Return each entry that a reader of the objects alone gets, without the markers."""
    store = open_object_store(f"{rig.address}/segments", rig.options)
    (topic,) = read_catalogue(store).find("log")
    found_log = BucketLog(topic, read_heads(store, topic.segments))
    whole = PositionRange(found_log.start, found_log.end)
    found_log.require_whole(whole)
    parts = found_log.parts(whole, 2_000)
    found = [
        (f"{place.ledger_id}:{place.entry_id}", each.stamp, bytes(each.payload))
        for part in parts
        for place, each in read_part(store, part)
    ]
    store.close()
    return found


def data_keys(rig: BucketRig) -> list[str]:
    """Return the keys of the data objects of direct segments, in order."""
    store = open_object_store(f"{rig.address}/segments", rig.options)
    names = [found.key for found in store.objects() if ObjectKey.parse(found.key.removesuffix("-entries"))]
    data = [name for name in names if not name.endswith(("-index", "-entries"))]
    direct = [name for name in data if "ledgerdirectepoch" in store.head(name).metadata]
    store.close()
    return sorted(direct, key=lambda name: int(name.rpartition("-")[2]))


def test_a_view_reads_direct_segments_with_and_without_index_objects(rig: BucketRig) -> None:
    broker = filled(rig)
    expected = entries(broker.store)
    assert [stamp.row_end for _, stamp, _ in expected if stamp] == (
        [*range(1, 6), *range(8, 96, 3), 95, *range(98, 216, 3), 215, *range(216, 221)]
    )
    assert viewed(rig) == expected
    broker.store.offloads.direct.put("log")
    assert viewed(rig) == expected


def test_another_broker_reads_direct_segments_and_puts_their_indexes(rig: BucketRig) -> None:
    expected = entries(filled(rig).store)
    rig.lose_disk("first")
    taken = rig.host("second")
    assert entries(taken.store) == expected
    assert not [key for key in rig.keys("segments/") if key.endswith("-index")]
    taken.store.offloads.direct.add_marked()
    taken.store.offloads.round()
    assert len([key for key in rig.keys("segments/") if key.endswith("-index")]) == 2
    assert not taken.store.ledger("log").lacks_indexes
    later = rig.host("third")
    assert not later.store.ledger("log").lacks_indexes
    assert entries(later.store) == expected


@pytest.mark.thorough
def test_indexes_are_put_in_order_and_before_a_later_upload(rig: BucketRig) -> None:
    broker = filled(rig)
    direct = [int(key.rpartition("-")[2]) for key in data_keys(rig)]
    put, real = list[int](), rig.offloaders[-1].put_indexes

    def failing(segment: Any, *rest: Any) -> None:
        if len(put) == 1:
            put.append(-1)
            raise Unavailable("the bucket is busy")
        real(segment, *rest)
        put.append(segment.ledger_id)

    rig.offloaders[-1].put_indexes = failing  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="busy"):
        broker.store.offloads.direct.put("log")
    assert put == [direct[0], -1]
    rows = [found for found in entries(broker.store) if found[0] not in markers(broker.store)]
    assert by_objects(rig) == [found for found in rows if segment_of(found) == direct[0]]
    broker.store.ledger("log").roll_over()
    offload(broker)
    assert put == [direct[0], -1, direct[1]]
    assert by_objects(rig) == rows


def segment_of(found: Found) -> int:
    return int(found[0].partition(":")[0])


def markers(store: Store) -> set[str]:
    """Return the positions of the markers of the log."""
    ledger = store.ledger("log")
    blocks = ledger.blocks(PositionRange(ledger.snapshot.start, ledger.snapshot.end), 700)
    return {place for block in blocks for place, each in parsed(block) if is_marker(each.metadata)}


def test_parts_without_an_index_are_neither_rows_nor_gaps(rig: BucketRig) -> None:
    broker = filled(rig)
    broker.store.ledger("log").roll_over()
    offload(broker)
    before = by_objects(rig)
    loser = direct_part(rig.directory, 9, [b"never committed"], BLOCK)
    for ledger_id in [*broker.store.metadata.segments.ledger_ids(), 1_000]:
        key = ObjectKey(uuid.uuid4(), ledger_id)
        extra = extra_metadata(broker.store.metadata, broker.store.ledger("log").name)
        rig.bucket.put(f"segments/{key.data_name}", loser.data, direct_metadata(extra, 1))
    assert by_objects(rig) == before


@pytest.mark.parametrize("between", [True, False])
def test_a_lost_block_index_is_a_gap_before_the_next_direct_segment(rig: BucketRig, between: bool) -> None:
    broker = rig.host("first")
    log(broker)
    for batch in range(1, 4):
        commit(rig, broker, batch, [numbered(8)])
        if between:
            append(broker, numbered(2))
            broker.store.ledger("log").roll_over()
    broker.store.offloads.direct.put("log")
    offload(broker)
    assert len(by_objects(rig)) == 24 + (6 if between else 0)
    keys = data_keys(rig)
    third = int(keys[2].rpartition("-")[2])
    found = 24 + (4 if between else 0)
    for name in (f"{keys[1]}-index", keys[1]):
        rig.bucket.delete([f"segments/{name}"])
        with pytest.raises(DataLoss, match=f"has {found + 24} rows before ledger {third}, the bucket has {found}"):
            by_objects(rig)


@pytest.mark.thorough
@pytest.mark.parametrize("indexed", [True, False])
def test_verification_reads_every_byte_of_a_direct_segment(rig: BucketRig, indexed: bool) -> None:
    broker = filled(rig)
    if indexed:
        broker.store.offloads.direct.put("log")
    name = broker.store.ledger("log").name
    assert verify(rig).entries[name] == len(entries(broker.store))
    key = f"segments/{data_keys(rig)[0]}"
    found = rig.bucket.get(key, 1 << 20)
    dice, starts = random.Random(int(indexed)), [frame.offset for frame in walk_segment(found.data, 1, where="it")]
    for at in [0, 8, 20, 27, *range(128, 200), *dice.sample(range(200, len(found.data)), 20)]:
        if any(start + FRAME_BYTES + 7 <= at < start + FRAME_BYTES + 15 for start in starts):
            continue  # the time of staging, which nobody reads
        damaged = bytearray(found.data)
        damaged[at] ^= 1 << dice.randrange(8)
        rig.bucket.put(key, bytes(damaged), found.head.metadata)
        with pytest.raises((Corrupt, Unsupported)) as raised:
            verify(rig)
        assert data_keys(rig)[0] in raised.value.message, at
    rig.bucket.put(key, found.data, found.head.metadata)
    assert verify(rig).entries[name] == len(entries(broker.store))


@pytest.mark.parametrize("suffix", ["-entries", "-index"])
def test_verification_names_a_wrong_or_missing_index_object(rig: BucketRig, suffix: str) -> None:
    broker = filled(rig)
    broker.store.offloads.direct.put("log")
    key = f"segments/{data_keys(rig)[1]}{suffix}"
    found = rig.bucket.get(key, 1 << 20)
    rig.bucket.put(key, found.data.replace(b"log", b"lOg"), found.head.metadata)
    if suffix == "-index":
        with pytest.raises(Corrupt, match=f"{key.removeprefix('segments/')} at .* differs from the index"):
            verify(rig)
    damaged = bytearray(found.data)
    damaged[-5] ^= 1
    rig.bucket.put(key, bytes(damaged), found.head.metadata)
    with pytest.raises(Corrupt, match=key.removeprefix("segments/")):
        verify(rig)
    rig.bucket.delete([key])
    with pytest.raises(DataLoss, match=key.removeprefix("segments/")):
        verify(rig)


@pytest.mark.parametrize("suffix", ["-entries", "-index"])
def test_verification_reads_index_objects_whose_put_is_not_recorded(
    rig: BucketRig, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = filled(rig)
    with monkeypatch.context() as killed:
        killed.setattr(ManagedLedger, "complete_indexes", lambda *_: None)
        broker.store.offloads.direct.put("log")
    assert verify(rig).without_index == 0
    key = f"segments/{data_keys(rig)[1]}{suffix}"
    found = rig.bucket.get(key, 1 << 20)
    damaged = bytearray(found.data)
    damaged[-5] ^= 1
    rig.bucket.put(key, bytes(damaged), found.head.metadata)
    with pytest.raises(Corrupt, match=key.removeprefix("segments/")):
        verify(rig)
    rig.bucket.delete([key])
    verify(rig)


def verify(rig: BucketRig) -> VerifiedHome:
    segments = open_object_store(f"{rig.address}/segments", rig.options)
    return verify_home(rig.bucket, segments, None, lambda *_: None)


def test_a_missing_or_wrong_data_object_is_an_error_that_names_it(rig: BucketRig) -> None:
    expected = entries(filled(rig).store)
    key = data_keys(rig)[0]
    found = rig.bucket.get(f"segments/{key}", 1 << 20)
    rig.lose_disk("first")
    taken = rig.host("second")
    rig.bucket.delete([f"segments/{key}"])
    with pytest.raises(DataLoss, match=key):
        entries(taken.store)
    rig.bucket.put(f"segments/{key}", found.data[:-1], found.head.metadata)
    with pytest.raises(Corrupt, match=rf"{key} has {len(found.data) - 1} bytes, .* {len(found.data)}"):
        entries(taken.store)
    rig.bucket.put(f"segments/{key}", found.data, {})
    with pytest.raises(Unsupported, match=f"{key} states format version 'none'"):
        entries(taken.store)
    rig.bucket.put(f"segments/{key}", found.data, found.head.metadata)
    assert entries(taken.store) == expected
