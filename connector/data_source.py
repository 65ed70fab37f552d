"""Implementation of the data source: parses the options and creates the reader or writer.

Spark finds the class `pyspark_ledger.DefaultSource`. That class imports this module at its first use, so that Spark's
search for data sources imports only small modules.

Rules
- Every option is checked twice: when Spark creates the source, and when Spark asks for a reader or a writer.
- The driver replaces a relative path of a store by the absolute path, before Spark pickles the source for its
  processes.
- The schema that Spark passes to a reader is compared with the ledger's schema. The schema is the result of `schema()`,
  which an old DataFrame keeps, or the schema of `.schema()`.
- A batch read with option `offload` reads the objects that existed when Spark asked for the columns.
- In a read with option `broker` = `none`, the columns are fixed when Spark asks for them. The end of a batch read is
  fixed when Spark plans the read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark_ledger.connector.connection import log_default_store, print_once
from pyspark_ledger.connector.options.home import require_home
from pyspark_ledger.connector.options.option import Use
from pyspark_ledger.connector.options.options import LedgerOptions, read_options
from pyspark_ledger.ledger.errors import Outdated, Refused
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.logs.json_lines import log_connector_by

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader
    from pyspark_ledger.connector.read.home.scan import HomeConnection
    from pyspark_ledger.connector.read.ledger.scan import LedgerRead
    from pyspark_ledger.connector.read.planner import BatchPlanner, StreamPlanner
    from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
    from pyspark_ledger.connector.write.acknowledge import LedgerAcknowledgeWriter
    from pyspark_ledger.connector.write.writers import LedgerBatchWriter, LedgerStreamWriter

# Option that Spark adds for tables of its catalog.
_CATALOG_OPTION = "owner"
_CHECKPOINT = "checkpointlocation"
_Checked = TypeVar("_Checked")
_NAMES_MAX = 20
_log = logging.getLogger(__name__)


class LedgerSource:
    """Source `format("ledger")`. It reads and writes ledgers of a store, or reads a bucket (option `offload`)."""

    def __init__(
        self,
        option_texts: Mapping[str, str],
        version: str,
        default_store: str | None = None,
        default_options: Mapping[str, str] | None = None,
    ) -> None:
        log_connector_by()
        self._option_texts = dict(option_texts)
        self._version = version
        self._store: str | None = None
        self._findings: Any = None
        self._home: HomeConnection | None = None
        self._has_planned = False
        option_names = {name.lower() for name in option_texts}
        if "offload" in option_names:
            read_options(self._option_texts)
            return
        if default_store and "store" not in option_names:
            self._option_texts |= {
                name: text for name, text in (default_options or {}).items() if name.lower() not in option_names
            }
        if _CATALOG_OPTION in option_names:
            raise Refused(
                "no table of Spark's catalog can be a ledger: Spark passes no options of such a table to the source",
                hint="Use CREATE TEMPORARY VIEW … USING ledger OPTIONS (path 'orders')",
            )
        options = read_options(self._option_texts)
        if options.ledger or options.ledgers or options.ledgers_pattern:  # a write can name its ledgers in a column
            options.addressing()
        self._store = store_location(options.store or default_store)
        if options.home is not None:
            require_home(self._store)
        if not options.store and not default_store:
            log_default_store(self._store)

    def schema(self) -> StructType:
        """Return the columns of a read.

        The source keeps its findings: the listing of a bucket, or the columns of a read without a broker. Reason: Spark
        then pickles the source, so that the process of the reader gets the findings.
        """
        self._findings = None
        scan = self._scan(self._located(read_options(self._option_texts)))
        schema = scan.schema()
        self._findings, self._has_planned = scan.findings(), True
        return schema

    def batch_reader(self, schema: StructType) -> LedgerBatchReader:
        """Return a reader of the selected ledgers. Raises Refused if `schema` does not match them."""
        from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader

        scan = self._scan(self._options("batch read"), schema)
        self._require_columns(scan.schema)  # refuses a schema that does not match the ledgers
        return LedgerBatchReader(scan)

    def stream_reader(self, schema: StructType) -> LedgerStreamReader:
        """Return a stream reader of the selected ledgers."""
        from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader

        options = self._options("stream read")
        plan = self._require_columns(partial(self._stream, options, schema))
        return LedgerStreamReader(options, partial(self._planned, plan, options, schema))

    def _planned(
        self,
        plan: Callable[[LedgerOptions, StructType], StreamPlanner],
        options: LedgerOptions,
        schema: StructType,
    ) -> StreamPlanner:
        """Return the planner of a run. Log a warning if the run starts without columns that the ledgers have."""
        if self._has_planned and options.columns is None and options.bucket is None:
            now = self._read(options).schema().names
            if missing := [name for name in now if name not in schema.names]:
                _log.warning(
                    "the stream of %s starts without the columns %s, which were added after its load(): call load() "
                    "again and start the query with the new DataFrame to read them",
                    options.addressing(),
                    ", ".join(missing[:_NAMES_MAX]),
                )
        return plan(options, schema)

    def _require_columns(self, check: Callable[[], _Checked]) -> _Checked:
        """Return the result of `check`. Raises Outdated if Spark's schema does not match the ledgers.

        Spark passes the schema of `.schema()` and the schema of an earlier `schema()` in the same way.
        """
        try:
            return check()
        except Outdated as error:
            if self._has_planned:
                raise
            hint = "Leave .schema() out: the ledger knows its columns. Cast afterwards; a wider type is allowed"
            raise Outdated(error.message, hint=hint) from None

    def _scan(self, options: LedgerOptions, schema: StructType | None = None) -> BatchPlanner:
        """Return the planner of a batch read."""
        if options.table is not None:
            from pyspark_ledger.connector.read.store_tables import StoreTable

            return StoreTable(options)
        if options.bucket is not None and not options.ledger:
            from pyspark_ledger.connector.read.bucket.listing import ListingScan

            return ListingScan(options)
        if options.history is not None:
            from pyspark_ledger.connector.read.table.scan import BucketTableScan, TableScan

            return (
                TableScan(options, schema)
                if options.bucket is None
                else BucketTableScan(options, schema, self._findings)
            )
        if options.bucket is not None:
            from pyspark_ledger.connector.read.bucket.scan import BucketScan

            return BucketScan(options, schema, self._findings)
        if options.home is not None:
            from pyspark_ledger.connector.read.home.scan import HomeScan

            return HomeScan(options, schema, self._findings)
        from pyspark_ledger.connector.read.ledger.scan import LedgerScan

        return LedgerScan(options, schema)

    def _read(self, options: LedgerOptions, schema: StructType | None = None, ledgers: Any = None) -> LedgerRead:
        """Return a read through the broker or, without a broker, from the view that all reads of this source share."""
        if options.home is None:
            from pyspark_ledger.connector.read.ledger.scan import LedgerRead

            return LedgerRead(options, schema, ledgers)
        from pyspark_ledger.connector.read.home.stream import HomeRead

        read = HomeRead(options, schema, ledgers, self._home)
        self._home = read.home
        return read

    def _stream(
        self, options: LedgerOptions, schema: StructType
    ) -> Callable[[LedgerOptions, StructType], StreamPlanner]:
        """Return the class of the stream's planner. Raises Refused for options that a stream cannot have."""
        if options.bucket is not None:
            from pyspark_ledger.connector.read.bucket.stream import BucketStream, require_stream

            require_stream(options)
            return BucketStream
        options.require_acknowledger()
        read = self._read(options, schema, None if self._findings is None else self._findings.ledgers)
        read.shape()
        if options.history is not None:
            from pyspark_ledger.connector.read.table.stream import TableStream

            return TableStream
        from pyspark_ledger.connector.read.ledger.stream import LedgerStream

        return LedgerStream if options.home is None else partial(LedgerStream, read=read)

    def batch_writer(self, schema: StructType, *, overwrite: bool) -> LedgerBatchWriter | LedgerAcknowledgeWriter:
        """Return a writer that appends rows or, with option `action`, acknowledges or redelivers them.

        Raises Refused for mode overwrite.
        """
        from pyspark_ledger.connector.write.target import prepare_target
        from pyspark_ledger.connector.write.writers import LedgerBatchWriter

        options = self._write_options("batch write")
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
                hint="Use the option in a read, or in a write with 'action', which acknowledges rows",
            )
        application = options.application  # checked before a ledger is created
        return LedgerBatchWriter(prepare_target(options, schema), self._version, application)

    def stream_writer(self, schema: StructType) -> LedgerStreamWriter:
        """Return a streaming sink. In Spark's output mode `complete` each batch appends the whole result."""
        from pyspark_ledger.connector.write.target import prepare_target
        from pyspark_ledger.connector.write.writers import LedgerStreamWriter

        options = self._write_options("stream write")
        if options.repeated_batches != "refuse":
            print_once(
                f"option 'repeatedBatches' of the stream to {options.ledger or 'its ledgers'} is "
                f"{options.repeated_batches!r}. Remove the option after this start"
            )
        checkpoint = next((text for name, text in self._option_texts.items() if name.lower() == _CHECKPOINT), "")
        return LedgerStreamWriter(prepare_target(options, schema), self._version, checkpoint, options.repeated_batches)

    def _options(self, use: Use) -> LedgerOptions:
        return self._located(read_options(self._option_texts, use))

    def _located(self, options: LedgerOptions) -> LedgerOptions:
        if self._store is None:
            return options
        if options.direct_reads == "off":
            options.refuse_access("'directReads' = 'off' in", self._store)
        return replace(options, store=self._store)

    def _write_options(self, use: Use) -> LedgerOptions:
        """Return the options of a write. Raises Refused for option `offload`, and for an unused access."""
        if self._store is None:
            raise Refused(
                "a write cannot have option 'offload': a bucket can only be read",
                hint="Write to the ledger's store; `ledger offload` copies its segments to the bucket",
            )
        options = self._options(use)
        options.refuse_access("a write to", self._store)
        return options
