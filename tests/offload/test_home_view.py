"""Goal: a view returns what the broker returns, and writes nothing. Method: random histories, races, a proxy."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.message.entry import is_marker, parse_entry
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import DeleteLedger, ListLedgers
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames
from pyspark_ledger.ledger.wal.bucket import log_key
from pyspark_ledger.ledger.wal.reader import WalReader
from pyspark_ledger.offload.home_view import HomeView, is_present, open_home_view
from pyspark_ledger.offload.stored_blocks import BlockFetcher
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_store import SMALL, BucketRig, append, cursor, log, numbered, offload, payloads
from tests.rigs.fault_proxy import FaultProxy

NAMES = ("log", "other", "slow")
CARRYING = dataclasses.replace(SMALL, objects_max=4)
STEPS = 25


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options())
    yield rig
    rig.close()


def view_of(rig: BucketRig) -> HomeView:
    return open_home_view(rig.address, rig.options)


def whole(view: HomeView, name: str = "log") -> ReadRequest:
    found = view.ledger(name)
    return ReadRequest(name, PositionRange(found.snapshot.start, found.snapshot.end), max_block_bytes=700)


def values(blocks: Any) -> list[bytes]:
    """The payloads of blocks, except for the markers of transactions."""
    entries = [
        parse_entry(frame, "an entry")
        for block in blocks
        for _, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries)
    ]
    return [bytes(entry.payload) for entry in entries if not is_marker(entry.metadata)]


def fetched(rig: BucketRig, view: HomeView, name: str = "log") -> list[bytes]:
    """The payloads of a ledger, read as a task reads them."""
    blocks = view.stored_blocks(whole(view, name))
    with BlockFetcher(rig.bucket, blocks) as fetcher:
        return values([fetcher.fetch(number) for number in range(len(blocks))])


def require_same(rig: BucketRig, broker: BucketStore, followed: HomeView | None = None) -> HomeView:
    """Compare the broker's store with a new view, or with a followed view. Return this view, advanced."""
    view = view_of(rig) if followed is None or not followed.advance() else followed
    names = broker.store.metadata.names()
    assert view.ask(ListLedgers()).names == names
    for name in names:
        assert values(view.read_blocks(whole(view, name))) == payloads(broker, name)
        assert fetched(rig, view, name) == payloads(broker, name)
        ours, theirs = view.ledger(name).snapshot, broker.store.ledger(name).snapshot
        assert (ours.start, ours.end, ours.rows, ours.trimmed) == (
            theirs.start,
            theirs.end,
            theirs.rows,
            theirs.trimmed,
        )
    return view


def step(rig: BucketRig, broker: BucketStore, dice: random.Random, number: int) -> BucketStore:
    """Change the store at random. Return its broker, which is another one after a take-over."""
    name = dice.choice(NAMES)
    kind = dice.choice(["append"] * 6 + ["seal", "upload", "collect", "collect", "take over", "delete", "trim"])
    if kind == "append" or name not in {known.rpartition("/")[2] for known in broker.store.metadata.names()}:
        append(broker, numbered(dice.randrange(1, 6), 100 * number), name, entries=1_000 if name == "slow" else 5)
    elif kind == "seal":
        broker.store.ledger(name).roll_over()
    elif kind == "upload":
        offload(broker, name)
    elif kind == "collect":
        broker.collector.collect()
    elif kind == "take over":
        return rig.host(f"host-{number}", limits=CARRYING)
    elif kind == "trim":
        broker.store.ledger(name).trim()
    elif name == "other":
        broker.store.delete_ledger(name)
    return broker


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.thorough
def test_view_of_a_random_history_equals_the_brokers_store(rig: BucketRig, seed: int) -> None:
    dice = random.Random(seed)
    broker = rig.host("first", limits=CARRYING)
    log(broker)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    broker.store.policies.change(ChangePolicy("log", False, nothing if seed % 2 else {}))
    followed = view_of(rig)
    for number in range(STEPS):
        broker = step(rig, broker, dice, number)
        if not dice.randrange(4):
            followed = require_same(rig, broker, followed)
        if number % 5 == 4:
            require_same(rig, broker).close()
    require_same(rig, broker, followed).close()


def test_view_covers_uploaded_sealed_open_and_empty_segments(rig: BucketRig) -> None:
    broker = rig.host()
    append(broker, numbered(9), entries=4)
    offload(broker)
    append(broker, numbered(7, 9), entries=4)
    log(broker, "empty")
    require_same(rig, broker)
    view = view_of(rig)
    kinds = {block.ranges[0].name.partition("/")[0] for block in view.stored_blocks(whole(view))}
    assert kinds == {"segments", "wal"}
    append(broker, [b"later"])
    assert b"later" not in values(view.read_blocks(whole(view))), "a view has one state"
    assert view.advance()
    assert values(view.read_blocks(whole(view)))[-1] == b"later"
    assert view.ask(AskLogStatuses(["nothing", "log"])).missing == ["public/default/persistent/nothing"]


