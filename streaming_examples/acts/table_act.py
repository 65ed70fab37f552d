"""Act of the demo: sealed segments become a Delta table, which answers the same SQL as the log.

Each segment is one version of the table. The act runs the same SQL on two versions. The newest version must answer like
the whole log. The version before it must answer like the log without the last segment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_ledger import LedgerStore, Position, publish
from streaming_examples.acts.audit import Check

SQL = """
    SELECT carrier, count(*) AS flights, sum(distance) AS miles, round(avg(arr_delay), 6) AS delay
    FROM {flights} GROUP BY carrier ORDER BY carrier
"""
Answer = list[tuple[Any, ...]]


class TableAct:
    """Run of the act."""

    def __init__(self, store: LedgerStore, ledger: str, spark: SparkSession, directory: Path) -> None:
        self.store, self.ledger, self.spark = store, ledger, spark
        self.table = str(directory / "table")
        self.checks: list[Check] = []
        self.timings: list[tuple[str, float]] = []

    def run(self, location: Path, rows: int) -> None:
        """Publish the segments, and run the same SQL on the table and on the log."""
        self.store.ledger(self.ledger).seal()
        options = {"store": str(location)}
        done = self._timed(
            "publish the segments to a Delta table",
            lambda: publish(self.spark, self.ledger, self.table, options=options),
        )
        again = publish(self.spark, self.ledger, self.table, options=options)
        what = f"{len(done)} segments, {len(again)} by a second call"
        self.checks.append(Check("every segment is published once", len(done) > 1 and not again, what))
        log = self.spark.read.format("ledger").option("store", str(location))
        delta = self.spark.read.format("delta")
        table, wanted = self._timed(
            "the same SQL of table and log", lambda: (ask(delta.load(self.table)), ask(log.load(self.ledger)))
        )
        counted = sum(row[1] for row in table)
        held = table == wanted and counted == rows
        self.checks.append(Check("the table answers SQL as the log does", held, f"{counted:,} flights"))
        # Version 0 is the first segment, each version after it the next one.
        before, end = delta.option("versionAsOf", len(done) - 2).load(self.table), Position(done[-1].segment, 0)
        earlier, known = ask(before), ask(log.option("endingPosition", str(end)).load(self.ledger))
        counted = sum(row[1] for row in earlier)
        held = earlier == known and 0 < counted < rows
        self.checks.append(
            Check(
                "its version before the last segment answers as the log without that segment",
                held,
                f"{counted:,} flights",
            )
        )

    def _timed(self, what: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        found = action()
        self.timings.append((what, time.monotonic() - began))
        return found


def ask(flights: DataFrame) -> Answer:
    """Return the result of the SQL for these flights."""
    found = flights.sparkSession.sql(SQL, flights=flights)
    return [tuple(row) for row in found.collect()]
