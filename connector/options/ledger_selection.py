"""Which ledgers a read is of: one, some, or all whose name matches a pattern. Values, and pure.

Rules: a partitioned ledger stands for its partitions, those it has and those it gets. A pattern is compared with the
whole of a ledger's short name (`orders`, or `tenant/namespace/orders` outside of public/default), never with a
partition's. What is addressed now may be more later; what a checkpoint has must still be addressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import canonical_name, partition_of, short_name


@dataclass(frozen=True, slots=True)
class Addressing:
    """`names` are canonical, in the order in which they were given; with a `pattern` there are none."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    @classmethod
    def of(cls, ledger: str, ledgers: Iterable[str], pattern: str | None) -> Addressing:
        """What the options say, of which one is given."""
        if pattern:
            return cls(pattern=pattern)
        return cls(tuple(canonical_name(name) for name in (ledgers or [ledger])))

    def __str__(self) -> str:
        return f"ledgers like {self.pattern!r}" if self.pattern else ", ".join(self.names)

    def matching(self, names: Iterable[str]) -> list[str]:
        """Of all ledgers of a store, partitioned ones as a whole, those that are addressed."""
        return [name for name in names if self._is(name)]

    def addresses(self, log: str) -> bool:
        """Whether a ledger, or the one that it is a partition of, is addressed."""
        part = partition_of(log)
        return self._is(log) or (part is not None and self._is(part[0]))

    def _is(self, name: str) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, short_name(name)) is not None
        return name in self.names


def dead_letter_ledger(log: str, subscription: str) -> str:
    """Where rows of a log go that a subscription gave up on; the name may be none that a ledger can have."""
    part = partition_of(log)
    return f"{log if part is None else part[0]}-{subscription}-DLQ"


def require_dead_letter_ledgers(names: Iterable[str], subscription: str) -> None:
    """Refuse a subscription whose dead letters could go nowhere: said when the query starts, not with the first one."""
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