def test_view_of_a_lost_race_with_the_collector_is_built_again(rig: BucketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = rig.host()
    append(broker, numbered(9), entries=3)
    offload(broker)
    fetch, rounds = WalReader.fetch, list[int]()

    def fetched_after_a_round(reader: WalReader, number: int) -> Any:
        if not rounds:
            rounds.append(number)
            broker.store.ledger("log").roll_over()
            offload(broker)
            broker.collector.collect()
            assert log_key(number) not in rig.keys("wal/")
        return fetch(reader, number)

    monkeypatch.setattr(WalReader, "fetch", fetched_after_a_round)
    view = view_of(rig)
    assert rounds
    assert values(view.read_blocks(whole(view))) == numbered(9)


def test_view_is_present_until_the_log_grows_or_growth_is_collected(rig: BucketRig) -> None:
    broker = rig.host()
    append(broker, numbered(3))
    view = view_of(rig)

    def present(end: int = view.end) -> bool:
        return is_present(rig.address, rig.options, view.store_id, end)

    assert present()
    assert not is_present(rig.address, rig.options, "another store", view.end)
    append(broker, numbered(6, 3), entries=3)
    assert not present()
    broker.store.ledger("log").roll_over()
    offload(broker)
    broker.collector.collect()
    assert log_key(view.end) not in rig.keys("wal/")
    assert not present(), "a missing object is no proof"
    assert present(view_of(rig).end)


def test_view_that_advances_ignores_an_object_in_a_collected_slot(rig: BucketRig) -> None:
    """A replaced broker puts its object into a slot whose object was collected. It never acknowledges the entry."""
    broker = rig.host()
    append(broker, numbered(3))
    view = view_of(rig)
    append(broker, numbered(6, 3))
    late = log_key(view.end)
    body = rig.bucket.get(late, 1 << 20).data
    broker.store.ledger("log").roll_over()
    offload(broker)
    broker.collector.collect()
    assert late not in rig.keys("wal/")
    rig.bucket.put(late, [body])
    assert not view.advance(), "the view is below the first live number"
    view.close()
    require_same(rig, broker).close()


def test_view_that_advances_notices_an_older_manifest(rig: BucketRig) -> None:
    broker = rig.host()
    append(broker, numbered(3))
    older = rig.bucket.get("manifest", 1 << 20).data
    append(broker, numbered(3, 3))
    broker.collector.collect()
    view = view_of(rig)
    rig.bucket.put("manifest", older)
    assert not view.advance()
    view.close()


def test_view_that_advances_keeps_no_file_that_it_does_not_need(rig: BucketRig) -> None:
    broker = rig.host()
    append(broker, numbered(4), entries=4)
    view = view_of(rig)
    for first in range(4, 40, 4):
        append(broker, numbered(4, first), entries=4)
        offload(broker)
        assert view.advance()
        assert values(view.read_blocks(whole(view))) == numbered(first + 4)
    broker.store.ledger("log").roll_over()
    offload(broker)
    assert view.advance()
    assert not list(view._directory.glob("*.ledger")), "all segments are uploaded"
    view.close()


def test_view_writes_nothing(tmp_path: Path, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BucketRig(tmp_path, bucket, s3_server.options)
    broker = rig.host()
    append(broker, numbered(9), entries=4)
    offload(broker)
    append(broker, numbered(3, 9))
    cursor(broker)
    keys, manifest = rig.keys(), rig.manifest()
    with FaultProxy(s3_server.endpoint) as proxy:
        for method in ("PUT", "POST", "DELETE"):
            proxy.on(method, "", "forbidden", times=1_000)
        options = dataclasses.replace(s3_server.options, endpoint=proxy.endpoint)
        view = open_home_view(bucket, options)
        assert values(view.read_blocks(whole(view))) == numbered(12)
        assert proxy.requests > 5
        before = proxy.requests
        assert view.advance()
        assert proxy.requests - before == 2, "the next object, and the manifest"
        append(broker, [b"12"])
        before, end = proxy.requests, view.end
        assert view.advance()
        assert proxy.requests - before <= 2 * (view.end - end) + 2, "as many objects ahead as were found"
        assert values(view.read_blocks(whole(view))) == numbered(13)
        assert not proxy.met
    assert (rig.keys()[: len(keys)], rig.manifest()) == (keys, manifest)
    append(broker, [b"13"])
    assert not rig.lost, "the broker was not disturbed"
    rig.close()


@pytest.mark.parametrize("place", [3, -3, -2])
def test_view_of_a_damaged_log_names_the_object(rig: BucketRig, place: int) -> None:
    broker = rig.host()
    append(broker, numbered(30), entries=1_000)
    key = rig.keys("wal/")[place]
    rig.bucket.delete([key])
    with pytest.raises(Corrupt, match=f"{key} .*is missing"):
        view_of(rig)


def test_view_of_another_incarnation_refuses_the_range(rig: BucketRig) -> None:
    broker = rig.host()
    append(broker, numbered(3))
    view = view_of(rig)
    request = ReadRequest("log", whole(view).range, incarnation="another")
    with pytest.raises(DataLoss, match="the request names another"):
        list(view.read_blocks(request))


def test_what_a_view_refuses(rig: BucketRig) -> None:
    with pytest.raises(NotFound, match="there is no ledger store at file://"):
        view_of(rig)
    broker = rig.host()
    append(broker, numbered(1))
    view = view_of(rig)
    with pytest.raises(Refused, match="opened for reading only, 'delete' was called"):
        view.ask(DeleteLedger("log"))
    with pytest.raises(NotFound, match="there is no ledger 'lgo'"):
        view.ledger("lgo")
    with pytest.raises(LedgerError, match="ends at"):
        list(view.read_blocks(ReadRequest("log", PositionRange(whole(view).range.start, Position(9, 9)))))
