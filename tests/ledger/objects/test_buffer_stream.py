"""Goal: a stream has the bytes of its buffers, and copies none. Method: random buffers, reads and seeks."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.objects.buffer_stream import READ_BYTES, BufferStream, body_of

buffers = st.lists(st.binary(max_size=5), max_size=6)


@given(buffers, st.integers(0, 30))
def test_a_stream_is_read_from_any_place_to_its_end(parts: list[bytes], start: int) -> None:
    stream, whole = BufferStream(parts), b"".join(parts)
    assert stream.seek(0, os.SEEK_END) == len(whole)
    assert stream.seek(start) == min(start, len(whole))
    assert bytes(stream.read()) == whole[start:]
    assert stream.read() == b""
    stream.seek(0)
    found = b""
    while piece := stream.read(1):
        found += piece
        assert stream.tell() == len(found)
    assert found == whole


def test_a_read_returns_views_of_large_pieces() -> None:
    data = np.arange(2 * READ_BYTES + 3, dtype=np.uint8)
    stream, sizes = BufferStream([b"head", memoryview(data)]), []
    assert stream.read(0) == b""
    while piece := stream.read(16 * 1024):
        sizes.append(len(piece))
        assert sizes == [4] or np.shares_memory(np.frombuffer(piece, np.uint8), data)
    assert sizes == [4, READ_BYTES, READ_BYTES, 3]


def test_a_small_body_is_joined_and_a_large_body_is_not() -> None:
    assert body_of([b"head", memoryview(b"tail")]) == b"headtail"
    assert isinstance(body_of([bytes(READ_BYTES)]), BufferStream)
