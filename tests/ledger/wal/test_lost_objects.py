"""Goal: a lost log object is an error, and a log that a kill cut off is none. Method: a directory as the bucket."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event

import pytest

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.objects.directory import DirectoryStore
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, log_key
from pyspark_ledger.ledger.wal.log_object import Header, decode_header
from pyspark_ledger.ledger.wal.writer import WalWriter
from tests.rigs.deadline import wait_until
from tests.rigs.wal import LIMITS, WalRig, text

WAIT = 60
WINDOW = 4


class HeldBucket(DirectoryStore):
    """Bucket in which the puts of some keys wait, as on a slow network."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.held: set[str] = set()
        self.released = Event()

    def put(self, key: str, data: bytes | Sequence[Buffer], *args: object, **condition: object) -> str:
        if key in self.held:
            assert self.released.wait(WAIT)
        return super().put(key, data, *args, **condition)  # type: ignore[arg-type]


@pytest.fixture
def held(tmp_path: Path) -> HeldBucket:
    return HeldBucket(tmp_path)


@pytest.fixture
def rig(tmp_path: Path, held: HeldBucket) -> Iterator[WalRig]:
    rig = WalRig(DirectoryStore(tmp_path), held)  # type: ignore[arg-type]
    yield rig
    held.released.set()
    rig.close()


def keys(rig: WalRig) -> list[str]:
    return [found.key for found in rig.bucket.objects(LOG_PREFIX)]


def header_of(bucket: ObjectStore, key: str) -> Header:
    return decode_header(bucket.get(key, 1 << 20).data, key)[0]


def append(writer: WalWriter, count: int, first: int = 0) -> list[bytes]:
    """Append one text after the other, each in an object of its own."""
    for number in range(first, first + count):
        writer.append(text(number)).result(WAIT)
    return [f"{number}".encode() for number in range(first, first + count)]


def append_at_once(writer: WalWriter, count: int, first: int) -> None:
    """Append texts that do not wait for each other, each in a full object of its own."""
    for number in range(first, first + count):
        writer.append(text(number, LIMITS.object_bytes))


def test_each_object_states_what_was_acknowledged_at_its_put(rig: WalRig, held: HeldBucket) -> None:
    writer, _ = rig.take_over(window=WINDOW)
    append(writer, 2)
    end = writer.end
    held.held = {log_key(end)}
    append_at_once(writer, WINDOW, 2)
    wait_until(lambda: len(keys(rig)) == end + WINDOW - 1)
    stated = [header_of(rig.bucket, key).acknowledged for key in keys(rig)]
    claims = [0] * WINDOW
    assert stated == [*claims, WINDOW, WINDOW + 1, *[end] * (WINDOW - 1)]


@pytest.mark.parametrize("back", range(2, 2 * WINDOW))
def test_a_lost_acknowledged_object_is_named_by_readers_and_takers(rig: WalRig, back: int) -> None:
    writer, _ = rig.take_over(window=WINDOW)
    expected = append(writer, 9)
    key = keys(rig)[-back]
    data = rig.bucket.get(key, 1 << 20).data
    rig.bucket.delete([key])
    left = keys(rig)
    lost = re.compile(f"{key} of .* is missing, and wal/.*: objects of the log are lost")
    with pytest.raises(Corrupt, match=lost):
        rig.read()
    for _ in range(2):  # a claim in the lost slot would hide the loss from the second taker
        with pytest.raises(Corrupt, match=lost):
            rig.take_over(window=WINDOW)
        assert keys(rig) == left
    rig.bucket.put(key, data)
    assert rig.read() == rig.take_over(window=WINDOW)[1] == expected


def test_the_newest_object_under_load_cannot_be_told_from_the_end(rig: WalRig) -> None:
    writer, _ = rig.take_over(window=WINDOW)
    expected = append(writer, 9)
    rig.bucket.delete([keys(rig)[-1]])
    assert rig.read() == expected[:-1]


def test_a_lost_object_before_the_claims_of_a_taker_is_named(rig: WalRig) -> None:
    writer, _ = rig.take_over(window=WINDOW)
    append(writer, 3)
    key = keys(rig)[-1]
    rig.take_over(window=WINDOW)
    rig.bucket.delete([key])
    with pytest.raises(Corrupt, match=f"{key} of .* is missing, and {log_key(WINDOW + 3)} states"):
        rig.read()
    with pytest.raises(Corrupt, match=f"{key} of .* is missing"):
        rig.take_over(window=WINDOW)


def test_a_kill_with_puts_in_flight_leaves_a_hole_that_is_no_loss(rig: WalRig, held: HeldBucket) -> None:
    writer, _ = rig.take_over(window=WINDOW)
    expected = append(writer, 3)
    end = writer.end
    held.held = {log_key(end), log_key(end + 2)}
    append_at_once(writer, WINDOW, 3)
    wait_until(lambda: len(keys(rig)) == end + 2)
    assert rig.read() == expected
    held.held = set()  # the puts in flight still wait
    taker, found = rig.take_over(window=WINDOW)
    assert found == expected
    held.released.set()  # the late puts of the earlier broker meet claims
    wait_until(lambda: writer.failed is not None)
    assert rig.read() == expected
    expected += append(taker, 2, 10)
    assert rig.read() == rig.take_over(window=WINDOW)[1] == expected


def test_a_taker_killed_between_its_claims_leaves_a_hole_that_is_no_loss(
    rig: WalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = rig.take_over(window=WINDOW)
    expected = append(writer, 3)
    end, real, puts = writer.end, DirectoryStore.put, list[str]()

    def put(store: DirectoryStore, key: str, *args: object, **condition: object) -> str:
        if key.startswith(LOG_PREFIX):
            puts.append(key)
            if len(puts) == 3:
                raise RuntimeError("killed")
        return real(store, key, *args, **condition)  # type: ignore[arg-type]

    monkeypatch.setattr(DirectoryStore, "put", put)
    with pytest.raises(RuntimeError, match="killed"):
        rig.take_over(window=WINDOW)
    monkeypatch.undo()
    assert len(keys(rig)) == end + 2
    assert rig.read() == rig.take_over(window=WINDOW)[1] == expected


def test_an_idle_log_states_its_end_once_in_an_object_without_parts(rig: WalRig) -> None:
    writer, _ = rig.take_over(window=WINDOW, limits=dataclasses.replace(LIMITS, idle_ms=20))
    expected = append(writer, 1)
    wait_until(lambda: len(keys(rig)) == WINDOW + 2)
    wait_until(lambda: writer.end == WINDOW + 2)
    expected += append(writer, 1, 1)
    wait_until(lambda: writer.end == WINDOW + 4)
    assert rig.read() == expected
    assert keys(rig) == [log_key(number) for number in range(WINDOW + 4)]
    idle = header_of(rig.bucket, keys(rig)[-1])
    assert (idle.acknowledged, idle.claim) == (WINDOW + 3, False)
    key = keys(rig)[-2]
    rig.bucket.delete([key])
    with pytest.raises(Corrupt, match=f"{key} of .* is missing"):
        rig.read()
