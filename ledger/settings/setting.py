"""Types of settings and numbers: how a broker setting is documented and bounded, and numbers as they cross the wire.

Rules
- `ledger.settings.broker` has all settings.
- A number on the wire has the bounds that its type states. A number beyond them is refused.
- `signed` is for numbers of Pulsar that are unsigned in protobuf and signed in Java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is documented: what it counts, what is allowed, and why it is what it is.

    `live`: it is read at each use, so that it can be changed while the broker runs.
    """

    unit: str
    least: int
    most: int
    reason: str
    live: bool = False


@dataclass(frozen=True, slots=True)
class TextSetting:
    """One setting that is a text: what kind of text, and why it is there."""

    kind: str
    reason: str
    live: bool = False
    choices: tuple[str, ...] = ()


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Uint64 = Annotated[int, msgspec.Meta(ge=0)]  # below 2**64, which msgspec cannot say: see `CommitRun`


def signed(number: int) -> int:
    """A number of 64 bits as Java reads it."""
    return number - 2**64 if number >= 2**63 else number
