"""Rows that an ended run of a query has left unread, from Spark's progress of its last batch.

Spark 4.0 and 4.1 have no *admission control* (`connector.spark_features`): they run Trigger.AvailableNow as one
micro-batch. Such a run ends without an error, also if a limit ended the batch, or if the batch only repeats an
unfinished one.

Rules
- The report of a batch has the end of each ledger when the batch was planned, and the unread rows before that end. A
  batch that no limit ended has left no rows.
- Spark measures `latestOffset` only in a trigger that plans a batch, and `addBatch` only in a trigger that runs one.
- `FixedEnds` takes the ends from the first batch that a run plans. Rows that are appended later do not move the ends.
- A stream of a bucket has no report. Its run has left no rows only if it found no batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark_ledger.connector.read.offsets import REPORT_KEY, LedgerOffset, StreamOffset
from pyspark_ledger.connector.read.progress import NOT_LIMITED, parse_report, parse_source_identity, source_report
from pyspark_ledger.connector.spark_features import spark_features
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.position import Position

_Key = tuple[int, str]


class FixedEnds:
    """Ends of a query's ledgers, by the number of the source and the ledger. The first planned batch sets them."""

    def __init__(self) -> None:
        self._ends: dict[_Key, LedgerOffset] | None = None
        self._left: dict[_Key, int] = {}

    @property
    def left(self) -> dict[str, int]:
        """Rows before the ends that are not read, by the short name of the ledger. At most so many are left."""
        left: dict[str, int] = {}
        for (_, name), rows in self._left.items():
            left[short_name(name)] = left.get(short_name(name), 0) + rows
        return left

    def are_reached(self, progress: Mapping[str, Any]) -> bool:
        """Return whether a run has read everything before the ends. `progress` is that of its last trigger."""
        if not progress or not has_batch(progress):
            self._left = {}
            return True
        once = ends_after_one_batch(progress)
        if once and not is_planned(progress):
            return False
        found = {key: (reached, end, rows) for key, reached, end, rows in _unread(progress)}
        if self._ends is None:
            self._ends = {key: end for key, (_, end, _) in found.items()}
            self._left = {key: rows for key, (_, _, rows) in found.items()}
        left = {}
        for key, rows in self._left.items():
            end = self._ends[key]
            reached, now, unread = found.get(key, (Position(0, 0), end, 0))
            if unread and now.incarnation == end.incarnation and reached < end.position:
                left[key] = min(rows, unread)
        self._left = left
        return not left and not (once and any(source_report(source) is None for source in _ledger_sources(progress)))


def has_batch(progress: Mapping[str, Any]) -> bool:
    """Return whether the trigger of a progress ran a batch."""
    return "addBatch" in progress.get("durationMs", {"addBatch": 0})


def is_planned(progress: Mapping[str, Any]) -> bool:
    """Return whether the batch of a progress was planned by its run. Otherwise it repeats an unfinished batch."""
    return "latestOffset" in progress.get("durationMs", {"latestOffset": 0})


def end_offsets(progress: Mapping[str, Any]) -> list[Mapping[str, LedgerOffset]]:
    """Return the ends of the ledgers in the batch of a progress, for each source that reads ledgers."""
    return [StreamOffset.from_json(parse_report(source["endOffset"])).ledgers for source in _ledger_sources(progress)]


def ends_after_one_batch(progress: Mapping[str, Any]) -> bool:
    """Return whether the query reads a ledger on a Spark that runs Trigger.AvailableNow as one micro-batch."""
    sources = list(_ledger_sources(progress))
    carried = any(REPORT_KEY in (parse_report(source.get("endOffset")) or {}) for source in sources)
    return carried or (bool(sources) and not spark_features().admission_control)


def _ledger_sources(progress: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for source in progress.get("sources", []):
        end = parse_report(source.get("endOffset"))
        if isinstance(end, Mapping) and "ledgers" in end:
            yield source


def _unread(progress: Mapping[str, Any]) -> Iterator[tuple[_Key, Position, LedgerOffset, int]]:
    """Yield each ledger in which a limit ended the batch: the batch's end, the ledger's end, and the rows between."""
    for number, source in enumerate(progress.get("sources", [])):
        report = source_report(source)
        if parse_source_identity(report) is None or report["batch"]["endedBy"] in NOT_LIMITED:
            continue
        reached = StreamOffset.from_json(parse_report(source.get("endOffset"))).ledgers
        ledgers = {name: (at["ledger"], at["entry"], at["id"], at["lagRows"]) for name, at in report["ledgers"].items()}
        for name, (ledger, entry, incarnation, rows) in (ledgers | report.get("otherLedgers", {})).items():
            if rows:
                first = reached[name].position if name in reached else Position(0, 0)
                yield (number, name), first, LedgerOffset(Position(ledger, entry), str(incarnation)), int(rows)
