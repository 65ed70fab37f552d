"""Diagnosis of `ledger doctor`: in order, a warning, or a problem with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of a check and, unless it is in order, what to do."""

    check: str
    state: State
    found: str
    do: str = ""
