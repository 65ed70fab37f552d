"""Python data source that does nothing but map Arrow files: the upper bound for a source of the same rows.

Each partition is one Arrow file on this host. Its batches have exactly the types that Spark expects, so nothing is
decoded, verified or converted in the worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyspark_ledger.connector.schema import arrow_schema

_BATCH_ROWS = 16 * 1024


class BareArrowSource(DataSource):
    """Data source with the option `files`, a JSON list. The columns are those of `.schema()`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "bare_arrow"

    def reader(self, schema: Any) -> BareArrowReader:  # noqa: ARG002 — Spark's signature
        """Return the reader."""
        return BareArrowReader(self.options["files"])


class BareArrowReader(DataSourceReader):
    """Reader of the files."""

    def __init__(self, files: str) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        """Return one partition per file."""
        return [InputPartition(file) for file in json.loads(self._files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file."""
        with pa.memory_map(partition.value) as source:
            yield from pa.ipc.open_stream(source)


def bare_arrow(spark: Any, parquet: Path) -> Any:
    """Return a reader of the rows of Parquet files, which are first converted to Arrow files. Call `load` on it."""
    schema = spark.read.parquet(str(parquet)).schema
    target, files = arrow_schema(schema), []
    folder = parquet.with_name(f"{parquet.name}.arrow")
    folder.mkdir()
    for file in sorted(parquet.glob("*.parquet")):
        files.append(str(folder / file.name))
        with pa.OSFile(files[-1], "wb") as sink, pa.ipc.new_stream(sink, target) as writer:
            for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS):
                writer.write_batch(batch.cast(target))
    spark.dataSource.register(BareArrowSource)
    return spark.read.format("bare_arrow").schema(schema).option("files", json.dumps(files))
