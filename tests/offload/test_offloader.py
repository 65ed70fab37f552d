"""Goal: objects are written as Pulsar writes them, are read back exactly, and damage is reported by name.

Method: Pulsar's test cases of its offloader, index and streams. Every field of every object is changed. The tests use a
directory and, once, a real S3 server.
"""

from __future__ import annotations

import struct
import threading
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.reader import iter_frames, walk_segment
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment
from pyspark_ledger.ledger.tiering.offloader import LocalSegment, OffloadCallbacks
from pyspark_ledger.offload.format.block_index import parse_index
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from pyspark_ledger.offload.reader import OffloadedSegmentReader
from pyspark_ledger.offload.verification import verify_objects
from streaming_examples.s3_server import S3Server
from tests.rigs.entry import entry
from tests.rigs.offload import BLOCK, HOUR, OffloadRig

EXTRA = {"ManagedLedgerName": "public/default/persistent/log", "pulsarClusterName": "store-1"}


def sealed(rig: OffloadRig, entries: int = 20, size: int = 60) -> tuple[LocalSegment, list[bytes]]:
    """Return a sealed segment of several blocks, and its payloads."""
    payloads = [bytes([number % 251]) * (size + number % 7) for number in range(entries)]
    rig.log(entries=entries).append([entry(payload) for payload in payloads]).result()
    rig.append(b"next", entries=entries)
    local = rig.store.ledger("log").prepare_offload(rig.ids()[0], OffloadAttempt(uuid.uuid4(), rig.copies.driver))
    assert local is not None
    return local, payloads


def offloaded(rig: OffloadRig, **rest: int) -> tuple[ObjectKey, list[bytes]]:
    local, payloads = sealed(rig, **rest)
    key = ObjectKey(uuid.uuid4(), local.ledger_id)
    rig.copies.offload(local, key.attempt, EXTRA)
    return key, payloads


def handle(rig: OffloadRig, key: ObjectKey) -> OffloadedSegmentReader:
    return rig.copies.read_offloaded(key.ledger_id, key.attempt, rig.copies.driver)


def payloads_of(ledger: OffloadedSegmentReader, first: int, entries: int) -> list[bytes]:
    frames = iter_frames(ledger.read(first, entries), ledger.ledger_id, first, entries)
    return [bytes(parse_entry(frame, f"entry {number}").payload) for number, frame in frames]


def spoil(rig: OffloadRig, key: str, at: int, value: bytes, metadata: dict[str, str] | None = None) -> None:
    """Change bytes of an object, and optionally its metadata."""
    found = rig.objects.get(key, 1 << 30)
    data = found.data[:at] + value + found.data[at + len(value) :]
    rig.objects.put(key, data, {**found.head.metadata, **(metadata or {})})


# testHappyCase, testOffloadAndRead (several blocks, byte-equal)
@pytest.mark.parametrize("where", ["directory", "s3"])
@pytest.mark.thorough
def test_what_was_offloaded_is_the_file_and_comes_back(
    request: pytest.FixtureRequest, make_rig: Callable[..., OffloadRig], where: str
) -> None:
    server: S3Server | None = request.getfixturevalue("s3_server") if where == "s3" else None
    rig = make_rig(request.getfixturevalue("bucket"), server.options) if server else make_rig()
    local, payloads = sealed(rig)
    attempt, told = uuid.uuid4(), list[int]()
    rig.copies.offload(local, attempt, EXTRA, OffloadCallbacks(told.append, lambda: False))
    key = ObjectKey(attempt, local.ledger_id)
    assert rig.stored() == [key.data_name, key.entries_name, key.index_name]
    data = rig.objects.get(key.data_name, 1 << 20).data
    assert data == local.path.read_bytes()
    assert told[-1] == len(data)
    ledger = handle(rig, key)
    assert payloads_of(ledger, 0, 20) == payloads
    assert (ledger.index(0, 20).rows() == local.index().rows()).all()


