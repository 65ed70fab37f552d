"""Query in explicit mode that tests kill. It acknowledges some rows of each batch, and records the rows in files.

    <seen>/<batch>-<pid>.delivered      Arrow IPC: n, count (earlier deliveries of the row), chosen; written before the
                                        acknowledgement
    <seen>/<batch>-<pid>.acknowledged   empty; written after the acknowledgement

`python -m tests.rigs.explicit_app STORE CHECKPOINT SEEN SHARE LIMIT` runs until the backlog is empty. The choice of a
row depends on the row and the batch only, so a repeated batch chooses the same rows.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger import acknowledge, session
from pyspark_ledger.ledger.api.store import connect

LEDGER, SUBSCRIPTION = "flights", "audit"


class ExplicitApp(NamedTuple):
    """Parameters of the query. `share` is the percentage of the rows of a batch that are acknowledged."""

    spark: SparkSession
    store: Path
    checkpoint: Path
    seen: Path
    share: int
    limit: int

    def start(self) -> StreamingQuery:
        read = self.spark.readStream.format("ledger").option("store", str(self.store))
        read = read.option("subscription", SUBSCRIPTION).option("ackMode", "explicit").option("ackTimeout", "0")
        rows = read.option("startingPosition", "earliest").option("maxRowsPerTrigger", self.limit).load(LEDGER)
        write = rows.writeStream.foreachBatch(self.batch).option("checkpointLocation", str(self.checkpoint))
        return write.trigger(processingTime="0 seconds").start()

    def batch(self, rows: DataFrame, number: int) -> None:
        chosen = (f.pmod(f.xxhash64("n", f.lit(number)), f.lit(100)) < self.share).alias("chosen")
        rows = rows.select("n", f.col("__redeliveryCount").alias("count"), "__position", chosen).persist()
        name = f"{number:05}-{os.getpid()}"
        writing = self.seen / f"{name}.writing"
        table = rows.select("n", "count", "chosen").toArrow()
        with pa.ipc.new_file(writing, table.schema) as file:
            file.write_table(table)
        writing.rename(self.seen / f"{name}.delivered")
        acknowledge(rows.where("chosen"), LEDGER, SUBSCRIPTION, store=self.store)
        (self.seen / f"{name}.acknowledged").touch()
        rows.unpersist()


def finish(app: ExplicitApp) -> None:
    """Run the query until the backlog is empty."""
    cursor = connect(app.store).ledger(LEDGER).cursor(SUBSCRIPTION)
    query = app.start()
    try:
        while cursor.state().backlog_rows:
            query.awaitTermination(0.1)
            assert query.isActive, query.exception()
    finally:
        query.stop()


def require_once(seen: Path, rows: int) -> int:
    """Check the recorded batches. Return the highest number of batches that had a row.

    A row must be delivered with the counts 0, 1, 2 and so on, up to the batch that acknowledged the row, and never
    later. All runs of a repeated batch must have the same rows.
    """
    runs: dict[int, list[pa.Table]] = defaultdict(list)
    for path in sorted(seen.glob("*.delivered")):
        runs[int(path.name[:5])].append(pa.ipc.open_file(path).read_all().sort_by("n"))
    assert sorted(runs) == list(range(len(runs)))
    times, gone = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
    for number in sorted(runs):
        first, *others = runs[number]
        assert all(rows.select(["n", "count"]).equals(first.select(["n", "count"])) for rows in others), number
        n = first["n"].to_numpy()
        assert (np.diff(n) > 0).all(), f"batch {number} has a row twice"
        assert not gone[n].any(), f"batch {number} has rows that were acknowledged before"
        assert np.array_equal(first["count"].to_numpy(), times[n]), f"counts of batch {number} are wrong"
        times[n] += 1
        for run in runs[number]:
            gone[n[run["chosen"].to_numpy(zero_copy_only=False)]] = True
    assert gone.all(), f"{np.count_nonzero(~gone)} rows were never acknowledged"
    return int(times.max())


if __name__ == "__main__":
    store, checkpoint, seen = (Path(argument) for argument in sys.argv[1:4])
    share, limit = (int(argument) for argument in sys.argv[4:])
    finish(ExplicitApp(session("explicit"), store, checkpoint, seen, share, limit))
