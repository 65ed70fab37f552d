"""Batch reads of a store in a bucket without its broker, `spark.read.format("ledger").option("broker", "none")`.

Rules
- The driver opens a view of the store (`offload.home_view`), and plans with the same code as with a broker.
- The view has one state of all ledgers. It is opened when Spark plans the read, so the end of the read is fixed then.
- A task gets the places of its blocks in the bucket. A plan has no row and no credential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.options.home import require_home
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.home.task import HomeTask
from pyspark_ledger.connector.read.ledger.scan import FoundLedgers, LedgerRead, bounded_ranges
from pyspark_ledger.connector.read.ledger.task import ReadSource
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.read.planner import BatchPlanner
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.offload.home_view import HomeView, open_home_view
from pyspark_ledger.offload.stored_blocks import BLOCK_BYTES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.offload.storage.s3_options import S3Options


class HomeConnection(DriverConnection):
    """View of a store in place of a connection to its broker. The first call opens the view."""

    def __init__(self, location: str, s3: S3Options) -> None:
        super().__init__(location)
        self._address, self._s3 = require_home(location), s3
        self._view: HomeView | None = None

    @property
    def view(self) -> HomeView:
        if self._view is None:
            self._view = open_home_view(self._address, self._s3)
        return self._view

    @property
    def client(self) -> Client:
        return cast("Client", self.view)  # a view has the calls of a client that a batch read needs

    def close(self) -> None:
        """Close the view. The next call opens a new view."""
        if self._view is not None:
            self._view.close()
        self._view = None


class HomeScan(BatchPlanner):
    """Plan of a batch read. `findings` are the ledgers that an earlier process found when it asked for the columns."""

    def __init__(
        self, options: LedgerOptions, user_schema: StructType | None = None, findings: FoundLedgers | None = None
    ) -> None:
        if options.home is None:
            raise Refused("option 'broker' is not 'none'", hint="Set it, or plan the read with a broker")
        self._s3 = options.home.s3()
        self._connection = HomeConnection(store_location(options.store), self._s3)
        self._read = LedgerRead(options, user_schema, self._connection, findings)

    def schema(self) -> StructType:
        return self._read.schema()

    def findings(self) -> FoundLedgers:
        return self._read.ledgers

    def tasks(self) -> list[HomeTask]:
        try:
            return self._tasks()
        finally:
            self._connection.close()

    def _tasks(self) -> list[HomeTask]:
        read, view = self._read, self._connection.view
        ranges = bounded_ranges(read)
        view.load_indexes([_request(sized.range) for sized in ranges])
        strict = read.options.fail_on_data_loss
        source = ReadSource(view.address, view.store_id, read.shape(), "", False, Credentials(), strict)
        return [
            HomeTask(source, self._s3, tuple(task), tuple(tuple(view.stored_blocks(_request(part))) for part in task))
            for task in read.split_into_tasks(ranges)
        ]


def _request(planned: LedgerRange) -> ReadRequest:
    return ReadRequest(planned.ledger, planned.range, planned.incarnation, max_block_bytes=BLOCK_BYTES)
