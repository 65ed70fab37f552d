"""Result of a move."""

from __future__ import annotations

from typing import NamedTuple


class MoveSummary(NamedTuple):
    """Moved store: its new place, and the numbers of ledgers, copied segments and verified entries.

    All numbers are 0 if this run of the command did only the last step.
    """

    place: str
    ledgers: int
    segments: int
    entries: int