def test_the_objects_are_those_of_pulsars_offloader(rig: OffloadRig) -> None:
    local, _ = sealed(rig)
    key = ObjectKey(uuid.uuid4(), local.ledger_id)
    rig.copies.offload(local, key.attempt, EXTRA)
    raw = rig.objects.get(key.index_name, 1 << 20)
    index = parse_index(raw.data, "index")
    blocks = -(-local.file_bytes // BLOCK)
    assert [block.part_id for block in index.blocks] == list(range(1, blocks + 1))
    assert [block.offset for block in index.blocks] == [BLOCK * number for number in range(blocks)]
    assert (index.data_bytes, index.entries, index.metadata.length) == (local.file_bytes, 20, local.size_bytes)
    assert index.managed_ledger == "public/default/persistent/log"
    assert {pair.key for pair in index.metadata.customMetadata} >= {"application", "component", "pulsar/managed-ledger"}
    walked = walk_segment(local.path.read_bytes(), 0, where="data", entries=20)
    assert [(frame.entry_id) for frame in walked] == list(range(20))
    for name, role in ((key.data_name, "data"), (key.index_name, "index"), (key.entries_name, "entries")):
        said = rig.objects.head(name).metadata
        assert (said["role"], said["s3managedledgeroffloaderformatversion"]) == (role, "1")
        assert said["managedledgername"] == "public/default/persistent/log"
        assert said["pulsarclustername"] == "store-1"


# testBucketDoesNotExist
def test_a_bucket_that_does_not_exist_is_named(
    make_rig: Callable[..., OffloadRig], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SeaweedFS creates the bucket of a put, unlike S3. It refuses to begin an upload in parts.
    monkeypatch.setattr("pyspark_ledger.offload.upload._PARTS_PUT_WHOLE", 0)
    rig = make_rig("s3://never-made", s3_server.options)
    local, _ = sealed(rig)
    with pytest.raises(NotFound, match="never-made"):
        rig.copies.offload(local, uuid.uuid4(), EXTRA)


# testOffloadEmpty
def test_an_empty_ledger_is_refused(rig: OffloadRig) -> None:
    local, _ = sealed(rig)
    with pytest.raises(Corrupt, match="holds no entry"):
        rig.copies.offload(replace(local, entries=0), uuid.uuid4(), EXTRA)
    assert rig.stored() == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"entries": 19}, "holds 20 entries of"),
        ({"size_bytes": 7}, "the record says 20 of 7"),
        ({"file_bytes": 4096}, "the record says 4096"),
    ],
)
def test_a_ledger_that_is_not_what_its_record_says_never_leaves(
    rig: OffloadRig, wrong: dict[str, Any], message: str
) -> None:
    local, _ = sealed(rig)
    with pytest.raises(Corrupt, match=message):
        rig.copies.offload(replace(local, **wrong), uuid.uuid4(), EXTRA)
    assert rig.stored() == []


def test_a_ledger_that_is_damaged_here_is_never_called_offloaded(rig: OffloadRig) -> None:
    local, _ = sealed(rig)
    with local.path.open("r+b") as file:
        file.seek(int(local.index().offsets[3]) + 40)
        file.write(b"\xff")
    with pytest.raises(Corrupt, match=str(local.path)):
        rig.copies.offload(local, uuid.uuid4(), EXTRA)
    assert not [key for key in rig.stored() if key.endswith("-index")]


# testOffloadReadRandomAccess
@pytest.mark.parametrize("places", [True, False])
def test_random_reads_give_the_right_entries(make_rig: Callable[..., OffloadRig], places: bool) -> None:
    rig = make_rig(entry_index=places)
    key, payloads = offloaded(rig, entries=60)
    ledger = handle(rig, key)
    for first, entries in ((59, 1), (0, 1), (7, 20), (30, 5), (29, 31), (0, 60), (13, 1), (12, 2)):
        assert payloads_of(ledger, first, entries) == payloads[first : first + entries]


def test_a_small_read_fetches_what_it_needs_and_scans_no_block(make_rig: Callable[..., OffloadRig]) -> None:
    rig = make_rig(window_bytes=256)
    key, payloads = offloaded(rig, entries=60)
    ledger = handle(rig, key)
    ledger.index(0, 60)
    fetched: list[tuple[int, int]] = []
    real = ledger._store.get_range

    def counted(name: str, start: int, length: int) -> Any:
        fetched.append((start, length))
        return real(name, start, length)

    ledger._store.get_range = counted  # type: ignore[method-assign]
    assert payloads_of(ledger, 40, 1) == payloads[40:41]
    assert len(fetched) == 1
    assert fetched[0][1] < 200


def test_offsets_that_were_learned_are_kept(make_rig: Callable[..., OffloadRig]) -> None:
    rig = make_rig(entry_index=False, window_bytes=256)
    key, payloads = offloaded(rig, entries=60)
    ledger = handle(rig, key)
    assert payloads_of(ledger, 40, 1) == payloads[40:41]
    learned = rig.copies.windows.requests
    assert payloads_of(ledger, 40, 1) == payloads[40:41]
    assert rig.copies.windows.requests <= learned + 1


# testOffloadReadInvalidEntryIds
@pytest.mark.parametrize(("first", "entries"), [(-1, 1), (0, 21), (20, 1), (5, -3)])
def test_entries_that_are_not_there_are_refused_with_both_numbers(rig: OffloadRig, first: int, entries: int) -> None:
    key, _ = offloaded(rig)
    with pytest.raises(Refused, match="it has 0 to 19"):
        handle(rig, key).read(first, entries)


