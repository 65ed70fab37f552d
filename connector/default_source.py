"""Data source class that Spark finds by its module name.

An import of this module never fails, and imports only small modules. Reason: Spark imports each module `pyspark_*`, and
searches it for a `DefaultSource`. If one of these imports fails, Spark finds no source at all.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.spark_errors import plain_errors
from pyspark_ledger.ledger.version import __version__

try:
    from pyspark.sql.datasource import DataSource
except Exception:  # noqa: BLE001 — connect() needs no Spark, and a broken Spark must not hide other sources
    DataSource = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.connector.data_source import LedgerSource


@plain_errors
class DefaultSource(DataSource):
    """Data source `ledger`. Its options are in docs/options.md."""

    default_store: str | None = None
    default_options: Mapping[str, str] = MappingProxyType({})  # options for the default store

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        from pyspark_ledger.connector.data_source import LedgerSource

        self._source: LedgerSource = LedgerSource(options, __version__, self.default_store, self.default_options)

    @classmethod
    def name(cls) -> str:
        return "ledger"

    def schema(self) -> StructType:
        return self._source.schema()

    def reader(self, schema: StructType) -> Any:
        return self._source.batch_reader(schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  # Spark's name
        return self._source.stream_reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:  # Spark's signature
        return self._source.batch_writer(schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: ARG002, N802  # Spark's
        """Return a streaming sink. In output mode `complete` (`overwrite`) each batch appends the whole result."""
        return self._source.stream_writer(schema)
