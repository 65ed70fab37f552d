"""Goal: varints are protobuf's. Method: every length and both ends of it, compared with protobuf's own bytes."""

from __future__ import annotations

import numpy as np
import pytest

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.varints import (
    decode_varints,
    gather,
    lengths,
    put_varints,
    read_varint,
    tagged,
    varint,
)
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LongListMap

EDGES = sorted({0, 1, 2**64 - 1, 2**63, *(2 ** (7 * n) + d for n in range(1, 10) for d in (-1, 0, 1))})


def read_all(view: memoryview) -> None:
    at = 0
    while True:
        _, at = read_varint(view, at, "these")


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def test_tagged_is_what_protobuf_writes_for_a_repeated_field() -> None:
    wanted = LongListMap(key=0, values=[signed(value) for value in EDGES]).SerializeToString()
    assert b"\x08\x00" + tagged(0x10, np.array(EDGES, dtype=np.uint64)).tobytes() == wanted


def test_one_and_many_agree() -> None:
    values = np.array(EDGES, dtype=np.uint64)
    joined = b"".join(varint(signed(value)) for value in EDGES)
    assert decode_varints(np.frombuffer(joined, np.uint8), "these").tolist() == EDGES
    sizes = lengths(values)
    assert sizes.tolist() == [len(varint(value)) for value in EDGES]
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    put_varints(out, np.append(0, np.cumsum(sizes)[:-1]), values, sizes)
    assert out.tobytes() == joined
    at = 0
    for value in EDGES:
        found, at = read_varint(memoryview(joined), at, "these")
        assert found == value


def test_many_are_taken_in_slices() -> None:
    values = np.random.default_rng(3).integers(0, 2**63, 50_000).astype(np.uint64)
    assert np.array_equal(decode_varints(_plain(values), "these"), values)


def test_nothing_is_nothing() -> None:
    assert len(decode_varints(np.zeros(0, np.uint8), "these")) == 0
    assert len(gather(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), "these")) == 0


@pytest.mark.parametrize("wrong", [b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02"])
def test_what_is_no_varint_is_refused(wrong: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_varints(np.frombuffer(wrong, np.uint8), "these")
    with pytest.raises(Corrupt):
        read_all(memoryview(wrong))


def _plain(values: np.ndarray) -> np.ndarray:
    table = tagged(0x10, values)
    stops = np.flatnonzero(table < 0x80)
    return np.delete(table, stops[0::2])
