"""Ledgers of a read: one, some, or all that match a pattern. Pure values.

Rules
- A partitioned ledger means its partitions, present and future.
- A pattern is compared with the whole of a ledger's short name (`orders`, or `tenant/namespace/orders` outside of
  public/default), never with a partition's.
- A selection may grow later. A checkpoint's ledgers must still be selected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import canonical_name, partition_of, short_name


@dataclass(frozen=True, slots=True)
class Addressing:
    """Selection of ledgers. `names` are canonical, in the given order; with a `pattern` there are none."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    @classmethod
    def of(cls, ledger: str, ledgers: Iterable[str], pattern: str | None) -> Addressing:
        """Return the selection of the options, of which one is given."""
        if pattern:
            return cls(pattern=pattern)
        return cls(tuple(canonical_name(name) for name in (ledgers or [ledger])))

    def __str__(self) -> str:
        return f"ledgers like {self.pattern!r}" if self.pattern else ", ".join(self.names)

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return the selected ones of a store's ledgers, with partitioned ones as a whole."""
        return [name for name in names if self._is(name)]

    def addresses(self, log: str) -> bool:
        """Return whether a ledger, or its partitioned ledger, is selected."""
        part = partition_of(log)
        return self._is(log) or (part is not None and self._is(part[0]))

    def _is(self, name: str) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, short_name(name)) is not None
        return name in self.names


def dead_letter_ledger(log: str, subscription: str) -> str:
    """Return the ledger for a log's dead letters; the name may be invalid for a ledger."""
    part = partition_of(log)
    return f"{log if part is None else part[0]}-{subscription}-DLQ"


def require_dead_letter_ledgers(names: Iterable[str], subscription: str) -> None:
    """Refuse a subscription without a valid dead-letter ledger when the query starts, not with the first dead
    letter.
    """
    for name in names:
        named = dead_letter_ledger(name, subscription)
        try:
            canonical_name(named)
        except Refused as wrong:
            raise Refused(
                f"rows that subscription {subscription!r} gives up on go to {named!r}, which no ledger can be called: "
                f"{wrong.message}",
                hint="Read with another name for the subscription, or without maxRedeliveries",
            ) from None
