"""Start and end bounds of a read in each ledger, from the options, and the warning about an ignored start option.

The page docs/concepts.md explains the words entry and cursor.

Rules
- The start of a ledger is the first of these that is set:
  1. The ledger's value in `startingPositions` or `startingTimestamps`. A value under a partition's own name takes
     precedence over the value under the name of its partitioned ledger.
  2. `startingPosition` or `startingTimestamp`, for all ledgers.
  3. The default of the read: earliest for a batch read, latest for a stream.
- The end of a ledger follows the same order, with the options `ending…`. By default a read has no end bound.
- A query starts at its checkpoint, else at its subscription's position, else at the bound that the options set. If a
  start option is ignored, a warning is logged once for each execution of a query.
- An *offset* is a position in each ledger; Spark stores offsets in the checkpoint. Spark asks a source for its initial
  offset only if there is no checkpoint. So if Spark passes an offset in its first call, the query continues from a
  checkpoint.
- The log level is WARNING. Reason: Python shows no lower level in the process where Spark runs a source.
- Bounds are values, and their computation has no side effects. Only `IgnoredStart` logs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.offsets import StreamOffset
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.names import partition_of
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.reads import LogStatus, ReadProgress

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a read in one ledger: a position or a time. `option` is the option that sets it, empty for a default."""

    position: Position | None = None
    timestamp_ms: int | None = None
    option: str = ""

    @property
    def is_entry(self) -> bool:
        """Whether the bound is the position of an entry, and not earliest, latest or a time."""
        return self.position not in (None, EARLIEST, LATEST)


UNBOUNDED = Bound()


class ReadBounds:
    """Start and end bounds of a read. By default, a stream starts at the latest position."""

    beginning: Position | None = None
    """Start of a ledger that a running query finds. None: the beginning of the ledger."""

    def __init__(self, options: LedgerOptions, *, stream: bool) -> None:
        self._stream = stream
        self._default = Bound(LATEST if stream else EARLIEST)
        self._options = options

    def start(self, log: str) -> Bound:
        options = self._options
        return (
            _ledger_bound(log, options.starting_positions, options.starting_timestamps, "starting")
            or _default_bound(options.starting_position, options.starting_timestamp, "starting")
            or self._default
        )

    def end(self, log: str) -> Bound:
        """Return the end bound of a ledger; UNBOUNDED if no option sets one."""
        options = self._options
        return (
            _ledger_bound(log, options.ending_positions, options.ending_timestamps, "ending")
            or _default_bound(options.ending_position, options.ending_timestamp, "ending")
            or UNBOUNDED
        )

    def initial_progress(self, names: Iterable[str]) -> dict[str, ReadProgress]:
        """Return the first request of a read for the state of its ledgers: the positions and times to find, by ledger.

        The request covers the ledgers `names`, and each ledger that an option names. The broker's reply has the state
        of each ledger, and the positions of its bounds.
        """
        options = self._options
        places = (
            options.starting_positions, options.starting_timestamps,
            options.ending_positions, options.ending_timestamps,
        )  # fmt: skip
        return {name: self._initial_progress(name) for name in {*names, *(name for place in places for name in place)}}

    def _initial_progress(self, log: str) -> ReadProgress:
        """Return the part of that request which asks the broker for the bounds of one ledger.

        The request leaves out a start that is the position of an entry, because `start_position` can use it directly.
        """
        start, end = self.start(log), self.end(log)
        return ReadProgress(
            position=None if start.is_entry else start.position,
            from_ms=start.timestamp_ms,
            until=end.position,
            until_ms=end.timestamp_ms,
            count=False,
        )

    def start_position(self, log: LogStatus, logs: int) -> Position:
        """Return the start position of a ledger. `logs` is the number of ledgers in the read.

        `log` is the broker's answer to the request of `initial_progress`.

        Raises Refused if a bound does not fit the ledgers, and DataLoss if a bound is outside of the ledger.
        """
        start, end = self.start(log.name), self.end(log.name)
        for bound in (start, end):
            if bound.is_entry:
                _require_one_ledger(bound, log.name, logs)
                if bound is start or not self._stream:
                    _require_within(bound, log)
        begin = start.position if start.is_entry and start.position is not None else log.begin
        if begin > log.stop and end is not UNBOUNDED and end.position != LATEST:
            raise Refused(
                f"the read of {log.name} begins at {begin} and ends before it, at {log.stop}",
                hint=f"Change {start.option or '(the default start)'!r} or {end.option!r}",
            )
        return begin