# testReadEOFException
def test_reading_again_from_the_start_after_the_end(rig: OffloadRig) -> None:
    key, payloads = offloaded(rig)
    ledger = handle(rig, key)
    assert payloads_of(ledger, 0, 20) == payloads
    assert payloads_of(ledger, 0, 1) == payloads[:1]


# testDeleteOffloaded
def test_deleting_deletes_all_of_an_attempt_and_nothing_else(rig: OffloadRig) -> None:
    local, _ = sealed(rig)
    keys = [ObjectKey(uuid.uuid4(), local.ledger_id) for _ in range(2)]
    for key in keys:
        rig.copies.offload(local, key.attempt, EXTRA)
    begun = rig.objects.begin_upload(keys[0].data_name)
    for _ in range(2):
        rig.copies.delete_offloaded(local.ledger_id, keys[0].attempt, rig.copies.driver)
    assert rig.stored() == [keys[1].data_name, keys[1].entries_name, keys[1].index_name]
    assert begun not in list(rig.objects.uploads())


# testReadUnknownDataVersion, testReadUnknownIndexVersion
@pytest.mark.parametrize("version", ["12345", "-12345", ""])
@pytest.mark.parametrize("name", ["data_name", "index_name"])
def test_a_version_that_is_not_known_is_named(rig: OffloadRig, name: str, version: str) -> None:
    key, _ = offloaded(rig)
    spoil(rig, getattr(key, name), 0, b"", {"s3managedledgeroffloaderformatversion": version})
    with pytest.raises(Unsupported, match=f"states format version {version or 'none'!r}, this code reads '1'"):
        handle(rig, key).read(0, 1)


# testReadWithAClosedLedgerHandler, testReadHandlerState
def test_a_reader_whose_windows_were_closed_says_so(rig: OffloadRig) -> None:
    key, _ = offloaded(rig)
    ledger = handle(rig, key)
    ledger.read(0, 1)
    rig.copies.windows.close()
    with pytest.raises(Unavailable, match="was closed"):
        ledger.read(0, 20)


def test_objects_that_are_gone_are_data_loss_and_named(rig: OffloadRig) -> None:
    key, _ = offloaded(rig)
    rig.objects.delete([key.data_name])
    with pytest.raises(DataLoss, match=key.data_name):
        handle(rig, key).read(0, 1)
    rig.objects.delete([key.index_name])
    with pytest.raises(DataLoss, match="was offloaded as"):
        handle(rig, key).read(0, 1)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"\0", "magic"),
        (4, struct.pack(">i", 7), "7 are stated"),
        (8, struct.pack(">q", 99), "99"),
        (16, struct.pack(">q", 64), "headers of 64"),
        (24, struct.pack(">i", 1000), "1000 blocks"),
        (28, struct.pack(">I", 2**31), "2147483648 bytes of metadata"),
    ],
)
def test_each_field_of_the_index_is_compared(rig: OffloadRig, at: int, value: bytes, message: str) -> None:
    key, _ = offloaded(rig)
    spoil(rig, key.index_name, at, value)
    with pytest.raises(Corrupt, match=message) as raised:
        handle(rig, key).read(0, 1)
    assert key.index_name in str(raised.value) or key.data_name in str(raised.value)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (BLOCK, b"\0\0\0\0", "magic"),
        (BLOCK + 4, struct.pack(">q", 127), "length of 127"),
        (BLOCK + 12, struct.pack(">q", 300), "block of 300 bytes"),
        (BLOCK + 20, struct.pack(">q", 77), "from entry 77"),
        (BLOCK + 28, b"\x01", "byte 28"),
        (BLOCK + 128, struct.pack(">I", 500), "500 bytes"),
        (BLOCK + 132, struct.pack(">q", 9), "frame of entry 9"),
    ],
)
def test_each_field_of_a_block_is_compared_where_there_are_no_places(
    make_rig: Callable[..., OffloadRig], at: int, value: bytes, message: str
) -> None:
    rig = make_rig(entry_index=False)
    key, _ = offloaded(rig)
    spoil(rig, key.data_name, at, value)
    with pytest.raises((Corrupt, DataLoss), match=message) as raised:
        handle(rig, key).index(0, 20)
    assert key.data_name in str(raised.value)


def test_padding_is_compared_when_the_places_are_made_anew(make_rig: Callable[..., OffloadRig]) -> None:
    rig = make_rig(entry_index=False)
    local, _ = sealed(rig)
    key = ObjectKey(uuid.uuid4(), local.ledger_id)
    rig.copies.offload(local, key.attempt, EXTRA)
    spoil(rig, key.data_name, BLOCK - 1, b"\x55")
    with pytest.raises(Corrupt, match="of the padding is 0x55"):
        handle(rig, key).index(0, 20)


