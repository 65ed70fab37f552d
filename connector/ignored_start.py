"""A starting option that is given and does not count, said once in a run of a query.

Where a query begins is its checkpoint's to say, then its subscription's, then the options'. Spark asks a source where
to begin only when there is no checkpoint, so a run that is given a start before it was asked goes on from one.

It is a warning: Python shows nothing less in the process where Spark runs a source.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from connector.options import LedgerOptions
from connector.read_edges import ReadEdges
from ledger.position import Position

_log = logging.getLogger(__name__)


class IgnoredStart:
    """Whether it was said in this run."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._settled = False

    def asked(self, overruled: str) -> None:
        """Spark asked where to begin. `overruled`: which option does not count, and why; empty when all do."""
        if not self._settled and overruled:
            _log.warning("%s", overruled)
        self._settled = True

    def told(self) -> None:
        """Spark told where to begin."""
        given = self._options.starting
        if not self._settled and given:
            _log.warning("the query goes on from its checkpoint: %s ignored", _named(given))
        self._settled = True


def overruled_by_subscription(subscription: str, cursors: Mapping[str, Position], edges: ReadEdges) -> str:
    """The words for cursors, by ledger, that stood before the query began; empty when no option says otherwise."""
    options = {name: edges.start(name).option for name in cursors}
    ledgers = [name for name, option in options.items() if option]
    if not ledgers:
        return ""
    others = f" and {len(ledgers) - 1} more" if len(ledgers) > 1 else ""
    given = _named(sorted({options[name] for name in ledgers}))
    return (
        f"subscription {subscription} exists in {ledgers[0]}{others}: "
        f"the query begins at {cursors[ledgers[0]]} there, {given} ignored"
    )


def _named(options: list[str]) -> str:
    return f"option {options[0]} is" if len(options) == 1 else f"options {', '.join(options)} are"
