"""What a commit of a published table says of itself, and what follows from the commits of a table. Values, and pure.

    {"publication":1,"kind":"segment","ledger":"public/default/persistent/orders","incarnation":"…",
     "segment":7,"last":"7:1233","rows":1000,"after":12}

stands as `userMetadata` in every commit that is ours. Delta keeps beside it, for good, the newest `segment` of each
`app_id`: it passes over a commit whose segment is not above that.

Rules
- Segments of a log are committed in order, each by itself, so the newest one that is committed says that all before it
  are there.
- A commit that changes rows and is not ours is somebody else's change. What only rewrites or describes them is not.
- A segment says up to which version its publisher had looked for such changes: others may commit between its looking
  and its writing, and what stands there is looked at by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS

Kind = Literal["create", "segment", "retention", "view"]
NO_SEGMENT = -1
"""What is published of a log of which nothing is."""
_VERSION = 1
# Of Delta's operations those that leave all rows as they are.
_SAME_ROWS = frozenset(
    {
        "OPTIMIZE", "VACUUM START", "VACUUM END", "REORG", "CLUSTER BY", "COMPUTE STATS", "ANALYZE TABLE",
        "CREATE TABLE", "CREATE TABLE AS SELECT", "ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "RENAME COLUMN",
        "UPDATE SCHEMA", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT",
        "UPGRADE PROTOCOL", "ADD FEATURE", "DROP FEATURE", "FSCK", "DOMAIN METADATA CLEANUP", "SET TABLE COMMENT",
    }
)  # fmt: skip


class Publication(msgspec.Struct, frozen=True, omit_defaults=True):
    """One commit of ours. `last` is the position of the segment's last entry; `rows` -1: nobody counted them.

    `after`: the version up to which others' changes are known; -1 before a table's first, None of an earlier release.
    """

    kind: Kind
    ledger: str = ""
    incarnation: str = ""
    segment: int = NO_SEGMENT
    last: str = ""
    rows: int = -1
    after: int | None = None

    def text(self) -> str:
        return msgspec.json.encode({"publication": _VERSION, **msgspec.to_builtins(self)}).decode()


class _Head(msgspec.Struct, frozen=True):
    publication: int


@dataclass(frozen=True, slots=True)
class TableChange:
    """One commit of a table, as its history tells it."""

    version: int
    operation: str
    user_metadata: str | None = None
    when: str = ""

    @property
    def publication(self) -> Publication | None:
        """What it says, if it is ours."""
        return parse_publication(self.user_metadata)


def app_id(ledger: str, incarnation: str) -> str:
    """Whose segments Delta counts: one life of one log."""
    return f"ledger:{ledger}:{incarnation}"


def parse_publication(text: str | None) -> Publication | None:
    """What a commit says, None when it is not ours; Unsupported when a later release wrote it."""
    if not text or not text.startswith("{"):
        return None
    try:
        head = msgspec.json.decode(text, type=_Head)
    except JSON_FAULTS:
        return None
    if head.publication != _VERSION:
        raise Unsupported(
            f"the table has a commit of publication {head.publication}, this release knows {_VERSION}",
            hint="Publish with the release that wrote it, or a later one",
        )
    try:
        return msgspec.json.decode(text, type=Publication)
    except JSON_FAULTS:
        return None


def find_newest_segment(changes: Iterable[TableChange], ledger: str, kind: Kind = "segment") -> Publication | None:
    """The newest commit of a segment of this log, or of a view up to one; `changes` in any order."""
    newest: tuple[int, Publication] | None = None
    for change in changes:
        said = change.publication
        if said is None or said.kind != kind or said.ledger != ledger:
            continue
        if newest is None or change.version > newest[0]:
            newest = change.version, said
    return None if newest is None else newest[1]


def find_foreign_change(changes: Sequence[TableChange]) -> TableChange | None:
    """The newest change of rows by somebody else that no segment's publisher has looked at; None when there is none."""
    looked = _looked_up_to(changes)
    for change in sorted(changes, key=lambda one: -one.version):
        if change.version <= looked:
            return None
        if change.publication is None and change.operation.upper() not in _SAME_ROWS:
            return change
    return None


def covers_unreviewed_commits(changes: Sequence[TableChange]) -> bool:
    """Whether these newest commits go back to the last one that nobody has looked at."""
    looked = _looked_up_to(changes)
    return any(one.version <= max(looked + 1, 0) for one in changes)


def _looked_up_to(changes: Sequence[TableChange]) -> int:
    """The version up to which a publisher has looked; a segment of an earlier release says it of all before it."""
    looked = NO_SEGMENT
    for change in changes:
        said = change.publication
        if said is not None and said.kind == "segment":
            looked = max(looked, change.version if said.after is None else said.after)
    return looked
