"""Metadata in the commits of a published table, and conclusions from a table's commits. Pure values.

    {"publication":1,"kind":"segment","ledger":"public/default/persistent/orders","incarnation":"…",
     "segment":7,"last":"7:1233","rows":1000,"after":12}

is the `userMetadata` of every commit of a publisher. Delta also keeps the newest `segment` of each `app_id`
permanently, and skips a commit whose segment is not greater.

Rules
- The segments of a log are committed in order, one per commit. If a segment is committed, so are all segments before.
- A foreign change is a commit that changes rows and is not a publisher's. Commits that only rewrite or describe rows
  are not foreign changes.
- A segment's commit states in `after` up to which version its publisher has reviewed the commits. Another program may
  commit between the review and the publisher's own commit. The next publisher reviews such a commit.
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
"""Segment id that means: no segment is published."""
_VERSION = 1
# Delta operations that do not change rows.
_SAME_ROWS = frozenset(
    {
        "OPTIMIZE", "VACUUM START", "VACUUM END", "REORG", "CLUSTER BY", "COMPUTE STATS", "ANALYZE TABLE",
        "CREATE TABLE", "CREATE TABLE AS SELECT", "ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "RENAME COLUMN",
        "UPDATE SCHEMA", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT",
        "UPGRADE PROTOCOL", "ADD FEATURE", "DROP FEATURE", "FSCK", "DOMAIN METADATA CLEANUP", "SET TABLE COMMENT",
    }
)  # fmt: skip


class Publication(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metadata of a publisher's commit. `last` is the position of the segment's last entry. `rows` -1: not counted.

    `after` is the version up to which foreign changes were reviewed: -1 before the table's first commit, None in
    commits of an earlier release.
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
    """Commit in the history of a table."""

    version: int
    operation: str
    user_metadata: str | None = None
    when: str = ""

    @property
    def publication(self) -> Publication | None:
        """The publisher's metadata; None if the commit is not a publisher's."""
        return parse_publication(self.user_metadata)


def app_id(ledger: str, incarnation: str) -> str:
    """Return Delta's application id for one incarnation of a log."""
    return f"ledger:{ledger}:{incarnation}"


def parse_publication(text: str | None) -> Publication | None:
    """Parse a commit's metadata. Returns None if it is not a publisher's.

    Raises Unsupported if a later release wrote the metadata.
    """
    if not text or not text.startswith("{"):
        return None
    try:
        head = msgspec.json.decode(text, type=_Head)
    except JSON_FAULTS:
        return None
    if head.publication != _VERSION:
        raise Unsupported(
            f"the table has a commit of publication {head.publication}, this release knows {_VERSION}",
            hint="Publish with the release that wrote the commit, or a later release",
        )
    try:
        return msgspec.json.decode(text, type=Publication)
    except JSON_FAULTS:
        return None


def find_newest_segment(changes: Iterable[TableChange], ledger: str, kind: Kind = "segment") -> Publication | None:
    """Return the newest commit of `kind` for this log, or None. `changes` may be in any order."""
    newest: tuple[int, Publication] | None = None
    for change in changes:
        publication = change.publication
        if publication is None or publication.kind != kind or publication.ledger != ledger:
            continue
        if newest is None or change.version > newest[0]:
            newest = change.version, publication
    return None if newest is None else newest[1]


def find_foreign_change(changes: Sequence[TableChange]) -> TableChange | None:
    """Return the newest foreign change that no publisher has reviewed, or None."""
    reviewed = _reviewed_version(changes)
    for change in sorted(changes, key=lambda change: -change.version):
        if change.version <= reviewed:
            return None
        if change.publication is None and change.operation.upper() not in _SAME_ROWS:
            return change
    return None


def covers_unreviewed_commits(changes: Sequence[TableChange]) -> bool:
    """Return whether `changes` reach back to the first commit that no publisher has reviewed."""
    reviewed = _reviewed_version(changes)
    return any(change.version <= max(reviewed + 1, 0) for change in changes)


def _reviewed_version(changes: Sequence[TableChange]) -> int:
    """Return the version up to which a publisher reviewed. Earlier releases reviewed up to their own commit."""
    reviewed = NO_SEGMENT
    for change in changes:
        publication = change.publication
        if publication is not None and publication.kind == "segment":
            reviewed = max(reviewed, change.version if publication.after is None else publication.after)
    return reviewed
