"""Start and end bounds of a read in each ledger, by its options, and the warning about a start option that is ignored.

Rules
- The start of a ledger is the first of these that is set. The end of a ledger is found alike.
  1. Its own place in `startingPositions` or `startingTimestamps`; a partition's own place before that of the whole.
  2. `startingPosition` or `startingTimestamp`, for all ledgers.
  3. The default of the use.
- A query begins at its checkpoint, else at its subscription's position, else where the options say. A start option
  that does not count is reported once in a run of a query.
- Spark asks a source for its start only if there is no checkpoint. A run that is given a start before it was asked
  therefore continues from a checkpoint.
- The report is a warning. Python shows nothing below that level in the process where Spark runs a source.
- Bounds are values, and finding them is pure. Only `IgnoredStart` logs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.names import partition_of
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.reads import LogStatus, ReadProgress

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a read in one ledger: a position or a time. `option` is the option that set it; empty for a default."""

    position: Position | None = None
    timestamp_ms: int | None = None
    option: str = ""

    @property
    def is_entry(self) -> bool:
        """Whether it is a certain entry's position."""
        return self.position not in (None, EARLIEST, LATEST)


UNBOUNDED = Bound()


class ReadBounds:
    """Both bounds of a read. A stream begins at the latest position by default, and may end later."""

    def __init__(self, options: LedgerOptions, *, stream: bool) -> None:
        self._stream = stream
        self._default = Bound(LATEST if stream else EARLIEST)
        self._options = options

    def start(self, log: str) -> Bound:
        options = self._options
        return (
            _own(log, options.starting_positions, options.starting_timestamps, "starting")
            or _of_all(options.starting_position, options.starting_timestamp, "starting")
            or self._default
        )

    def end(self, log: str) -> Bound:
        """Return the end bound of a ledger; UNBOUNDED if no option sets one."""
        options = self._options
        return (
            _own(log, options.ending_positions, options.ending_timestamps, "ending")
            or _of_all(options.ending_position, options.ending_timestamp, "ending")
            or UNBOUNDED
        )

    def initial_progress(self, names: Iterable[str]) -> dict[str, ReadProgress]:
        """Return the first read progress of these ledgers, and of each that an option names, by the options."""
        options = self._options
        places = (
            options.starting_positions, options.starting_timestamps,
            options.ending_positions, options.ending_timestamps,
        )  # fmt: skip
        return {name: self._initial_progress(name) for name in {*names, *(name for place in places for name in place)}}

    def _initial_progress(self, log: str) -> ReadProgress:
        """Return the progress by the bounds of a ledger; `begin` applies the position of an entry later."""
        start, end = self.start(log), self.end(log)
        return ReadProgress(
            position=None if start.is_entry else start.position,
            from_ms=start.timestamp_ms,
            until=end.position,
            until_ms=end.timestamp_ms,
            count=False,
        )

    def begin(self, log: LogStatus, logs: int) -> Position:
        """Return the start of a ledger, one of `logs`, by its first status; Refused or DataLoss for a wrong bound."""
        start, end = self.start(log.name), self.end(log.name)
        for edge in (start, end):
            if edge.is_entry:
                _require_one(edge, log.name, logs)
                if edge is start or not self._stream:
                    _require_within(edge, log)
        begin = start.position if start.is_entry and start.position is not None else log.begin
        if begin > log.stop and end is not UNBOUNDED and end.position != LATEST:
            raise Refused(
                f"the read of {log.name} begins at {begin} and ends before it, at {log.stop}",
                hint=f"By options {start.option or '(the default start)'!r} and {end.option!r}",
            )
        return begin


def _own(log: str, positions: Mapping[str, Position], times: Mapping[str, int], edge: str) -> Bound | None:
    part = partition_of(log)
    for name in (log,) if part is None else (log, part[0]):
        if name in positions:
            if name != log and positions[name] not in (EARLIEST, LATEST):
                raise Refused(
                    f"option '{edge}Positions' is {positions[name]} for {name}, which is partitioned",
                    hint=f"Positions belong to partitions: name one, such as {log}",
                )
            return Bound(positions[name], None, f"{edge}Positions")
        if name in times:
            return Bound(None, times[name], f"{edge}Timestamps")
    return None


def _of_all(position: Position | None, timestamp_ms: int | None, edge: str) -> Bound | None:
    if timestamp_ms is not None:
        return Bound(None, timestamp_ms, f"{edge}Timestamp")
    return None if position is None else Bound(position, None, f"{edge}Position")


def _require_one(edge: Bound, log: str, logs: int) -> None:
    if logs > 1 and not edge.option.endswith("s"):
        raise Refused(
            f"option {edge.option!r} is {edge.position}, a place in one ledger; {log} is one of {logs} that are read",
            hint=f"Name the ledger, or the partition, in '{edge.option}s'",
        )


def _require_within(edge: Bound, log: LogStatus) -> None:
    if edge.position is not None and not log.start <= edge.position <= log.end:
        raise DataLoss(
            f"option {edge.option!r} is {edge.position}, ledger {log.name} begins at {log.start} and ends at {log.end}",
            hint="Give a position within, or earliest or latest",
        )


class IgnoredStart:
    """Reporter of an ignored start option, once in a run."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._settled = False

    def asked(self, start_warning: str) -> None:
        """Log `start_warning` once: Spark has asked for the initial offset. Empty if no start option is ignored."""
        if not self._settled and start_warning:
            _log.warning("%s", start_warning)
        self._settled = True

    def told(self) -> None:
        """Handle a start that Spark gives: warn if a start option is set."""
        given = self._options.starting
        if not self._settled and given:
            _log.warning("the query goes on from its checkpoint: %s ignored", _named(given))
        self._settled = True


def subscription_warning(subscription: str, cursors: Mapping[str, Position], edges: ReadBounds) -> str:
    """Return the warning for cursors, by ledger, that existed before the query; empty if no option differs."""
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
