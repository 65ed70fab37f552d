"""Python data source that tests whether Unity Catalog's provider of credentials can be imported.

The test runs in the *planner*, the process in which Spark plans a Python data source, and in a task. Unity Catalog is
the table catalogue of Databricks.

Rule: the class is pickled by value, with its code, because Spark's processes may lack this package.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_ledger.connector.doctor.task_probe import CREDENTIALS_MODULE, imported

NAME = "ledger_platform_probe"


class ProbeReader(DataSourceReader):
    """Reader of one row with two texts: the error of the import in the planner, and in a task. Empty means no error."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(imported(CREDENTIALS_MODULE).get("error", ""))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        yield partition.value, imported(CREDENTIALS_MODULE).get("error", "")


class ProbeSource(DataSource):
    """Source with a `ProbeReader`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "planner string, task string"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark passes it
        return ProbeReader()
