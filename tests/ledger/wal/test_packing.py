"""Goal: objects carry batches in order, whole, within their size. Method: random batches, packed and scanned."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.wal.log_object import Header, LogObject
from pyspark_ledger.ledger.wal.packing import FileBytes, Item, MetadataRows, Packer
from pyspark_ledger.ledger.wal.scan import LogScan, ScannedBatch

FILE = bytes(range(256)) * 4


def in_file(offset: int, length: int) -> FileBytes:
    return FileBytes("ledgers/7.ledger", offset, length, lambda start, size: FILE[start : start + size])


items = st.one_of(
    st.binary(min_size=1, max_size=30).map(MetadataRows),
    st.tuples(st.integers(0, 400), st.integers(0, 120)).map(lambda pair: in_file(*pair)),
)


def content(items: tuple[Item, ...]) -> list[bytes]:
    return [
        item.data if isinstance(item, MetadataRows) else FILE[item.offset : item.offset + item.length] for item in items
    ]


def joined(batch: ScannedBatch) -> list[bytes]:
    """The payloads of a batch; neighbouring pieces of one item are joined."""
    found: list[bytes] = []
    end = None
    for part, payload in batch.parts:
        if part.kind == "bytes" and end == (part.file, part.offset) and part.length:
            found[-1] += bytes(payload)
        else:
            found.append(bytes(payload))
        end = (part.file, part.offset + part.length) if part.kind == "bytes" else None
    return found


@given(st.lists(st.lists(items, min_size=1, max_size=4).map(tuple), max_size=8), st.integers(1, 64))
def test_batches_come_out_as_they_went_in(batches: list[tuple[Item, ...]], bytes_max: int) -> None:
    packer, scan, found, ended = Packer(), LogScan(0), [], 0
    for batch in batches:
        packer.put(batch)
    assert packer.size == sum(item.length for batch in batches for item in batch)
    number = 0
    while len(packer):
        packed = packer.pack(bytes_max)
        assert packed.parts
        sizes = [part.length for part, _ in packed.parts]
        assert sum(sizes) <= bytes_max or (len(sizes) == 1 and packed.parts[0][0].kind == "records")
        header = Header(uuid.UUID(int=1), 1, number, uuid.UUID(int=2), 0)
        parts = [(part, memoryview(bytes(memoryview(data)))) for part, data in packed.parts]
        batches_here = list(scan.feed(LogObject(header, parts), "the log"))
        assert len(batches_here) == packed.ended
        assert all(batch.place.last == number for batch in batches_here)
        found += batches_here
        ended += packed.ended
        number += 1
    assert packer.size == 0
    assert not packer.is_inside_batch
    assert ended == len(batches)
    assert [b"".join(joined(batch)) for batch in found] == [b"".join(content(batch)) for batch in batches]


def test_a_batch_over_several_objects_states_its_first() -> None:
    packer, scan, places = Packer(), LogScan(5), []
    for batch in ([in_file(0, 10)], [in_file(10, 100)], [in_file(110, 4)]):
        packer.put(batch)
    for number in range(5, 9):
        header = Header(uuid.UUID(int=1), 1, number, uuid.UUID(int=2), 0)
        parts = [(part, memoryview(data)) for part, data in packer.pack(32).parts]
        places += [tuple(batch.place) for batch in scan.feed(LogObject(header, parts), "the log")]
    assert places == [(5, 5), (5, 8), (8, 8)]