@pytest.mark.parametrize("at", [0, 20, 1536, 2048, 2070, 2600])
def test_the_object_of_places_is_summed(rig: OffloadRig, at: int) -> None:
    key, _ = offloaded(rig)
    found = rig.objects.get(key.entries_name, 1 << 20).data[at]
    spoil(rig, key.entries_name, at, bytes([found ^ 0x41]))
    with pytest.raises(LedgerError, match=key.entries_name):
        handle(rig, key).read(0, 1)


@pytest.mark.parametrize("cut", [1, 100, 400])
def test_a_data_object_that_was_cut_is_refused_with_both_lengths(rig: OffloadRig, cut: int) -> None:
    key, _ = offloaded(rig)
    found = rig.objects.get(key.data_name, 1 << 20)
    rig.objects.put(key.data_name, found.data[:-cut], found.head.metadata)
    size = len(found.data)
    with pytest.raises(Corrupt, match=f"has {size - cut} bytes, its index says {size}"):
        handle(rig, key).read(0, 1)


def test_an_index_that_is_too_large_to_be_one_is_never_fetched(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = offloaded(rig)
    monkeypatch.setattr("pyspark_ledger.offload.reader.INDEX_BYTES_MAX", 100)
    with pytest.raises(Refused, match="at most 100 were expected"):
        handle(rig, key).read(0, 1)


def test_a_segment_that_was_transformed_for_its_upload_is_unsupported(rig: OffloadRig, tmp_path: Path) -> None:
    local, _ = sealed(rig)
    attempt = OffloadAttempt(uuid.uuid4(), rig.copies.driver)
    rig.copies.offload(local, attempt.attempt, EXTRA)
    segment = OffloadedSegment(local.ledger_id, attempt, lambda: rig.copies, lambda: True)
    segment.belongs_to(local.index, local.file_bytes)
    assert segment.read(0, 20)
    segment.belongs_to(local.index, local.file_bytes - 20)
    told = "an earlier version transformed it for its upload. Read it with that version"
    for read in (lambda: segment.read(0, 20), lambda: segment.index(0, 20)):
        with pytest.raises(Unsupported, match=told):
            read()
    other = replace(local, path=tmp_path / "copy", file_bytes=local.file_bytes - 20)
    with pytest.raises(Unsupported, match=told):
        verify_objects(rig.copies.store, ObjectKey(attempt.attempt, local.ledger_id), other, 0, EXTRA)


def test_an_attempt_goes_on_with_the_parts_that_are_there(rig: OffloadRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.offload.index_objects.PART_BYTES_MIN", BLOCK)
    rig.objects._part_bytes_min = 0  # type: ignore[attr-defined]
    local, payloads = sealed(rig)
    key = ObjectKey(uuid.uuid4(), local.ledger_id)
    begun = rig.objects.begin_upload(key.data_name, {"s3managedledgeroffloaderformatversion": "1", "role": "data"})
    rig.objects.put_part(begun, 2, local.path.read_bytes()[BLOCK : 2 * BLOCK], BLOCK)
    put: list[int] = []
    real = rig.objects.put_part

    def counted(upload: Any, number: int, *rest: Any) -> Any:
        put.append(number)
        return real(upload, number, *rest)

    rig.objects.put_part = counted  # type: ignore[method-assign]
    rig.copies.offload(local, key.attempt, EXTRA)
    assert 2 not in put
    assert 1 in put
    assert payloads_of(handle(rig, key), 0, 20) == payloads


def test_many_readers_of_one_ledger_share_what_was_fetched(make_rig: Callable[..., OffloadRig]) -> None:
    rig = make_rig(window_bytes=512, cache_bytes=1 << 20)
    key, payloads = offloaded(rig, entries=200)
    ledger = handle(rig, key)
    found: list[list[bytes]] = []

    def read() -> None:
        pieces = [payloads_of(ledger, first, 10) for first in range(0, 200, 10)]
        found.append([payload for piece in pieces for payload in piece])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [payloads] * 4
    assert rig.copies.windows.requests <= rig.objects.head(key.data_name).size // 512 + 8


def test_what_is_read_ahead_is_bounded(make_rig: Callable[..., OffloadRig]) -> None:
    rig = make_rig(window_bytes=4096, cache_bytes=16 * 1024)
    key, _ = offloaded(rig, entries=900, size=300)
    ledger = handle(rig, key)
    ledger.index(0, 900)
    tracemalloc.start()
    for first in range(0, 900, 5):
        ledger.read(first, 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 180_000, "two thirds of the entries"
    assert len(rig.copies.windows._windows) <= 4


def test_offloaded_ledger_is_read_where_its_record_says(rig: OffloadRig, tmp_path: Path) -> None:
    payloads = rig.fill(2)
    rig.offload()
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    rig.offloader = ObjectStoreOffloader(str(tmp_path / "elsewhere"), rig.options)
    rig.store.close()
    rig.store = rig._open()
    assert rig.contents() == payloads
    rig.offloader.close()
