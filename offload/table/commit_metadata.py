"""Metadata in the commits of a published table, and the search for commits of other programs. Pure functions.

The page docs/concepts.md explains the words log, segment and incarnation.

Every commit of a publisher has this text as `userMetadata`:

    {"publication":1,"kind":"segment","ledger":"public/default/persistent/orders","incarnation":"…",
     "segment":7,"last":"7:1233","rows":1000,"after":12}

Each log has an application id (`app_id`). Delta also stores the newest `segment` for each application id, and skips a
commit whose segment is not greater. So a repeated commit has no effect.

Rules
- The segments of a log are committed in order, one in each commit. If a segment is committed, so are all earlier
  segments.
- A *foreign change* is a commit of another program that changes rows. Commits that only rewrite or describe rows are
  not foreign changes.
- Before a publisher commits a segment, it *reviews* the table's commits: it looks for foreign changes. In the segment's
  commit, `after` is the last reviewed version.
- Another program may commit between the review and the publisher's commit. The next publisher reviews that commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS

Kind = Literal["create", "segment", "retention", "view"]
NO_SEGMENT = -1
"""Segment id of a log without a published segment."""
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
    """Metadata of a publisher's commit. `last` is the position of the segment's last entry.

    `rows` is -1 if the rows were not counted. `after` is the last reviewed version: -1 before the table's first commit,
    None in commits of an earlier release. `store` is the id of the store, empty for a bucket without a store.
    """

    kind: Kind
    ledger: str = ""
    incarnation: str = ""
    segment: int = NO_SEGMENT
    last: str = ""
    rows: int = -1
    after: int | None = None
    store: str = ""

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
        """The publisher's metadata; None for a commit of another program."""
        return parse_publication(self.user_metadata)


def require_same_store(found: Publication, store_id: str, table: str) -> None:
    """Raise Refused if another store published the newest segment of this incarnation: a copy or its original.

    The segments of both have the same numbers. So Delta would skip a segment that the other store has published.
    """
    if found.store and store_id and found.store != store_id:
        raise Refused(
            f"{table} has segment {found.segment} of {found.ledger} from store {found.store}, this is store "
            f"{store_id}: one of them is a copy of the other",
            hint="Publish to another table. If nobody uses that store any more, publish once with accept_changes",
        )


def app_id(ledger: str, incarnation: str) -> str:
    """Return the application id under which Delta stores the newest segment of one incarnation of a log."""
    return f"ledger:{ledger}:{incarnation}"


def parse_publication(text: str | None) -> Publication | None:
    """Parse a commit's metadata. Returns None for a commit of another program.

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
            f"the table has a commit of publication {head.publication}, this release reads publication {_VERSION}",
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
    """Return the last reviewed version. If a commit of an earlier release states none, its own version counts."""
    reviewed = NO_SEGMENT
    for change in changes:
        publication = change.publication
        if publication is not None and publication.kind == "segment":
            reviewed = max(reviewed, change.version if publication.after is None else publication.after)
    return reviewed
