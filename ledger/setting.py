"""How one setting of the broker is documented and what it allows; `ledger.settings` holds them all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is documented: what it counts, what is allowed, and why it is what it is.

    `live`: it is read at each use, so that it can be changed while the broker runs.
    """

    unit: str
    least: int
    most: int
    reason: str
    live: bool = False


@dataclass(frozen=True, slots=True)
class TextSetting:
    """One setting that is a text: what kind of text, and why it is there."""

    kind: str
    reason: str
    live: bool = False
    choices: tuple[str, ...] = ()
