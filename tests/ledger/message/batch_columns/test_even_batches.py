"""Goal: even batches have the values and sequence ids of the decoder. Method: each form, and flipped bits.

A damaged batch may be read only if the decoder reads the same messages from it.
"""

from __future__ import annotations

import numpy as np
import pytest

from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.message.batch_columns.even_batches import even_batches
from pyspark_ledger.ledger.message.batch_decoder import decode_messages
from pyspark_ledger.ledger.message.entry import ParsedEntry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from tests.rigs.entry import item

COUNT = 64


def batch(size: int, first: int | None, count: int = COUNT) -> bytes:
    """Return a batch of distinct values. `first` is the sequence id of the first message, None for messages without."""
    items = []
    for number in range(count):
        numbered = {} if first is None else {"sequence_id": first + number}
        items.append(item((b"%d" % number).rjust(size, b"-"), b"", **numbered))
    return b"".join(items)


def decoded(plain: bytes, count: int) -> list[tuple[bytes | None, int]]:
    metadata = MessageMetadata(producer_name="p", sequence_id=4, publish_time=1, num_messages_in_batch=count)
    entry = ParsedEntry(None, metadata, memoryview(plain))
    return [(None if m.value is None else bytes(m.value), m.sequence_id) for m in decode_messages(entry, "here")]


def even(plain: bytes, count: int) -> list[tuple[bytes | None, int]] | None:
    found = even_batches([memoryview(plain)], [count], len(plain))
    if found is None:
        return None
    found.values.validate(full=True)
    numbered = found.sequence_ids()
    sequences = np.where(numbered < 0, 4, numbered)
    return list(zip(found.values.to_pylist(), sequences.tolist(), strict=True))


@pytest.mark.parametrize("size", [11, 100, 127, 128, 250, 16_383])
@pytest.mark.parametrize("first", [None, 0, 63, 128, 16_200, 16_384, 2**21 - 64, 2**49 - 64])
def test_each_form_is_even_and_has_the_decoders_messages(size: int, first: int | None) -> None:
    plain = batch(size, first)
    assert even(plain, COUNT) == decoded(plain, COUNT)


@pytest.mark.parametrize(("size", "first"), [(4, None), (16_384, 0), (100, 65), (100, 2**49)])
def test_other_lengths_are_not_even(size: int, first: int | None) -> None:
    assert even(batch(size, first), COUNT) is None


def test_small_batches_are_not_even() -> None:
    assert even(batch(100, 0, COUNT - 1), COUNT - 1) is None


def test_batches_of_different_forms_are_joined() -> None:
    plains = [batch(100, 0), batch(300, 2**14), batch(20, None, 70)]
    counts, size = [COUNT, COUNT, 70], sum(map(len, plains))
    found = even_batches(map(memoryview, plains), counts, size)
    assert found is not None
    wanted = [*decoded(plains[0], COUNT), *decoded(plains[1], COUNT), *decoded(plains[2], 70)]
    assert found.values.to_pylist() == [value for value, _ in wanted]
    assert found.sequence_ids().tolist() == [*range(COUNT), *range(2**14, 2**14 + COUNT), *[-1] * 70]


@pytest.mark.parametrize("other", [batch(100, 65), None])
def test_a_batch_of_another_form_makes_the_group_uneven(other: bytes | None) -> None:
    plain = batch(100, 0)
    group = [memoryview(plain), None if other is None else memoryview(other)]
    assert even_batches(group, [COUNT, COUNT], 2 * len(plain)) is None


@pytest.mark.parametrize("first", [None, 0, 2**14])
@pytest.mark.parametrize("message", [0, 1, COUNT - 1])
def test_a_flipped_bit_is_refused_or_read_like_the_decoder(first: int | None, message: int) -> None:
    whole = batch(20, first)
    head = message * (len(whole) // COUNT)
    outcomes = set()
    for at in range(head, head + 14):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            found = even(bytes(damaged), COUNT)
            if found is not None:
                assert found == decoded(bytes(damaged), COUNT)
            outcomes.add(found is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1, 2**31 - 1])
def test_a_wrong_number_of_messages_is_not_even(count: int) -> None:
    assert even(batch(100, 0) * 2, count) is None
    with pytest.raises(LedgerError):
        decoded(batch(100, 0), COUNT + 1)
