"""Numbers as they may stand on the wire: each type says its bounds, and a number beyond them is refused."""

from __future__ import annotations

from typing import Annotated

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Uint64 = Annotated[int, msgspec.Meta(ge=0)]  # below 2**64, which msgspec cannot say: see `CommitRun`
