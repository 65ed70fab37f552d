"""Decoded values, and which of them could not be decoded: what every codec answers.

Rules
- A codec takes payloads, none of them null, and answers as many values of its type. A payload that cannot be decoded
  is null in the answer and has its reason in `wrong`; it never changes what another one becomes.
- Payloads are decoded many at a time. Only when that fails are they halved, down to those that are to blame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

# What decoders raise at bytes that are not what the schema says.
FAILURES = (
    ValueError, TypeError, LookupError, ArithmeticError, EOFError, RecursionError, struct.error, pa.ArrowException,
)  # fmt: skip
_REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class Values:
    """One value per payload; `wrong` says by row why it has none."""

    array: pa.Array
    wrong: dict[int, str] = field(default_factory=dict)


class Codec(Protocol):
    """Decodes the payloads of one schema."""

    @property
    def type(self) -> pa.DataType:
        """What values become."""

    def decode(self, payloads: pa.Array) -> Values:
        """The values of payloads (binary, without nulls)."""


def decode_halving(
    payloads: Sequence[bytes], decode: Callable[[Sequence[bytes]], pa.Array], kind: pa.DataType
) -> Values:
    """All payloads by one call of `decode`; where that fails, what can be decoded and why the rest cannot."""
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
    """An error in one line that says something."""
    said = " ".join(str(failure).split())[:_REASON_MAX]
    return f"{type(failure).__name__}: {said}" if said else type(failure).__name__
