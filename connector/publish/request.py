"""Options of a publication, validated before any write. Pure functions.

The page docs/concepts.md explains the words segment, log and dead letter.
"""

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
    """Options of a publication, in addition to ledger and table.

    - partitions: partition columns of a new table.
    - file_bytes: about how many bytes of the log go into one data file of the table.
    - dead_letters: table for rows that cannot be decoded. If it is empty, such a row fails the publication of its
      segment.
    - restart: continue with the existing segments after the table or the ledger was deleted and created again.
    - accept_changes: continue although another program changed rows of the table, or another store published to it.
    - latest: a second table, with only the newest row of each key.
    - key: column of the published table with the key.
    - deleted_when: SQL condition for rows that delete their key from `latest`.
    - follow_retention: delete the rows of segments that the log's retention deleted.
    - seal_after_ms: seal the open segment if it is older than this number of milliseconds. None means never.
    - optimize_after: run OPTIMIZE after this number of segments. 0 means never.
    - properties: table properties of a new table.
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
            option = "deleted_when" if self.deleted_when else "key"
            raise Refused(
                f"{option} is {(self.deleted_when or self.key)!r}, but there is no view: latest is empty",
                hint="Set latest to the table for the newest row of each key",
            )
        names = [column.name for column in self.partitions]
        if len(set(names)) != len(names):
            raise Refused(f"partition columns {', '.join(names)} name a column twice", hint="Name each column once")

    @classmethod
    def of(cls, partition_by: Sequence[str] | None = None, **options: object) -> Publishing:
        """Return the options for a user's arguments.

        `partition_by` is None for the publish date, and an empty list for no partition columns.
        """
        if isinstance(partition_by, str):
            raise Refused(f"partition_by is the text {partition_by!r}", hint=f"Give a list: [{partition_by!r}]")
        if partition_by is None:
            return cls(**options)  # type: ignore[arg-type]  # keyword arguments of this class
        return cls(tuple(map(PartitionColumn.parse, partition_by)), **options)  # type: ignore[arg-type]


def _require_whole(name: str, value: object) -> None:
    if not isinstance(value, int) or value < 0:
        raise Refused(f"{name} is {value!r}, expected a whole number from 0")
