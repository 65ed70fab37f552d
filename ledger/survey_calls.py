"""What a client and the broker say to each other about many logs at once: a part of `ledger.protocol`.

A reader of a thousand ledgers asks as often as a reader of one. The lists of a reply are in the order of the request's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ledger.position import Position, PositionRange
from ledger.wire_names import Name
from ledger.wire_numbers import Int64, NotNegative

SURVEY_MAX = 100_000


class Reading(msgspec.Struct, frozen=True, omit_defaults=True):
    """From where to where somebody reads one log.

    It begins at `position`, or with the first entry stored at or after `from_ms`, or where the log does; it ends at
    `until`, or with the last entry stored before `until_ms`, or where the log does. A position means something in one
    log only: with another `incarnation` than the log's, all of this is passed over, and the answer says which it is.
    Without `count` the answer says places only, and no index is looked at. What a `cursor` of the log has acknowledged
    is not left (`ledger.left_entries`); one that is not there has acknowledged nothing.
    """

    position: Position | None = None
    incarnation: Name = ""
    from_ms: Int64 | None = None
    until: Position | None = None
    until_ms: Int64 | None = None
    count: bool = True
    cursor: Name = ""


class AskSurvey(msgspec.Struct, frozen=True):
    """How do these ledgers stand? A partitioned one stands for its partitions.

    `readings` are by canonical name, of a log or of the partitioned ledger that it is part of; `otherwise` counts for
    the rest.
    """

    names: Annotated[list[Name], msgspec.Meta(max_length=SURVEY_MAX)]
    readings: dict[Name, Reading] = {}
    otherwise: Reading = Reading()


class TrimmedEntries(msgspec.Struct, frozen=True):
    """What retention took from a reading. Rows and bytes of a ledger that it had read in part are its share of them.

    Of what was trimmed by a release that kept no account, nothing is `known`.
    """

    range: PositionRange
    entries: int
    rows: int
    size_bytes: int
    known: bool = True


class SurveyedLog(msgspec.Struct, frozen=True, omit_defaults=True):
    """One log and what a reading of it has left: the committed entries of `[begin, stop)`.

    The head is what comes first: up to the first entry that has rows, with the time at which the broker stored that.
    """

    name: str
    incarnation: str
    start: Position
    end: Position
    begin: Position
    stop: Position
    entries: int = 0
    rows: int = 0
    size_bytes: int = 0
    head_rows: int = 0
    head_bytes: int = 0
    head_ms: int = 0
    last_publish_ms: int = 0
    terminated: bool = False
    trimmed: TrimmedEntries | None = None


class Survey(msgspec.Struct, frozen=True):
    """All logs that were asked for, those that are `missing`, and the time at the broker."""

    now_ms: int
    logs: list[SurveyedLog]
    missing: list[str] = []


class Quota(msgspec.Struct, frozen=True):
    """A range of one log, and the most that may be read of it; what `cursor` has acknowledged counts nothing."""

    name: Name
    range: PositionRange
    rows: NotNegative
    size_bytes: NotNegative
    cursor: Name = ""


class AskQuotas(msgspec.Struct, frozen=True):
    """How far does each quota reach?"""

    quotas: Annotated[list[Quota], msgspec.Meta(max_length=SURVEY_MAX)]
