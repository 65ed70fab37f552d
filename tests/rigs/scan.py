"""Bounded reads, planned and run as by Spark, but without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from pyspark_ledger.connector.data_source import LedgerSource


def rows_of(source: LedgerSource, schema: StructType | None = None) -> list[dict[str, Any]]:
    reader = source.batch_reader(schema or source.schema())
    batches = [batch for part in reader.partitions() or [] for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def read_rows(store: Path, name: str = "orders", **options: str) -> list[dict[str, Any]]:
    """Return the rows of a ledger."""
    return rows_of(LedgerSource({"path": name, "store": str(store), **options}, "0.1.0"))


def read_bucket(directory: Path | str, name: str, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a topic in a bucket."""
    return rows_of(LedgerSource({"offload": str(directory), "path": name, **options}, "0.1.0"))
