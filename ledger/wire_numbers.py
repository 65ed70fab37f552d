"""Numbers as they may stand on the wire: each type says its bounds, and a number beyond them is refused.

`signed` is for those of Pulsar that are unsigned in protobuf and signed in Java.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Uint64 = Annotated[int, msgspec.Meta(ge=0)]  # below 2**64, which msgspec cannot say: see `CommitRun`


def signed(number: int) -> int:
    """A number of 64 bits as Java reads it."""
    return number - 2**64 if number >= 2**63 else number
