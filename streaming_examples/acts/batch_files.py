"""Results of a streaming query as files, one for each micro-batch. A repeated batch changes nothing.

    <directory>/batch-000017.parquet        the rows of micro-batch 17; renamed to this name when complete

If Spark is killed before it records that a batch is done, it repeats the batch with the same id and the same rows. So
the same file is written again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchFiles:
    """Directory with a file for each micro-batch. An instance is the function that `foreachBatch` calls."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one micro-batch."""
        rows = frame.toArrow()
        temporary = self.directory / f".batch-{batch:06}.parquet"
        pq.write_table(rows, temporary)
        temporary.replace(self.directory / f"batch-{batch:06}.parquet")

    def ids(self) -> list[int]:
        """Return the existing batches, in order."""
        return sorted(int(path.stem.removeprefix("batch-")) for path in self.directory.glob("batch-*.parquet"))

    def newest(self, key: list[str]) -> pa.Table:
        """Return the newest row of each key. In Spark's output mode `update`, a later batch has the newer rows."""
        tables = []
        for batch in self.ids():
            rows = pq.read_table(self.directory / f"batch-{batch:06}.parquet")
            tables.append(rows.append_column("batch", pa.array([batch] * rows.num_rows, pa.int64())))
        rows = pa.concat_tables(tables).sort_by("batch")
        rows = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
        last = rows.group_by(key).aggregate([("row", "max")])["row_max"]
        return rows.take(last).drop_columns(["batch", "row"])
