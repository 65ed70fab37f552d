"""Partitioned ledgers of a store: their creation, extension, description and deletion.

Rules
- A partitioned ledger has no entries of its own and is never opened.
- A partition is a ledger: it is opened, appended to and read like any other ledger. But it is created and deleted only
  together with its partitioned ledger.
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
    """Partitioned ledgers in the metadata of a store. Keeps no state."""

    def __init__(self, metadata: Metadata, new_incarnation: Callable[[], str]) -> None:
        self._metadata = metadata
        self._new_incarnation = new_incarnation

    def count(self, name: str) -> int:
        """Return the number of partitions. Returns 0 for a missing ledger and for a ledger without partitions."""
        if not self._metadata.exists(name):
            return 0
        return partition_count(self._properties(name))

    def create(self, name: str, partitions: int, properties: Mapping[str, str], *, exist_ok: bool) -> None:
        """Create a partitioned ledger with all its partitions, in one transaction."""
        self._require_no_partition(name)
        self._metadata.create_partitioned(name, partitions, properties, self._new_incarnation, exist_ok=exist_ok)

    def extend(self, name: str, partitions: int) -> None:
        """Increase the number of partitions, in one transaction."""
        self._metadata.extend_partitioned(name, partitions, self._new_incarnation)

    def require_single(self, name: str) -> None:
        """Raise Refused if the ledger is partitioned, and so cannot be opened."""
        count = self.count(name)
        if count:
            raise Refused(
                f"ledger {short_name(name)!r} has {count} partitions and no entries of its own",
                hint=f"Name a partition, such as {short_name(partition_name(name, 0))!r}",
            )

    def require_creatable(self, name: str) -> None:
        """Raise Refused for the name of a partition that does not exist: partitions are not created one by one."""
        if not self._metadata.exists(name):
            self._require_no_partition(name)

    def deleted_with(self, name: str) -> list[str]:
        """Return this ledger and its partitions, which are deleted together. Raises Refused for a single partition."""
        part = partition_of(name)
        count = 0 if part is None else self.count(part[0])
        if part is not None and part[1] < count:
            raise Refused(
                f"ledger {short_name(name)!r} is one of the {count} partitions of {short_name(part[0])!r}",
                hint=f"Delete {short_name(part[0])!r} with all its partitions",
            )
        return [name, *partition_names(name, self.count(name))]

    def describe(self, name: str, parts: Sequence[LedgerDescription]) -> LedgerDescription:
        """Describe a partitioned ledger. Its counts are the sums of its partitions. It has no positions."""
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
            partitioned, count = short_name(part[0]), self.count(part[0])
            has = f"has {count} partitions" if count else "is not a partitioned ledger"
            raise Refused(
                f"ledger name {short_name(name)!r} means partition {part[1]} of {partitioned!r}, which {has}",
                hint=f"Create {partitioned!r} with partitions, increase their number, or choose another name",
            )
