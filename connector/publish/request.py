"""How a ledger is published: what a user can say of it, checked before anything is done. Values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_ledger.connector.publish.segment_rows import BY_DATE, PartitionColumn
from pyspark_ledger.ledger.errors import Refused

_MIB = 1024 * 1024
FILE_BYTES = 128 * _MIB
_KEY = "__key"


@dataclass(frozen=True, slots=True)
class Publishing:
    """What is wanted beside ledger and table.

    file_bytes: about how much of the log goes into one file of the table.
    dead_letters: the table for rows that cannot be decoded; without one such a row fails its segment.
    restart: publish again from what is there, when table or ledger were made anew.
    accept_changes: go on although somebody else changed rows of the table.
    latest: a second table, with the newest row of each `key`, a column of the table; `deleted_when` is SQL over a row.
    follow_retention: delete rows of segments that retention took.
    seal_after_ms: seal what is being written when it is older than this; None: never.
    optimize_after: OPTIMIZE when so many segments came since the last one; 0: never.
    properties: of the table, when it is made.
    """

    partitions: tuple[PartitionColumn, ...] = BY_DATE
    file_bytes: int = FILE_BYTES
    dead_letters: str = ""
    latest: str = ""
    key: str = _KEY
    deleted_when: str = ""
    follow_retention: bool = False
    seal_after_ms: int | None = None
    restart: bool = False
    accept_changes: bool = False
    optimize_after: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("file_bytes", self.file_bytes), ("optimize_after", self.optimize_after)):
            _require_whole(name, value)
        if self.seal_after_ms is not None:
            _require_whole("seal_after_ms", self.seal_after_ms)
        if not _MIB <= self.file_bytes <= 16 * 1024 * _MIB:
            raise Refused(f"file_bytes is {self.file_bytes}, expected {_MIB} to {16 * 1024 * _MIB}")
        if not self.latest and (self.deleted_when or self.key != _KEY):
            said = "deleted_when" if self.deleted_when else "key"
            raise Refused(
                f"{said} is {(self.deleted_when or self.key)!r}, and there is no view for it: latest is empty",
                hint="Name with latest the table that keeps the newest row of each key",
            )
        names = [one.name for one in self.partitions]
        if len(set(names)) != len(names):
            raise Refused(f"partition columns {', '.join(names)} are not different", hint="Name each once")

    @classmethod
    def of(cls, partition_by: Sequence[str] | None = None, **options: object) -> Publishing:
        """From what a user writes: `partition_by` None is the publish date, empty is none."""
        if isinstance(partition_by, str):
            raise Refused(f"partition_by is the text {partition_by!r}", hint=f"Give a list: [{partition_by!r}]")
        if partition_by is None:
            return cls(**options)  # type: ignore[arg-type]  # each is named
        return cls(tuple(map(PartitionColumn.parse, partition_by)), **options)  # type: ignore[arg-type]


def _require_whole(name: str, value: object) -> None:
    if not isinstance(value, int) or value < 0:
        raise Refused(f"{name} is {value!r}, expected a whole number from 0")
