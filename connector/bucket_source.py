"""The data source of a bucket: what `format("ledger")` comes to when option `offload` is given.

Rules: every option is checked when the source is made and again for its use. Spark pickles the source after it has
asked for the columns: a bounded read is of what the bucket held in that moment, like a read of a directory. Nothing is
ever written: `ledger offload` and the broker do that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_ledger.connector.options.option import Use
from pyspark_ledger.connector.options.options import LedgerOptions, read_options
from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.ledger.errors import Refused, Unsupported

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.connector.read.bucket.batch import BucketReader, ListingReader
    from pyspark_ledger.connector.read.bucket.scan import BucketSeen
    from pyspark_ledger.connector.read.bucket.stream import BucketStreamReader


class BucketSource:
    """One `format("ledger")` with option `offload`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._seen: BucketSeen | None = None
        read_options(self._given)

    def schema(self) -> StructType:
        """The columns of the topic; of the listing where none is named."""
        options = read_options(self._given)
        if not options.ledger:
            from pyspark_ledger.connector.read.bucket.batch import LISTING

            return spark_schema(LISTING, "the listing")
        from pyspark_ledger.connector.read.bucket.scan import BucketRead

        read = BucketRead(options)
        found = read.schema()
        self._seen = read.seen()
        return found

    def batch_reader(self, schema: StructType) -> BucketReader | ListingReader:
        """A bounded read, or the listing."""
        from pyspark_ledger.connector.read.bucket.batch import BucketReader, ListingReader

        options = self._options("batch read")
        if options.history is not None:
            from pyspark_ledger.connector.read.table.batch import BucketHistoryReader

            return BucketHistoryReader(options, schema, self._seen)
        return BucketReader(options, schema, self._seen) if options.ledger else ListingReader(options)

    def stream_reader(self, schema: StructType) -> BucketStreamReader:
        """A stream of what is there, and of what is offloaded later."""
        from pyspark_ledger.connector.read.bucket.stream import BucketStreamReader

        options = self._options("stream read")
        if not options.ledger:
            raise Refused("no ledger is named, and a stream reads one", hint="Name it in load()")
        if options.history is not None:
            raise Unsupported(
                "a stream of option 'history' goes on in the log, and option 'offload' asks no broker for it",
                hint="Stream through the ledger's store, without 'offload'; or read table and bucket in a batch, and "
                "stream the bucket alone from a startingPosition behind that",
            )
        return BucketStreamReader(options, schema)

    def batch_writer(self, schema: StructType, *, overwrite: bool) -> object:  # noqa: ARG002 — one face for all sources
        """Refused."""
        raise _read_only()

    def stream_writer(self, schema: StructType) -> object:  # noqa: ARG002 — one face for all sources
        """Refused."""
        raise _read_only()

    def _options(self, use: Use) -> LedgerOptions:
        return read_options(self._given, use)


def _read_only() -> Refused:
    return Refused(
        "a bucket is read and never written: option 'offload' is given to a write",
        hint="Write to the ledger's store; `ledger offload` brings it to the bucket",
    )
