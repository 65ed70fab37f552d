"""Second application of the demo: tails the ledger with a subscription and maintains daily windows.

    python -m streaming_examples.acts.tail_app STORE LEDGER DIRECTORY

The application writes `checkpoint/`, `windows/` (see `batch_files`) and `progress.jsonl` in `DIRECTORY`. The last file
has a line with Spark's progress for each micro-batch. The demo reads it to find rows that the watermark dropped, also
after a kill of this process. The application runs until a file `DIRECTORY/stop` appears. If it was killed, start it
again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger import session
from streaming_examples.acts.batch_files import BatchFiles
from streaming_examples.acts.daily_windows import windowed
from streaming_examples.flights import weather

SUBSCRIPTION = "daily-windows"
_LOOK_SECONDS = 0.1


def main(store: str, ledger: str, directory: Path) -> None:
    """Start or restart the query, and wait for its end."""
    spark = session(
        "daily windows",
        **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": 2, "spark.ui.showConsoleProgress": "false"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    flights = (
        spark.readStream.format("ledger")
        .option("store", store)
        .option("subscription", SUBSCRIPTION)
        .option("startingPosition", "earliest")
        .option("waitForLedger", "true")
        .option("maxRowsPerTrigger", 20_000)
        .load(ledger)
    )
    query = (
        windowed(flights, spark.createDataFrame(weather()))
        .writeStream.outputMode("update")
        .foreachBatch(BatchFiles(directory / "windows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    with (directory / "progress.jsonl").open("a", encoding="utf-8") as notes:
        written = -1
        while query.isActive and not (directory / "stop").exists():
            written = _note(query, notes, written)
            time.sleep(_LOOK_SECONDS)
        # Spark runs one more batch when the watermark has moved. A stop in this batch would lose its progress.
        if query.isActive:
            query.processAllAvailable()
        _note(query, notes, written)
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        raise failure


def _note(query: StreamingQuery, notes: Any, written: int) -> int:
    """Append the progress of the batches after batch `written` to `notes`. Return the newest batch in `notes`."""
    for progress in query.recentProgress:
        values = json.loads(progress.json)
        # Spark also reports progress while it is idle, with the id of the next batch.
        if values["batchId"] > written and "addBatch" in values["durationMs"]:
            written = values["batchId"]
            notes.write(json.dumps(values, separators=(",", ":")) + "\n")
            notes.flush()
    return written


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
