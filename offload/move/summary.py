"""Result of a move."""

from __future__ import annotations

from typing import NamedTuple


class MoveSummary(NamedTuple):
    """Moved store: its new place, and numbers of ledgers, copied segments and verified entries.

    All numbers are 0 if an earlier run had only left the end of the move.
    """

    place: str
    ledgers: int
    segments: int
    entries: int
