"""Goal: no entry is overwritten before it is settled, and only a producer's own ring is ever mapped.

Method: random takes and releases against the bytes that were put in. Rings with wrong headers. A producer that changes
its memory between the broker's check and the write.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.transport.shared_ring import (
    COPIED_BYTES_MAX,
    RingReader,
    RingWriter,
    entry_file,
    map_sealed,
    pack_places,
    sealed_file,
)
from tests.rigs import log as log_rig
from tests.rigs.store import open_store


@pytest.fixture
def ring() -> Iterator[RingWriter]:
    ring = RingWriter(1000)
    yield ring
    ring.close()


@given(limit=st.integers(1, 300), moves=st.lists(st.integers(1, 400), max_size=200))
def test_every_entry_within_the_limit_finds_room_and_stays_as_it_is(limit: int, moves: list[int]) -> None:
    writer = RingWriter(2 * limit)
    reader = RingReader(writer.fd)
    live: deque[tuple[int, bytes]] = deque()
    for number, move in enumerate(moves):
        if move > limit:
            if live:
                writer.release()
                live.popleft()
            continue
        while sum(len(data) for _, data in live) + move > limit:
            writer.release()
            live.popleft()
        data = bytes([number % 251]) * move
        offset = writer.write([data[:3], memoryview(data)[3:]], move)
        assert offset >= 0, "there is room for every entry within the limit"
        live.append((offset, data))
        found = reader.entries(pack_places([(at, len(data)) for at, data in live]))
        assert [bytes(entry) for entry in found] == [data for _, data in live]
    writer.close()


def test_an_entry_without_room_is_told_and_takes_none(ring: RingWriter) -> None:
    assert ring.write([b"x" * 1001], 1001) == -1
    first = ring.write([b"a" * 600], 600)
    assert ring.write([b"b" * 600], 600) == -1
    ring.release()
    assert ring.write([b"c" * 600], 600) == first


@pytest.mark.parametrize(
    "places",
    [[(0, 1001)], [(996, 5)], [(0, -1)], [(-5, 10)], [(2**62, 2**62)], [(0, 5), (0, 2**63 - 1)]],
)
def test_a_place_outside_the_ring_is_refused(ring: RingWriter, places: list[tuple[int, int]]) -> None:
    reader = RingReader(ring.fd)
    with pytest.raises(Refused, match="outside a ring of 1000 bytes"):
        reader.entries(pack_places(places))


def test_entries_without_a_byte_have_places_too(ring: RingWriter) -> None:
    offsets = [ring.write([b""], 0), ring.write([b"x"], 1), ring.write([], 0), ring.write([b"y"], 1)]
    assert len(set(offsets)) == 4
    sizes = [0, 1, 0, 1]
    found = RingReader(ring.fd).entries(pack_places(list(zip(offsets, sizes, strict=True))))
    assert [bytes(entry) for entry in found] == [b"", b"x", b"", b"y"]


def test_half_a_place_is_refused(ring: RingWriter) -> None:
    with pytest.raises(Refused, match="no sequence of pairs"):
        RingReader(ring.fd).entries(bytes(24))


def test_a_file_that_could_shrink_is_not_mapped() -> None:
    """A mapping of a file that was cut kills the process that touches it."""
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.truncate(fd, 4096)
    try:
        with pytest.raises(Unsupported, match="4096 bytes that can shrink"):
            RingReader(fd)
    finally:
        os.close(fd)
    with Path(os.devnull).open() as other, pytest.raises(OSError, match="Invalid argument"):
        RingReader(other.fileno())


@pytest.mark.parametrize("content", [[], [b""], [b"x"], [b"ab", memoryview(b"c")]])
def test_a_file_of_one_entry_holds_it(content: list[bytes]) -> None:
    whole = b"".join(content)
    fd = sealed_file(len(whole), content)
    try:
        assert bytes(map_sealed(fd)) == whole
    finally:
        os.close(fd)


def test_the_broker_keeps_entries_of_a_producer_that_is_gone(ring: RingWriter) -> None:
    reader = RingReader(ring.fd)
    offset = ring.write([b"kept"], 4)
    (entry,) = reader.entries(pack_places([(offset, 4)]))
    ring.close()
    del reader, ring
    assert bytes(entry) == b"kept"


def flipped_while_written(monkeypatch: pytest.MonkeyPatch, flip: Callable[[], None]) -> None:
    """Have a producer change its memory when its entry is checked, and none of it is in the file."""
    real = disk.write_all

    def write_all(fd: int, buffers: Sequence[Buffer], *rest: Any) -> int:
        flip()
        return real(fd, buffers, *rest)

    monkeypatch.setattr(disk, "write_all", write_all)


@pytest.mark.parametrize("size", [10, 1000, COPIED_BYTES_MAX - 100])
def test_a_producer_that_changes_a_byte_after_the_check_poisons_no_log(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    store = open_store(store_path)
    log = store.create_ledger(CreateLedger("log", block_bytes=1024 * 1024))
    ring = RingWriter(100_000)
    sent = log_rig.entry(b"x" * size)
    place = ring.write([sent], len(sent))
    entries = RingReader(ring.fd).entries(pack_places([(place, len(sent))]))

    def flip() -> None:
        ring._memory[place + len(sent) - 1] = 0

    flipped_while_written(monkeypatch, flip)
    log.append(entries).result(60)
    monkeypatch.undo()
    assert log_rig.contents(log) == [b"x" * size], "every reader checks the sum"
    store.close()


@pytest.mark.parametrize("sealed", [True, False])
def test_entry_file_changed_by_its_producer_after_the_check_is_harmless(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    store = open_store(store_path)
    log = store.create_ledger(CreateLedger("log", block_bytes=1024 * 1024))
    sent = log_rig.entry(b"x" * 100_000)
    fd = sealed_file(len(sent), [sent] if sealed else ())
    if not sealed:
        os.pwrite(fd, sent, 0)
    refused: list[OSError] = []

    def flip() -> None:
        try:
            os.pwrite(fd, b"y", 50_000)
        except OSError as error:
            refused.append(error)

    entry = entry_file(fd)
    flipped_while_written(monkeypatch, flip)
    log.append([entry]).result(60)
    monkeypatch.undo()
    assert bool(refused) == sealed
    assert log_rig.contents(log) == [b"x" * 100_000]
    store.close()
    os.close(fd)


def test_an_empty_file_holds_an_empty_entry() -> None:
    for content in ([], [b""]):
        fd = sealed_file(0, content)
        assert bytes(entry_file(fd)) == b""
        os.close(fd)
