"""Partitioned ledgers of a store: operations on the whole and on single partitions.

Rules
- A partitioned ledger is created, extended, described and deleted, and never opened.
- A partition is opened, appended to and read like any ledger. It is created and deleted with the whole only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.names import partition_count, partition_name, partition_names, partition_of, short_name
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import LedgerDescription


class PartitionTable:
    """View of the metadata's records, without state."""

    def __init__(self, metadata: Metadata, new_incarnation: Callable[[], str]) -> None:
        self._metadata = metadata
        self._new_incarnation = new_incarnation

    def count(self, name: str) -> int:
        """Return the number of partitions; 0 for a missing ledger, or one without partitions."""
        if not self._metadata.exists(name):
            return 0
        return partition_count(self._properties(name))

    def create(self, name: str, partitions: int, properties: Mapping[str, str], *, exist_ok: bool) -> None:
        """Create a partitioned ledger with all of its partitions, in one step."""
        self._require_no_partition(name)
        self._metadata.create_partitioned(name, partitions, properties, self._new_incarnation, exist_ok=exist_ok)

    def extend(self, name: str, partitions: int) -> None:
        """Increase the number of partitions, in one step."""
        self._metadata.extend_partitioned(name, partitions, self._new_incarnation)

    def require_single(self, name: str) -> None:
        """Refuse to open the whole of a partitioned ledger."""
        count = self.count(name)
        if count:
            raise Refused(
                f"ledger {short_name(name)!r} is partitioned: it is its {count} partitions",
                hint=f"Name one, such as {short_name(partition_name(name, 0))!r}",
            )

    def require_creatable(self, name: str) -> None:
        """Refuse to create a partition by itself: partitions come with their number only."""
        if not self._metadata.exists(name):
            self._require_no_partition(name)

    def deleted_with(self, name: str) -> list[str]:
        """Return all ledgers that are deleted with this one, itself included. Refuses a single partition."""
        part = partition_of(name)
        count = 0 if part is None else self.count(part[0])
        if part is not None and part[1] < count:
            raise Refused(
                f"ledger {short_name(name)!r} is one of the {count} partitions of {short_name(part[0])!r}",
                hint="Delete the whole",
            )
        return [name, *partition_names(name, self.count(name))]

    def describe(self, name: str, parts: Sequence[LedgerDescription]) -> LedgerDescription:
        """Describe the whole: counts are sums, and only partitions have positions."""
        record = self._metadata.ledger(name)
        return LedgerDescription(
            name=name,
            incarnation=record.incarnation,
            start=EARLIEST,
            end=EARLIEST,
            entries=sum(part.entries for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            rows=sum(part.rows for part in parts),
            last_publish_ms=max(part.last_publish_ms for part in parts),
            schema_version=self._metadata.schema(name, -1)[0],
            segments=[],
            segment_count=sum(part.segment_count for part in parts),
            cursors=sorted({cursor for part in parts for cursor in part.cursors}),
            properties=self._properties(name),
            partitions=[msgspec.structs.replace(part, segments=[]) for part in parts],
        )

    def _properties(self, name: str) -> dict[str, str]:
        return {pair.key: pair.value for pair in self._metadata.ledger(name).info.properties}

    def _require_no_partition(self, name: str) -> None:
        part = partition_of(name)
        if part is not None:
            whole, count = short_name(part[0]), self.count(part[0])
            has = f"has {count} partitions" if count else "is not a partitioned ledger"
            raise Refused(
                f"ledger name {short_name(name)!r} says partition {part[1]} of {whole!r}, which {has}",
                hint=f"Create {whole!r} with partitions, increase their number, or choose another name",
            )
