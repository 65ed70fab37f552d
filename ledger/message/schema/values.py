"""Result of every codec: decoded values, and the reasons why payloads could not be decoded.

Rules
- A codec takes payloads without nulls, and returns one value of its type for each payload. An undecodable payload
  becomes null, and `wrong` has the reason. Such a payload never changes the value of another payload.
- One call decodes many payloads. If the call fails, each half is decoded alone, until the faulty payloads are found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

# Errors that decoders raise for bytes that do not match the schema.
FAILURES = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, RecursionError, struct.error, pa.ArrowException,
)  # fmt: skip
_REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class Values:
    """Values, one for each payload. `wrong` maps the row of each undecodable payload to the reason."""

    array: pa.Array
    wrong: dict[int, str] = field(default_factory=dict)


class Codec(Protocol):
    """Decoder of the payloads of one schema."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the values."""

    def decode(self, payloads: pa.Array) -> Values:
        """Decode payloads (binary, without nulls)."""


def decode_halving(
    payloads: Sequence[bytes], decode: Callable[[Sequence[bytes]], pa.Array], kind: pa.DataType
) -> Values:
    """Decode all payloads with one call of `decode`. If the call fails, find the undecodable payloads by halving."""
    wrong: dict[int, str] = {}
    parts: list[pa.Array] = []
    ranges = [(0, len(payloads))]
    while ranges:
        start, end = ranges.pop()
        try:
            parts.append(decode(payloads[start:end]))
        except FAILURES as failure:
            if end - start == 1:
                wrong[start] = reason_of(failure)
                parts.append(pa.nulls(1, kind))
            else:
                middle = (start + end) // 2
                ranges += [(middle, end), (start, middle)]
    return Values(pa.concat_arrays(parts) if parts else pa.array([], kind), wrong)


def reason_of(failure: BaseException) -> str:
    """Return an error's type and text as one line."""
    reason = " ".join(str(failure).split())[:_REASON_MAX]
    return f"{type(failure).__name__}: {reason}" if reason else type(failure).__name__
