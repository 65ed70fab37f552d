"""Goal: a payload that cannot be decoded is wrong alone, with its reason.

Method: a decoder of numbers that counts calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.message.schema.values import decode_halving, reason_of


class Numbers:
    """Decodes texts of numbers."""

    def __init__(self) -> None:
        self.calls = 0

    def decode(self, payloads: Sequence[bytes]) -> pa.Array:
        self.calls += 1
        return pa.array([int(payload) for payload in payloads], pa.int64())


@pytest.mark.parametrize(("wrong", "calls"), [(set(), 1), ({5}, 9), ({0, 15}, 15)])
def test_decode_halving_finds_what_is_wrong_and_reads_the_rest(wrong: set[int], calls: int) -> None:
    numbers = Numbers()
    payloads = [b"?" if row in wrong else b"%d" % row for row in range(16)]
    found = decode_halving(payloads, numbers.decode, pa.int64())
    assert found.array.to_pylist() == [None if row in wrong else row for row in range(16)]
    assert set(found.wrong) == wrong
    assert all(reason.startswith("ValueError: invalid literal") for reason in found.wrong.values())
    assert numbers.calls == calls


def test_decode_halving_of_nothing_is_an_empty_column() -> None:
    assert decode_halving([], Numbers().decode, pa.int64()).array == pa.array([], pa.int64())


def test_decode_halving_raises_what_is_no_fault_of_a_payload() -> None:
    def failing(_: Sequence[bytes]) -> pa.Array:
        raise OSError(5, "no disk")

    with pytest.raises(OSError, match="no disk"):
        decode_halving([b"1", b"2"], failing, pa.int64())


def test_reason_is_one_line_of_bounded_length() -> None:
    assert reason_of(ValueError("a\n  b")) == "ValueError: a b"
    assert reason_of(EOFError()) == "EOFError"
    assert reason_of(ValueError("x" * 999)) == "ValueError: " + "x" * 200
