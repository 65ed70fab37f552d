"""What the data source does, once Spark has found it: options are read, and the right reader or writer is made.

`pyspark_ledger.DefaultSource` is the class that Spark knows; it comes here for everything, so that finding the source
imports nothing heavy.

Rules: every option is checked when the source is made and again for its use; a relative store becomes absolute on the
driver, before anything is pickled; user-given schemas are compared with the ledger's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_ledger.connector.connection import announce
from pyspark_ledger.connector.options.option import Use
from pyspark_ledger.connector.options.options import LedgerOptions, read_options
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import store_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.connector.bucket_source import BucketSource
    from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader
    from pyspark_ledger.connector.read.store_tables import MetadataReader
    from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
    from pyspark_ledger.connector.write.acknowledge import LedgerAcknowledgeWriter
    from pyspark_ledger.connector.write.batch_writer import LedgerBatchWriter
    from pyspark_ledger.connector.write.stream_writer import LedgerStreamWriter

# What Spark adds to the options while it makes a table of its catalog.
_OF_A_CATALOG = "owner"


def source_for(
    given: Mapping[str, str],
    version: str,
    default_store: str | None = None,
    default_options: Mapping[str, str] | None = None,
) -> LedgerSource | BucketSource:
    """The source that the options ask for: a ledger of a store, or a topic of a bucket."""
    if any(name.lower() == "offload" for name in given):
        from pyspark_ledger.connector.bucket_source import BucketSource

        return BucketSource(given)
    return LedgerSource(given, version, default_store, default_options)


class LedgerSource:
    """One `format("ledger")` with its options."""

    def __init__(
        self,
        given: Mapping[str, str],
        version: str,
        default_store: str | None = None,
        default_options: Mapping[str, str] | None = None,
    ) -> None:
        self._given = dict(given)
        named = {name.lower() for name in given}
        if default_store and "store" not in named:
            self._given |= {name: text for name, text in (default_options or {}).items() if name.lower() not in named}
        self._version = version
        if _OF_A_CATALOG in (key.lower() for key in given):
            raise Refused(
                "no table of Spark's catalog can be a ledger: Spark hands the options of such a table to nobody",
                hint="Use CREATE TEMPORARY VIEW … USING ledger OPTIONS (path 'orders')",
            )
        options = read_options(self._given)
        if options.ledger or options.ledgers or options.ledgers_pattern:  # rows that are written may name theirs
            options.addressing()
        self._store = store_location(options.store or default_store)
        if not options.store and not default_store:
            announce(self._store)

    def schema(self) -> StructType:
        """The columns that a reader gets."""
        from pyspark_ledger.connector.read.ledger.scan import LedgerRead

        options = self._located(read_options(self._given))
        if options.table is not None:
            from pyspark_ledger.connector.read.store_tables import table_schema

            return table_schema(options.table)
        return LedgerRead(options).schema()

    def batch_reader(self, schema: StructType) -> LedgerBatchReader | MetadataReader:
        """A bounded read."""
        from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader

        options = self._options("batch read")
        if options.table is not None:
            from pyspark_ledger.connector.read.store_tables import MetadataReader

            return MetadataReader(options)
        self._require_schema(options, schema)
        if options.history is not None:
            from pyspark_ledger.connector.read.table.batch import HistoryBatchReader

            return HistoryBatchReader(options, schema)
        return LedgerBatchReader(options, schema)

    def stream_reader(self, schema: StructType) -> LedgerStreamReader:
        """A stream."""
        from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader

        options = self._options("stream read")
        options.require_acknowledger()
        self._require_schema(options, schema)
        if options.history is not None:
            from pyspark_ledger.connector.read.table_stream_reader import HistoryStreamReader

            return HistoryStreamReader(options, schema)
        return LedgerStreamReader(options, schema)

    def batch_writer(self, schema: StructType, *, overwrite: bool) -> LedgerBatchWriter | LedgerAcknowledgeWriter:
        """An append, or what `action` says of rows that were read. Overwriting is refused."""
        from pyspark_ledger.connector.write.batch_writer import LedgerBatchWriter
        from pyspark_ledger.connector.write.target import prepare_target

        options = self._options("batch write")
        if overwrite:
            raise Refused(
                f"mode overwrite is not supported: ledger {options.ledger!r} is a log, rows are only appended",
                hint='Write with mode("append"), or delete the ledger first',
            )
        if options.action is not None:
            from pyspark_ledger.connector.write.acknowledge import LedgerAcknowledgeWriter

            return LedgerAcknowledgeWriter(options, schema)
        if options.subscription:
            raise Refused(
                "option 'subscription' has no meaning for a write of rows",
                hint="It belongs to a read, or to an 'action'",
            )
        application = options.application  # checked before a ledger is made
        return LedgerBatchWriter(prepare_target(options, schema), self._version, application)

    def stream_writer(self, schema: StructType) -> LedgerStreamWriter:
        """A streaming sink. Complete mode appends the whole result at every batch."""
        from pyspark_ledger.connector.write.stream_writer import stream_writer
        from pyspark_ledger.connector.write.target import prepare_target

        return stream_writer(prepare_target(self._options("stream write"), schema), self._version)

    def _options(self, use: Use) -> LedgerOptions:
        return self._located(read_options(self._given, use))

    def _located(self, options: LedgerOptions) -> LedgerOptions:
        return replace(options, store=self._store)

    @staticmethod
    def _require_schema(options: LedgerOptions, schema: StructType) -> None:
        from pyspark_ledger.connector.read.ledger.scan import LedgerRead

        LedgerRead(options, schema).shape()
