"""Goal: a batch of ordinary messages, other messages or both is the same entry. Method: it is encoded message by
message, too."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.message.batch_encoder import encode_messages
from pyspark_ledger.ledger.message.outgoing.message import (
    OutgoingMessage,
    ProducerMetadata,
    ordinary_key_chars,
    require_message,
)
from pyspark_ledger.ledger.message.outgoing.open_batch import OpenBatch

ENVELOPE = ProducerMetadata("p")


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=20), st.none() | st.just("key")), max_size=4), st.booleans())
def test_batch_of_both_kinds_is_the_entry_of_its_messages(ordinary: list[tuple[bytes, str | None]], more: bool) -> None:
    batch = OpenBatch(-1)
    batch.first_sequence_id = 7
    for value, key in ordinary:
        batch.values.append(value)
        batch.keys.append(key)
        batch.bytes += len(value)
    messages = [OutgoingMessage(value, number, key) for number, (value, key) in enumerate(ordinary, 7)]
    if more or not ordinary:
        last = OutgoingMessage(None, 70, b"\xff", {"a": "b"}, 5)
        assert batch.add(last, require_message(last)).number == len(ordinary)
        messages.append(last)
        assert batch.most == sum(map(require_message, messages))
    assert len(batch) == len(messages)
    assert batch.first_sequence_id == messages[0].sequence_id
    assert batch.bytes == sum(message.size for message in messages)
    built, expected = batch.encode(ENVELOPE, 3), encode_messages(ENVELOPE, messages, 3)
    assert b"".join(map(memoryview, built)) == b"".join(map(memoryview, expected))


@given(st.integers(1, 2000), st.integers(0, 1 << 20), st.integers(0, 64 << 20))
def test_key_limit_keeps_a_batch_within_its_entry(messages: int, value_bytes: int, entry_bytes_max: int) -> None:
    chars = ordinary_key_chars(messages, value_bytes, entry_bytes_max)

    def most(key_chars: int) -> int:
        one = require_message(OutgoingMessage(b"", 0, "k" * key_chars))
        return messages * one + value_bytes + value_bytes // 128

    if chars >= 0:
        assert most(chars) <= entry_bytes_max
    assert most(max(chars + 1, 0)) > entry_bytes_max
