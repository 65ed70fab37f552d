"""Ledgers of a read or of a loop: one ledger, several ledgers, or all that match a pattern. Pure functions.

Rules
- The name of a partitioned ledger selects all of its partitions, also partitions that are added later.
- A pattern must match the whole short name of a ledger: `orders` in the namespace public/default, and
  `tenant/namespace/orders` in any other namespace. It is never compared with the name of a partition.
- Between two executions of a query, the selection may grow. It must still contain all ledgers of the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import canonical_name, partition_of, short_name


@dataclass(frozen=True, slots=True)
class Addressing:
    """Selection of ledgers: full `names` in the given order, or a `pattern`. With a pattern, `names` is empty."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    @classmethod
    def of(cls, ledger: str, ledgers: Iterable[str], pattern: str | None) -> Addressing:
        """Return the selection for one of three options: `ledger`, `ledgers` or `ledgersPattern`."""
        if pattern:
            return cls(pattern=pattern)
        return cls(tuple(canonical_name(name) for name in (ledgers or [ledger])))

    def __str__(self) -> str:
        return f"ledgers like {self.pattern!r}" if self.pattern else ", ".join(self.names)

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return the selected names out of `names`. In `names` a partitioned ledger has one name for all partitions."""
        return [name for name in names if self._selects(name)]

    def matching_for(self, names: Iterable[str], subscription: str) -> list[str]:
        """Return the selected names out of `names`, without the dead-letter ledgers of a subscription.

        Reason: a reader must not read its own dead letters as new rows. A ledger that the user named is never left out.
        """
        matching = self.matching(names)
        own = {dead_letter_ledger(name, subscription) for name in matching} if self.pattern else ()
        return [name for name in matching if name not in own]

    def addresses(self, log: str) -> bool:
        """Return whether a ledger is selected, or the partitioned ledger of which it is a partition."""
        part = partition_of(log)
        return self._selects(log) or (part is not None and self._selects(part[0]))

    def _selects(self, name: str) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, short_name(name)) is not None
        return name in self.names


def dead_letter_ledger(log: str, subscription: str) -> str:
    """Return the name of the ledger for the dead letters of a ledger. The name may be invalid, for example too long."""
    part = partition_of(log)
    return f"{log if part is None else part[0]}-{subscription}-DLQ"


def require_dead_letter_ledgers(names: Iterable[str], subscription: str) -> None:
    """Raise Refused if the name of a dead-letter ledger is invalid.

    Called when the query or loop starts, so that it does not fail later, at its first dead letter.
    """
    for name in names:
        named = dead_letter_ledger(name, subscription)
        try:
            canonical_name(named)
        except Refused as wrong:
            raise Refused(
                f"dead letters of subscription {subscription!r} are written to {named!r}, which is no valid name of a "
                f"ledger: {wrong.message}",
                hint="Use another name for the subscription or cursor, or no limit of redeliveries",
            ) from None
