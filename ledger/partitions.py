"""Partitioned ledgers by name, as in Pulsar: partition n of `orders` is the ledger `orders-partition-n`.

The ledger `orders` itself holds nothing: its record has the property `ledger.partitions`, their number. Partitions are
numbered from 0, without a gap, and only ever become more: with fewer, keys would have lost their history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledger.errors import Refused

PARTITIONS = "ledger.partitions"
PARTITIONS_MAX = 10_000
_SUFFIX = "-partition-"


def partition_name(name: str, partition: int) -> str:
    """The ledger of one partition."""
    return f"{name}{_SUFFIX}{partition}"


def partition_names(name: str, partitions: int, first: int = 0) -> list[str]:
    """The ledgers of the partitions from `first` on."""
    return [partition_name(name, partition) for partition in range(first, partitions)]


def partition_of(name: str) -> tuple[str, int] | None:
    """Of which partitioned ledger a name would be which partition; None for any other name."""
    whole, suffix, number = name.rpartition(_SUFFIX)
    if not (suffix and whole and number.isascii() and number.isdecimal() and str(int(number)) == number):
        return None
    return whole, int(number)


def partition_count(properties: Mapping[str, str]) -> int:
    """How many partitions a record states; 0 for a ledger that has none."""
    return int(properties.get(PARTITIONS, 0))


def require_partitions(partitions: int) -> None:
    """Refuse a number that no ledger may have."""
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:  # type: ignore[redundant-expr]  # a user's
        raise Refused(f"{partitions!r} partitions were asked for, a ledger has 1 to {PARTITIONS_MAX}")


def without_partitions(names: Iterable[str]) -> list[str]:
    """The names, without those that are a partition of another one of them."""
    listed = list(names)
    wholes = set(listed)
    return [name for name in listed if (part := partition_of(name)) is None or part[0] not in wholes]
