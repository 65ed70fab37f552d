"""Goal: readers on the broker's host map blocks that were fetched from object storage once, a few blocks at a time.
If shared memory is missing, full or deleted, readers get the same bytes.

Method: segments in objects only, mapped as readers map them. Then a broker process with a cache that is too small,
under load of processes that compare every byte.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks
from pyspark_ledger.ledger.client.block_reader import FrameBlock, block_of
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.message.entry import encode_entry, parse_entry
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger, StopBroker
from pyspark_ledger.ledger.protocol.cache import AskCache
from pyspark_ledger.ledger.protocol.reads import BlockPlace, ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.cache_invariants import check_cache
from tests.rigs.deadline import wait_until
from tests.rigs.entry import parsed
from tests.rigs.offload import HOUR, OffloadRig

NAME = "public/default/persistent/log"
SHM = Path("/dev/shm")  # noqa: S108 — the directory of blocks


class SharedLog:
    """Four segments of eight entries in object storage only, read by a reader that maps blocks."""

    def __init__(self, rig: OffloadRig, root: Path, **settings: int | str) -> None:
        self.payloads = rig.fill(4, entries=8, size=60)
        rig.offload()
        rig.now += 5 * HOUR
        rig.store.ledger("log").trim()
        self.now, self.rig, self.ids = 0, rig, rig.ids()
        self.shared = SharedBlocks.begin("store", 1, root)
        self.reads = CachedReads(
            Settings.of({"managedLedgerCacheEvictionTimeThresholdMillis": 10**6, **settings}),
            lambda: self.now,
            lambda name: rig.store.ledger(name).snapshot,
            shared=self.shared,
        )

    def range(self, first: int, end: int) -> PositionRange:
        return PositionRange(Position(self.ids[first // 8], first % 8), Position(self.ids[end // 8], end % 8))

    def places(self, reader: str, first: int, end: int) -> list[BlockPlace]:
        return self.reads.share(
            self.rig.store.ledger("log").blocks(self.range(first, end), 300), ReaderId(NAME, reader)
        )

    def mapped(self, reader: str, first: int, end: int) -> list[bytes]:
        """Map a whole range with repeated requests."""
        found = list[bytes]()
        while first + len(found) < end:
            places = self.places(reader, first + len(found), end)
            assert places
            found += [payload for place in places for payload in payloads_of(place)]
        return found


def payloads_of(place: BlockPlace) -> list[bytes]:
    return [bytes(entry.payload) for _, entry in parsed(block_of(place))]


@pytest.fixture
def make(rig: OffloadRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SharedLog]:
    monkeypatch.setattr("pyspark_ledger.ledger.broker.reads.offloaded_reads.UNIT_LEAST", 1)
    (tmp_path / "shm").mkdir()
    return lambda root=tmp_path / "shm", **settings: SharedLog(rig, root, **settings)


def test_readers_map_what_was_read_once(make: Callable[..., SharedLog]) -> None:
    log = make()
    for name in "ab":
        log.reads.follow(NAME, name, EARLIEST, 10**6)
        assert log.mapped(name, 0, 32) == log.payloads[:32]
    counted = log.reads.metrics()
    assert (counted.misses, counted.hits, counted.mapped_entries) == (32, 32, 64)
    assert counted.expected_reads == 0
    check_cache(log.reads.cache)


def test_a_few_blocks_are_answered_at_a_time(make: Callable[..., SharedLog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.broker.reads.shared_memory_reads._WINDOW_BYTES", 400)
    log = make()
    places = log.places("a", 0, 32)
    assert 0 < sum(place.entries for place in places) < 32
    assert log.mapped("a", 0, 32) == log.payloads[:32]


def test_what_was_answered_is_there_when_it_is_mapped_and_goes_then(make: Callable[..., SharedLog]) -> None:
    log = make()
    first = log.places("a", 0, 32)
    log.reads.change(Settings.of({"managedLedgerCacheSizeMB": 0}))  # everything is evicted
    counted = log.reads.metrics()
    assert counted.size_bytes == counted.lingering_bytes == sum(place.length for place in first) > 0
    assert [payload for place in first for payload in payloads_of(place)] == log.payloads[
        : sum(p.entries for p in first)
    ]
    log.now += 10_000
    log.reads._shared.expire()  # type: ignore[union-attr]
    gc.collect()
    log.reads.cache.expire()
    assert log.reads.cache.memory.pinned.size == 0
    with pytest.raises(NotFound):
        block_of(first[0])


@pytest.mark.parametrize("evicted", [True, False])
def test_blocks_are_sent_while_readers_pin_half_of_the_limit(
    make: Callable[..., SharedLog], monkeypatch: pytest.MonkeyPatch, *, evicted: bool
) -> None:
    """Test with the readers' blocks evicted from the cache, and with the blocks still cached."""
    monkeypatch.setattr("pyspark_ledger.ledger.cache.eviction.registry.MIB", 1600)
    log = make(managedLedgerCacheSizeMB=1)
    cache = log.reads.cache
    kept = [block_of(place) for first in range(0, 16, 2) for place in log.places("slow", first, first + 2)]
    if evicted:
        for size in (0, 1):
            log.reads.change(Settings.of({"managedLedgerCacheSizeMB": size}))
    log.now += 3000
    log.reads._shared.expire()  # type: ignore[union-attr]
    gc.collect()
    cache.expire()
    size = sum(block.frames.size for block in kept)
    assert cache.mapped_bytes() == size > 800
    assert (cache.memory.held, cache.memory.pinned.size) == ((0, size) if evicted else (size, 0))
    assert log.places("a", 0, 32) == []
    del kept
    gc.collect()
    assert log.places("a", 0, 32)
    assert log.reads.metrics().size_bytes <= 1600


