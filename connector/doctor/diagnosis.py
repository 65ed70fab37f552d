"""Diagnosis of `ledger doctor`: the result of one check, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of a check. `do` says what the user can do; it is empty if the state is `ok`."""

    check: str
    state: State
    found: str
    do: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text report: the result, and what to do."""
        yield f"{self.state:8}{self.check}: {self.found}"
        if self.do:
            yield f"{'':8}→ {self.do}"
