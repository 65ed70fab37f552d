"""Parts of a bucket that were planned in this process, as rows of Spark.

Rules
- Spark plans a source in a process of its own, which knows nothing of what this one has seen. So the parts travel in
  the class of a source that is made for them.
- A name belongs to one user, who asks for one frame after the other: each has what its own registration said, and the
  session keeps the last one only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from connector.bucket_partition import BucketPart, fetch_part
from connector.bucket_reader import BucketPartition
from connector.spark_face import spark_face

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@spark_face
class PartReader(DataSourceReader):
    """Reads what was planned elsewhere."""

    def __init__(self, parts: Sequence[BucketPart]) -> None:
        self._parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        """One for each part."""
        return [BucketPartition(part) for part in self._parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part. Spark sends `InputPartition(None)` where there is none."""
        return iter(()) if partition is None or partition.value is None else fetch_part(partition.value)


def part_rows(spark: SparkSession, name: str, parts: Sequence[BucketPart], columns: StructType) -> DataFrame:
    """The rows of the parts, by a source of this name; `columns` is what Spark calls theirs."""

    class PlannedParts(DataSource):
        """These parts: a class of a function is pickled with what it knows."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> PartReader:  # noqa: ARG002 — Spark's signature
            return PartReader(parts)

    spark.dataSource.register(PlannedParts)
    return spark.read.format(name).load()
