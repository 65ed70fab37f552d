"""Diagnosis of `ledger doctor`: in order, a warning, or a problem with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
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

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report in text: the result, and what to do."""
        yield f"{self.state:8}{self.check}: {self.found}"
        if self.do:
            yield f"{'':8}→ {self.do}"
