"""Flights for the two writes of the demo: a first part for one batch, and the rest in files that appear one by one.

The files are written to another folder, and moved into the folder that the stream watches. So the stream sees only
complete files. Rows and files are ordered by time, and one file is one micro-batch. So a row arrives late by at most
the time that one file covers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


class FlightFeed:
    """Source of the demo. `batch` is the first part. `drop()` makes the next file appear."""

    def __init__(self, flights: pa.Table, directory: Path, *, batch_rows: int, files: int) -> None:
        self.batch = flights.slice(0, batch_rows)
        self.incoming = directory / "incoming"
        self._prepared = directory / "prepared"
        for folder in (self.incoming, self._prepared):
            folder.mkdir(parents=True)
        bounds = [batch_rows + (flights.num_rows - batch_rows) * number // files for number in range(files + 1)]
        for number in range(files):
            rows = flights.slice(bounds[number], bounds[number + 1] - bounds[number])
            pq.write_table(rows, self._prepared / f"flights-{number:04}.parquet")
        self._waiting = sorted(self._prepared.iterdir())

    def __len__(self) -> int:
        return len(self._waiting)

    def drop(self) -> None:
        """Move the next file into the folder that the stream watches."""
        path = self._waiting.pop(0)
        path.rename(self.incoming / path.name)


def write_batch(spark: SparkSession, rows: pa.Table, store: Path, ledger: str) -> None:
    """Write one batch. An entry has at most 512 KiB, because a read with a row limit ends at the end of an entry."""
    frame = spark.createDataFrame(rows)
    writer = frame.write.format("ledger").option("store", str(store)).option("entryBytes", "512k")
    writer.mode("append").save(ledger)


def start_sink(
    spark: SparkSession, feed: FlightFeed, store: Path | str, ledger: str, checkpoint: Path
) -> StreamingQuery:
    """Start the streaming sink: it reads one file in each micro-batch, and appends its rows exactly once."""
    schema = spark.createDataFrame(feed.batch.slice(0, 1)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(feed.incoming))
    return (
        files.writeStream.format("ledger")
        .option("store", str(store))
        .option("checkpointLocation", str(checkpoint))
        .start(ledger)
    )