def _ledger_bound(log: str, positions: Mapping[str, Position], times: Mapping[str, int], side: str) -> Bound | None:
    part = partition_of(log)
    for name in (log,) if part is None else (log, part[0]):
        if name in positions:
            if name != log and positions[name] not in (EARLIEST, LATEST):
                raise Refused(
                    f"option '{side}Positions' is {positions[name]} for {name}, which is partitioned",
                    hint=f"Positions belong to partitions: name one, such as {log}",
                )
            return Bound(positions[name], None, f"{side}Positions")
        if name in times:
            return Bound(None, times[name], f"{side}Timestamps")
    return None


def _default_bound(position: Position | None, timestamp_ms: int | None, side: str) -> Bound | None:
    if timestamp_ms is not None:
        return Bound(None, timestamp_ms, f"{side}Timestamp")
    return None if position is None else Bound(position, None, f"{side}Position")


def _require_one_ledger(bound: Bound, log: str, logs: int) -> None:
    if logs > 1 and not bound.option.endswith("s"):
        raise Refused(
            f"option {bound.option!r} is {bound.position}, a position in one ledger; {log} is one of {logs} that are "
            "read",
            hint=f"Name the ledger, or the partition, in '{bound.option}s'",
        )


def _require_within(bound: Bound, log: LogStatus) -> None:
    if bound.position is not None and not log.start <= bound.position <= log.end:
        raise DataLoss(
            f"option {bound.option!r} is {bound.position}, ledger {log.name} begins at {log.start} "
            f"and ends at {log.end}",
            hint="Give a position in this range, or earliest or latest",
        )


class IgnoredStart:
    """Logger of a start option that has no effect. Logs at most once for each execution of a query."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._reported = False

    def on_initial_offset(self, start_warning: str) -> None:
        """Log `start_warning`, unless this run has logged a warning. Called when Spark asks for the initial offset."""
        if not self._reported and start_warning:
            _log.warning("%s", start_warning)
        self._reported = True

    def on_start_offset(self, start: StreamOffset) -> None:
        """Log a warning if a start option would begin elsewhere. Called when Spark passes a start offset."""
        names = self._options.starting
        if not self._reported and names and self._begins_elsewhere(start):
            _log.warning("the query continues from its checkpoint: %s ignored", _options_text(names))
        self._reported = True

    def _begins_elsewhere(self, start: StreamOffset) -> bool:
        """Return whether the options may give another start than the checkpoint. A time counts as another start."""
        if start.initial:
            return False  # the options gave this start
        bounds = ReadBounds(self._options, stream=True)
        wanted = {name: bounds.start(name).position for name in start.ledgers}
        return not start.ledgers or any(at.position != wanted[name] for name, at in start.ledgers.items())


def subscription_warning(subscription: str, cursors: Mapping[str, Position], bounds: ReadBounds) -> str:
    """Return the warning about start options that existing cursors override; empty without such options.

    `cursors` has the positions of the existing cursors, by ledger.
    """
    options = {name: bounds.start(name).option for name in cursors}
    ledgers = [name for name, option in options.items() if option]
    if not ledgers:
        return ""
    more = f" and {len(ledgers) - 1} more" if len(ledgers) > 1 else ""
    ignored = _options_text(sorted({options[name] for name in ledgers}))
    return (
        f"subscription {subscription} exists in {ledgers[0]}{more}: "
        f"the query begins at {cursors[ledgers[0]]} there, {ignored} ignored"
    )


def _options_text(options: list[str]) -> str:
    return f"option {options[0]} is" if len(options) == 1 else f"options {', '.join(options)} are"