def test_a_reader_that_keeps_all_it_reads_leaves_room_for_others(
    make: Callable[..., SharedLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.cache.eviction.registry.MIB", 1600)
    log = make(managedLedgerCacheSizeMB=1)
    kept = list[FrameBlock]()
    for number in range(32):
        kept += [block_of(place) for place in log.places("keeps", number, number + 1)]
        log.now += 3000
        log.reads._shared.expire()  # type: ignore[union-attr]
        assert log.reads.metrics().size_bytes <= 1600
    assert 4 < len(kept) < 12  # the rest was sent
    for name in "ab":
        log.reads.follow(NAME, name, EARLIEST, 10**6)
    before = log.reads.metrics()
    for name in "ab":
        for block in log.rig.store.ledger("log").blocks(log.range(24, 30), 300):
            log.reads.read(block, ReaderId(NAME, name))
            log.reads.served([block], ReaderId(NAME, name))
    after = log.reads.metrics()
    assert (after.misses - before.misses, after.hits - before.hits) == (6, 6)
    for block in kept:
        assert list(parsed(block))


@pytest.mark.parametrize("root", ["missing", "full"])
def test_without_shared_memory_blocks_are_sent(make: Callable[..., SharedLog], tmp_path: Path, root: str) -> None:
    where = tmp_path / root
    if root == "full":
        where.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(where)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("file systems can be mounted by root only")
    try:
        log = make(root=where)
        found = list[bytes]()
        while places := log.places("a", len(found), 32):
            found += [payload for place in places for payload in payloads_of(place)]
        assert len(found) < 32
        assert log.places("a", len(found), 32) == []
        rest = PositionRange(Position(log.ids[len(found) // 8], len(found) % 8), Position(log.ids[-1], 0))
        for block in log.rig.store.ledger("log").blocks(rest, 300):
            frames = log.reads.read(block, ReaderId(NAME, "a"))
            for entry_id, frame in iter_frames(frames, block.ledger_id, block.first_entry, block.entries):
                found.append(bytes(parse_entry(frame, str(entry_id)).payload))
        assert found == log.payloads[:32]
    finally:
        if root == "full":
            subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.fixture
def store(store_path: Path) -> Iterator[LedgerStore]:
    opened = connect(store_path, create=True)
    ours = f"ledger-{os.getuid()}-{opened.client.store_id}-*"
    yield opened
    assert len(list(SHM.glob(ours))) == 1
    opened.client.ask(StopBroker())
    until = time.monotonic() + 60
    while list(SHM.glob(ours)):  # a reader that ends releases its blocks
        assert time.monotonic() < until
        time.sleep(0.02)


def offloaded_notes(store: LedgerStore, objects: Path) -> Ledger:
    store.offload_to(objects)
    notes = store.ledger("notes")
    for number in range(300):
        notes.append([{"note": "x" * number}])
    notes.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    notes.offload(seal=True)
    notes.trim()
    return notes


@pytest.mark.thorough
def test_evicted_blocks_are_free_once_their_last_reader_is_gone(
    store: LedgerStore, store_path: Path, tmp_path: Path
) -> None:
    offloaded_notes(store, tmp_path / "objects")
    client = store.client
    blocks = list(client.read_blocks(ReadRequest("notes", PositionRange(EARLIEST, LATEST))))
    client.ask(ChangeSetting("managedLedgerCacheSizeMB", 0))
    pid = msgspec.json.decode((store_path / "broker.json").read_bytes())["pid"]

    def held() -> list[str]:
        links = list[str]()
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(str(path.readlink()))
        return [link for link in links if ".block" in link]

    wait_until(lambda: bool(held()) and all(link.endswith("(deleted)") for link in held()))
    del blocks
    gc.collect()
    wait_until(lambda: not held())


@pytest.mark.thorough
def test_mapped_blocks_of_readers_count_at_the_broker_after_a_killed_one(
    store: LedgerStore, store_path: Path, tmp_path: Path
) -> None:
    offloaded_notes(store, tmp_path / "objects")
    client = store.client
    blocks = list(client.read_blocks(ReadRequest("notes", PositionRange(EARLIEST, LATEST))))
    assert all(block.mapped for block in blocks)
    os.kill(msgspec.json.decode((store_path / "broker.json").read_bytes())["pid"], signal.SIGKILL)
    counted = client.ask(AskCache())
    assert counted.size_bytes == counted.lingering_bytes == sum(block.frames.size for block in blocks)
    assert len(list(SHM.glob(f"ledger-{os.getuid()}-{client.store_id}-*/*.block"))) == 0
    entries = [
        entry_id
        for block in blocks
        for entry_id, _ in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries)
    ]
    assert entries == list(range(300))
    del blocks
    gc.collect()
    wait_until(lambda: client.ask(AskCache()).lingering_bytes == 0)


@pytest.mark.thorough
def test_rows_that_are_kept_hold_no_block(store: LedgerStore, tmp_path: Path) -> None:
    """Test also rows whose payload happens to be aligned as Arrow requires."""
    notes, client = offloaded_notes(store, tmp_path / "objects"), store.client
    rows = notes.read()
    assert client.ask(AskCache()).mapped_entries == 300
    client.ask(ChangeSetting("managedLedgerCacheSizeMB", 0))
    wait_until(lambda: client.ask(AskCache()).lingering_bytes == 0)  # located blocks are pinned for two seconds
    assert [len(row["note"]) for row in rows.to_pylist()] == list(range(300))


HAMMER = """
import random, sys, zlib
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames
client, dice = connect(sys.argv[1]).client, random.Random(int(sys.argv[2]))
segment = client.ask(DescribeLedger("big")).segments[0]
mapped = 0
for _ in range(12):
    first = dice.randrange(segment.entries - 1)
    end = dice.randrange(first + 1, segment.entries)
    range_ = PositionRange(Position(segment.ledger_id, first), Position(segment.ledger_id, end))
    at = first
    for block in client.read_blocks(ReadRequest("big", range_, subscription=sys.argv[2])):
        for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
            assert entry_id == at
            payload = bytes(frame)[-400_000:]
            assert payload[:4] == at.to_bytes(4, "big")
            assert payload[4:8] == zlib.crc32(payload[8:]).to_bytes(4, "big")
            at += 1
        mapped += block.mapped
    assert at == end, (at, end)
print(mapped)
"""


STOPPING = """
import os, signal, sys, zlib
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames
client = connect(sys.argv[1]).client
kept = list(client.read_blocks(ReadRequest("big", PositionRange(EARLIEST, LATEST), max_block_bytes=1_000_000)))
os.kill(os.getpid(), signal.SIGSTOP)
at = 0
for block in kept:
    for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
        payload = bytes(frame)[-400_000:]
        assert payload[:4] == at.to_bytes(4, "big")
        assert payload[4:8] == zlib.crc32(payload[8:]).to_bytes(4, "big")
        at += 1
print(at, sum(block.frames.size for block in kept if block.mapped))
"""
_MB = 1024 * 1024


@pytest.fixture
def big(store: LedgerStore, store_path: Path, tmp_path: Path) -> LedgerStore:
    """A ledger of 48 MB in object storage, with a cache of 16 MiB."""
    store.offload_to(tmp_path / "objects")
    client = store.client
    client.ask(CreateLedger("big"))
    with client.producer("big") as producer:
        for number in range(120):
            body = os.urandom(399_992)
            payload = number.to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
            producer.append(
                *encode_entry(MessageMetadata(producer_name="p", sequence_id=number, publish_time=1), payload)
            )
    ledger = store.ledger("big")
    ledger.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    ledger.offload(seal=True)
    ledger.trim()
    assert not list((store_path / "ledgers").glob("*.ledger"))
    client.ask(ChangeSetting("managedLedgerCacheSizeMB", 16))
    return store


def hammering(store_path: Path, count: int) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen([sys.executable, "-c", HAMMER, str(store_path), str(seed)], stdout=subprocess.PIPE, text=True)
        for seed in range(count)
    ]


@pytest.mark.thorough
def test_processes_hammer_a_small_cache_and_compare_every_byte(big: LedgerStore, store_path: Path) -> None:
    client = big.client
    readers = hammering(store_path, 3)
    mapped = [reader.communicate(timeout=100)[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0, 0]
    assert sum(map(int, mapped)) > 0
    counted = client.ask(AskCache())
    assert counted.size_bytes - counted.lingering_bytes <= 16 * _MB
    wait_until(lambda: client.ask(AskCache()).lingering_bytes == 0)
    assert (
        sum(block.entries for block in client.read_blocks(ReadRequest("big", PositionRange(EARLIEST, LATEST)))) == 120
    )


@pytest.mark.thorough
def test_stopped_reader_keeps_its_bytes_and_leaves_others_the_rest(big: LedgerStore, store_path: Path) -> None:
    client = big.client
    command = [sys.executable, "-c", STOPPING, str(store_path)]
    stopped = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    _, status = os.waitpid(stopped.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    readers = hammering(store_path, 2)
    largest = 0
    while any(reader.poll() is None for reader in readers):
        largest = max(largest, client.ask(AskCache()).size_bytes)
        time.sleep(0.05)
    assert [reader.returncode for reader in readers] == [0, 0]
    for reader in readers:
        reader.communicate()
    counted = client.ask(AskCache())
    assert counted.hits > 0
    assert counted.lingering_bytes < 10 * _MB < counted.size_bytes
    # The limit, and for each of the two readers a block that is fetched and a block that is sent.
    assert largest <= (16 + 2 * 2 * 4) * _MB
    stopped.send_signal(signal.SIGCONT)
    entries, mapped = map(int, stopped.communicate(timeout=60)[0].split())
    assert entries == 120
    assert 4 * _MB < mapped <= 10 * _MB  # half of the limit, and the answer that exceeded it
    wait_until(lambda: client.ask(AskCache()).lingering_bytes == 0)
    blocks = client.read_blocks(ReadRequest("big", PositionRange(EARLIEST, LATEST)))
    assert all([block.mapped for block in blocks])  # noqa: C419 — one at a time, so no block is held
