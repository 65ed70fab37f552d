"""Where the options say that a read of each ledger begins and ends: values, and pure.

Of one ledger counts, in this order: its own place in `startingPositions` or `startingTimestamps` (a partition's own
before that of the whole), `startingPosition` or `startingTimestamp` for all, the default of the use. Ends alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from connector.options import LedgerOptions
from ledger.errors import DataLoss, Refused
from ledger.partitions import partition_of
from ledger.position import EARLIEST, LATEST, Position
from ledger.survey_calls import Reading, SurveyedLog


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of a read, in one ledger: a position or a time. `option` is what said so; empty for a default."""

    position: Position | None = None
    timestamp_ms: int | None = None
    option: str = ""

    @property
    def is_entry(self) -> bool:
        """Whether it is a certain entry's position."""
        return self.position not in (None, EARLIEST, LATEST)


NOWHERE = Edge()


class ReadEdges:
    """Both ends of a read. A stream begins at the latest position unless something else is said, and may end later."""

    def __init__(self, options: LedgerOptions, *, stream: bool) -> None:
        self._stream = stream
        self._default = Edge(LATEST if stream else EARLIEST)
        self._options = options

    def start(self, log: str) -> Edge:
        """Where a ledger begins."""
        options = self._options
        return (
            _own(log, options.starting_positions, options.starting_timestamps, "starting")
            or _of_all(options.starting_position, options.starting_timestamp, "starting")
            or self._default
        )

    def end(self, log: str) -> Edge:
        """Where a ledger ends; NOWHERE when nothing says so."""
        options = self._options
        return (
            _own(log, options.ending_positions, options.ending_timestamps, "ending")
            or _of_all(options.ending_position, options.ending_timestamp, "ending")
            or NOWHERE
        )

    def first_readings(self, names: Iterable[str]) -> dict[str, Reading]:
        """For each of these ledgers, and each that an option names, the reading that begins where the options say."""
        options = self._options
        places = (
            options.starting_positions, options.starting_timestamps,
            options.ending_positions, options.ending_timestamps,
        )  # fmt: skip
        return {name: self._first_reading(name) for name in {*names, *(name for place in places for name in place)}}

    def _first_reading(self, log: str) -> Reading:
        """Of an entry's position it is for `begin` to say."""
        start, end = self.start(log), self.end(log)
        return Reading(
            position=None if start.is_entry else start.position,
            from_ms=start.timestamp_ms,
            until=end.position,
            until_ms=end.timestamp_ms,
            count=False,
        )

    def begin(self, log: SurveyedLog, logs: int) -> Position:
        """Where the read of a ledger begins, by its first reading of `logs` at once; checked against what it has."""
        start, end = self.start(log.name), self.end(log.name)
        for edge in (start, end):
            if edge.is_entry:
                _require_one(edge, log.name, logs)
                if edge is start or not self._stream:
                    _require_within(edge, log)
        begin = start.position if start.is_entry and start.position is not None else log.begin
        if begin > log.stop and end is not NOWHERE and end.position != LATEST:
            raise Refused(
                f"the read of {log.name} begins at {begin} and ends before it, at {log.stop}",
                hint=f"By options {start.option or '(the default start)'!r} and {end.option!r}",
            )
        return begin


def _own(log: str, positions: Mapping[str, Position], times: Mapping[str, int], edge: str) -> Edge | None:
    part = partition_of(log)
    for name in (log,) if part is None else (log, part[0]):
        if name in positions:
            if name != log and positions[name] not in (EARLIEST, LATEST):
                raise Refused(
                    f"option '{edge}Positions' is {positions[name]} for {name}, which is partitioned",
                    hint=f"Positions belong to partitions: name one, such as {log}",
                )
            return Edge(positions[name], None, f"{edge}Positions")
        if name in times:
            return Edge(None, times[name], f"{edge}Timestamps")
    return None


def _of_all(position: Position | None, timestamp_ms: int | None, edge: str) -> Edge | None:
    if timestamp_ms is not None:
        return Edge(None, timestamp_ms, f"{edge}Timestamp")
    return None if position is None else Edge(position, None, f"{edge}Position")


def _require_one(edge: Edge, log: str, logs: int) -> None:
    if logs > 1 and not edge.option.endswith("s"):
        raise Refused(
            f"option {edge.option!r} is {edge.position}, a place in one ledger; {log} is one of {logs} that are read",
            hint=f"Name the ledger, or the partition, in '{edge.option}s'",
        )


def _require_within(edge: Edge, log: SurveyedLog) -> None:
    if edge.position is not None and not log.start <= edge.position <= log.end:
        raise DataLoss(
            f"option {edge.option!r} is {edge.position}, ledger {log.name} begins at {log.start} and ends at {log.end}",
            hint="Give a position within, or earliest or latest",
        )
