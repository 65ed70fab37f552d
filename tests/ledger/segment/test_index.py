"""Goal: an index to trust without a lock, a sidecar whose damage is seen. Method: real files."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.segment.index import (
    ROW,
    AcknowledgedEnd,
    EntryIndex,
    EntryPlace,
    IndexFile,
    load_index,
    load_open,
    make_rows,
    pack_rows,
    write_sealed,
)


def places(count: int, first: int = 0) -> list[EntryPlace]:
    return [EntryPlace(128 + 40 * i, 28, 1000 + i, 10 + 3 * i) for i in range(first, first + count)]


def create(path: Path) -> IndexFile:
    return IndexFile.create(path, 7, store_id="a-store", block_bytes=4096, first_row=10)


def test_rows_are_the_same_one_by_one_and_in_bulk() -> None:
    some = places(30)
    bulk = pack_rows(some)
    assert bulk == b"".join(pack_rows([place]) for place in some)
    assert len(bulk) == 30 * ROW.itemsize


def test_append_and_extend_agree() -> None:
    one, two = EntryIndex(7, 10), EntryIndex(7, 10)
    one.append(places(500))
    columns = zip(*places(500), strict=True)

    two.extend(make_rows(*(np.array(column, dtype=np.int64) for column in columns)))
    assert one.rows().tolist() == two.rows().tolist()
    assert one.end_offset(0) == 168
    assert one.end_offset(-1) == 128
    assert (one.row_end, one.size_bytes, EntryIndex(7, 10).row_end) == (10 + 3 * 499, 500 * 28, 10)


def test_a_reader_never_sees_a_row_that_is_not_there() -> None:
    index, wrong, done = EntryIndex(7), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            count = index.count
            offsets = index.offsets
            if len(offsets) < count or (count and int(offsets[count - 1]) != 128 + 40 * (count - 1)):
                wrong.append(count)

    reader = threading.Thread(target=read)
    reader.start()
    for first in range(0, 20_000, 5):
        index.append(places(5, first))
    done.set()
    reader.join()
    assert not wrong


def test_an_open_sidecar_is_read_while_it_is_written(tmp_path: Path) -> None:
    file = create(tmp_path / "7.index")
    for first in range(0, 6000, 1000):
        file.append(places(1000, first))
        file.acknowledge(AcknowledgedEnd(first + 1000, 5, 6))
        found = load_open(tmp_path / "7.index", 7)
        assert len(found.rows) == first + 1000
        assert found.acknowledged == AcknowledgedEnd(first + 1000, 5, 6)
    assert (found.store_id, found.block_bytes, found.first_row) == ("a-store", 4096, 10)
    file.close()


def test_a_sealed_sidecar_round_trips_and_shrinks(tmp_path: Path) -> None:
    index = EntryIndex(7, 10)
    index.append(places(100))
    path = tmp_path / "7.index"
    write_sealed(path, index, store_id="a-store", block_bytes=4096, file_bytes=9)
    assert path.stat().st_size == 2048 + 100 * 32
    assert load_index(path, 7, 100).rows().tolist() == index.rows().tolist()
    with pytest.raises(Corrupt, match="the seal has 100 entries, the metadata state 99"):
        load_index(path, 7, 99)
    with pytest.raises(Corrupt, match="segment 7, expected 8"):
        load_index(path, 8, 100)


def test_every_flipped_bit_of_what_a_sealed_sidecar_says_is_seen(tmp_path: Path) -> None:
    index = EntryIndex(7, 10)
    index.append(places(3))
    path = tmp_path / "7.index"
    write_sealed(path, index, store_id="a-store", block_bytes=4096, file_bytes=9)
    whole = path.read_bytes()
    records = ((0, 100), (1536, 40), (2048, 96))
    for at in (at for start, length in records for at in range(start, start + length)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match=r"7\.index"):
            load_index(path, 7, 3)


def test_a_row_that_was_not_written_whole_ends_the_rows(tmp_path: Path) -> None:
    file = create(tmp_path / "7.index")
    file.append(places(5))
    file.acknowledge(AcknowledgedEnd(5, 500, 60))
    file.close()
    data = bytearray((tmp_path / "7.index").read_bytes())
    data[2048 + 3 * 32 + 20] ^= 1
    (tmp_path / "7.index").write_bytes(data)
    assert len(load_open(tmp_path / "7.index", 7).rows) == 3


def test_both_slots_gone(tmp_path: Path) -> None:
    create(tmp_path / "7.index").close()
    data = bytearray((tmp_path / "7.index").read_bytes())
    data[512:1536] = bytes(1024)
    (tmp_path / "7.index").write_bytes(data)
    with pytest.raises(Corrupt, match="both slots"):
        load_open(tmp_path / "7.index", 7)


def test_a_newer_version_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("pyspark_ledger.ledger.segment.index._VERSION", 2)
        create(tmp_path / "7.index").close()
    with pytest.raises(Unsupported, match="version 2, this code reads 1"):
        load_open(tmp_path / "7.index", 7)


def test_what_is_not_there_or_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_index(tmp_path / "8.index", 8, 0)
    with pytest.raises(Refused, match="65 bytes"):
        IndexFile.create(tmp_path / "9.index", 9, store_id="x" * 65, block_bytes=4096, first_row=0)
    assert list(tmp_path.iterdir()) == []
