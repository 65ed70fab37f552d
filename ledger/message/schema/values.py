"""Decoded values and their faults, the result of every codec.

Rules
- A codec takes payloads without nulls, and returns as many values of its type. A payload that cannot be decoded is
  null and has its reason in `wrong`. It never changes the value of another payload.
- Payloads are decoded many at a time. If that fails, they are halved until the faulty ones are found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

# Errors of decoders for bytes that do not match the schema.
FAILURES = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, RecursionError, struct.error, pa.ArrowException,
)  # fmt: skip
_REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class Values:
    """A value for each payload; `wrong` has by row the reason for a missing one."""

    array: pa.Array
    wrong: dict[int, str] = field(default_factory=dict)


class Codec(Protocol):
    """Decoder of the payloads of one schema."""

    @property
    def type(self) -> pa.DataType:
        """Type of the values."""

    def decode(self, payloads: pa.Array) -> Values:
        """Decode payloads (binary, without nulls)."""


def decode_halving(
    payloads: Sequence[bytes], decode: Callable[[Sequence[bytes]], pa.Array], kind: pa.DataType
) -> Values:
    """Decode all payloads by one call. If that fails, decode what is possible and state why the rest is not."""
    wrong: dict[int, str] = {}
    parts: list[pa.Array] = []
    left = [(0, len(payloads))]
    while left:
        start, end = left.pop()
        try:
            parts.append(decode(payloads[start:end]))
        except FAILURES as failure:
            if end - start == 1:
                wrong[start] = reason_of(failure)
                parts.append(pa.nulls(1, kind))
            else:
                middle = (start + end) // 2
                left += [(middle, end), (start, middle)]
    return Values(pa.concat_arrays(parts) if parts else pa.array([], kind), wrong)


def reason_of(failure: BaseException) -> str:
    """Return an error as one line that is not empty."""
    reason = " ".join(str(failure).split())[:_REASON_MAX]
    return f"{type(failure).__name__}: {reason}" if reason else type(failure).__name__
