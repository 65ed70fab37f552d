"""What the broker says of its own health: a part of `ledger.protocol.actions`."""

from __future__ import annotations

import msgspec

from pyspark_ledger.ledger.settings.setting import Int64


class Health(msgspec.Struct, frozen=True):
    """The errors of a broker since its start.

    `given_up` has, for each managed ledger that takes nothing until the broker is started again, the reason. `errors`
    are the newest errors of broker.log, oldest first, `error_count` is the number of all of them.
    """

    given_up: dict[str, str] = {}
    errors: list[str] = []
    error_count: Int64 = 0
