"""Goal: memory is used again when nothing refers to it, and never earlier. Method: addresses and contents."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.objects.recycled_memory import RecycledMemory

SIZE = 1024 * 1024


def address(view: memoryview) -> int:
    return np.frombuffer(view, dtype=np.uint8).ctypes.data


def test_released_memory_is_used_again() -> None:
    memory = RecycledMemory(2)
    first = memory(2 * SIZE)
    place = address(first)
    del first
    again = memory(SIZE)
    assert address(again) == place
    assert len(again) == SIZE


def test_memory_with_a_view_is_not_used_again() -> None:
    memory = RecycledMemory(2)
    first = memory(SIZE)
    first[:] = b"a" * SIZE
    column = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, 8], "<i4")), pa.py_buffer(first)])
    part, numbers = first[10:20], np.frombuffer(first, dtype=np.uint8)[20:30]
    del first
    for _ in range(3):
        memory(SIZE)[:] = b"b" * SIZE
    assert column.to_pylist() == [b"a" * 8]
    del column
    memory(SIZE)[:] = b"b" * SIZE
    assert bytes(part) == b"a" * 10
    del part
    memory(SIZE)[:] = b"b" * SIZE
    assert numbers.tobytes() == b"a" * 10


def test_smaller_memory_is_replaced() -> None:
    memory = RecycledMemory(2)
    memory(SIZE)
    assert len(memory(2 * SIZE)) == 2 * SIZE


def test_the_unused_pieces_are_limited() -> None:
    memory = RecycledMemory(1)
    pieces = [memory(SIZE) for _ in range(3)]
    last = address(pieces[-1])
    while pieces:
        pieces.pop(0)
    assert address(memory(SIZE)) == last
    assert len(memory._free) == 1
