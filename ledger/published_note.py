"""How far a log is published in a table, as its publisher told the broker: a property of the ledger.

    published:/tables/orders = {"table":"<Delta's id of the table>","segment":7}

Rules: it is left after the commit that it tells of, so it is never ahead of the table. It decides nothing of what is
published: it lets retention know, and tells a table that was made anew from the one before. Of several tables the one
that is behind counts; a note that cannot be read counts as nothing published.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ledger.json_faults import JSON_FAULTS

_PREFIX = "published:"
NOT_PUBLISHED = -1


class PublishedNote(msgspec.Struct, frozen=True, rename={"table_id": "table"}):
    """How far a log is in the table of this id: `segment` and all before it."""

    table_id: str
    segment: int

    @classmethod
    def of(cls, properties: Mapping[str, str], target: str) -> PublishedNote | None:
        """The note about a table; None when there is none that can be read."""
        try:
            return msgspec.json.decode(properties.get(_PREFIX + target, ""), type=cls)
        except JSON_FAULTS:
            return None

    def properties(self, target: str) -> dict[str, str]:
        """The property to set."""
        return {_PREFIX + target: msgspec.json.encode(self).decode()}


def published_everywhere(properties: Mapping[str, str]) -> int:
    """The newest segment that is in all tables that the log is published to; NOT_PUBLISHED where there is none."""
    targets = [name.removeprefix(_PREFIX) for name in properties if name.startswith(_PREFIX)]
    notes = [PublishedNote.of(properties, target) for target in targets]
    return min((NOT_PUBLISHED if note is None else note.segment for note in notes), default=NOT_PUBLISHED)
