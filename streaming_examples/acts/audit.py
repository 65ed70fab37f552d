"""Audit: every flight is in the ledger exactly once, unchanged, and the windows are right.

The audit compares the ledger and the daily windows with the source. It does not use Spark: it reads the ledger in
Python, and computes the windows with pyarrow. A check states its condition, its result, and the numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_examples.acts.batch_files import BatchFiles
from streaming_examples.acts.daily_windows import KEY, differences, expected

FLIGHT_KEY = ["time_hour", "carrier", "flight"]


@dataclass(frozen=True, slots=True)
class Check:
    """Condition that must hold, and its result."""

    what: str
    held: bool
    numbers: str


def exactly_once(found: pa.Table, source: pa.Table) -> list[Check]:
    """Check that `found` and `source` have the same rows, each the same number of times."""
    # The columns of `found` are views of mapped files, at any address. Arrow's joins need aligned columns.
    found = found.combine_chunks()
    counts = found.group_by(FLIGHT_KEY).aggregate([([], "count_all")])["count_all"]
    distinct = len(counts)
    missing = source.select(FLIGHT_KEY).join(found.select(FLIGHT_KEY), FLIGHT_KEY, join_type="left anti").num_rows
    order = [(name, "ascending") for name in FLIGHT_KEY]
    same = found.schema.equals(source.schema) and found.sort_by(order).equals(source.sort_by(order))
    return [
        Check("no two flights of the source have the same key", _is_key(source), " + ".join(FLIGHT_KEY)),
        Check("no flight is missing", missing == 0, f"{missing} of {source.num_rows:,}"),
        Check(
            "no flight is in the ledger twice",
            found.num_rows == distinct,
            f"{found.num_rows - distinct} of {distinct:,}",
        ),
        Check(f"all {len(source.schema)} columns of all rows are equal", same, f"{found.num_rows:,} rows"),
    ]


def windows_right(files: BatchFiles, flights: pa.Table, weather: pa.Table) -> list[Check]:
    """Check that the newest row of each window equals the row that pyarrow computes from the source."""
    right = expected(flights, weather)
    newest = files.newest(["day", "origin"])
    wrong = differences(newest.select(right.column_names).sort_by(KEY), right)
    return [
        Check("daily windows are those of the source", not wrong, "; ".join(wrong) or f"{right.num_rows:,} windows")
    ]


def nothing_dropped(progress: Path, files: BatchFiles) -> list[Check]:
    """Check by Spark's progress that no row came too late for the watermark.

    The progress of one batch may be missing, because the reader was killed before Spark reported it. `windows_right`
    finds a row that was dropped in that batch.
    """
    batches = _batches(progress)
    dropped = sum(operator["numRowsDroppedByWatermark"] for batch in batches for operator in batch["stateOperators"])
    seen, there = {batch["batchId"] for batch in batches}, set(files.ids())
    return [
        Check(
            "no row was dropped by the watermark",
            dropped == 0 and len(there - seen) <= 1,
            f"{dropped} in {len(seen)} of {len(there)} batches",
        ),
        Check("batches are numbered without a gap", there == set(range(len(there))), f"{len(there)} batches"),
    ]


def went_on(progress: Path) -> list[Check]:
    """Check that the restarted query has the id of the killed query, and continued at its position."""
    batches = _batches(progress)
    queries, runs = {batch["id"] for batch in batches}, list(dict.fromkeys(batch["runId"] for batch in batches))
    first = [next(batch["batchId"] for batch in batches if batch["runId"] == run) for run in runs]
    last = max((batch["batchId"] for batch in batches if batch["runId"] == runs[0]), default=-1)
    held = len(queries) == 1 and len(runs) == 2 and first[1] > first[0] and last <= first[1] <= last + 2
    numbers = f"first run to batch {last}, second from batch {first[-1]}"
    return [Check("the killed query went on from its checkpoint", held, numbers)]


def _batches(progress: Path) -> list[dict[str, Any]]:
    """Return Spark's progress of each batch. A kill may leave an incomplete last line, which is left out."""
    lines = progress.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.endswith("}")]


def _is_key(source: pa.Table) -> bool:
    return source.group_by(FLIGHT_KEY).aggregate([([], "count_all")]).num_rows == source.num_rows
