"""Batch reads of a store in a bucket without its broker, `spark.read.format("ledger").option("broker", "none")`.

The newest entries and changes of the store are in its *log*, a sequence of numbered objects in the bucket. A *block* is
a part of a segment file that contains whole entries. docs/concepts.md explains the other words.

Rules
- When Spark plans the read, the driver opens a *view*: a local copy of the store's state, built from the bucket's
  objects (`offload.home_view`). The end of the read is then fixed for all ledgers. The driver plans with the same code
  as for a read through the broker.
- Spark asks one process for the columns, and another process for the tasks. The first process already plans the read,
  and passes its plan to the second process. The second process uses the plan if the log has not grown since then.
  Otherwise it opens a view and plans again.
- A task gets the places of its blocks in the bucket. A plan contains no row and no credential.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.options.home import require_home
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.home.task import HomeTask
from pyspark_ledger.connector.read.ledger.scan import FoundLedgers, LedgerRead, bounded_ranges
from pyspark_ledger.connector.read.ledger.task import ReadSource
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.read.planner import BatchPlanner
from pyspark_ledger.connector.read.task_split import SizedRange
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.protocol.request import Reply, Request
from pyspark_ledger.offload.home_view import HomeView, is_present, open_home_view
from pyspark_ledger.offload.stored_blocks import BLOCK_BYTES, StoredBlock

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.ledger.objects.s3_options import S3Options


_log = logging.getLogger(__name__)


class HomeConnection:
    """View of a store, which a planner asks like a broker. The first call opens the view."""

    def __init__(self, address: str, s3: S3Options) -> None:
        self._address, self._s3 = address, s3
        self._view: HomeView | None = None

    @property
    def view(self) -> HomeView:
        if self._view is None:
            self._view = open_home_view(self._address, self._s3)
        return self._view

    def ask(self, request: Request[Reply]) -> Reply:
        return self.view.ask(request)

    def refresh(self) -> bool:
        """Let the view show the present state of the store. Return whether the state has changed.

        Raises Refused if another store has replaced the store.
        """
        if self._view is None:
            return False
        view = self._view
        end = view.end
        try:
            is_present = view.advance()
        except BaseException:
            self._view = None  # it is closed
            raise
        if is_present:
            return view.end > end
        self.close()
        if self.view.store_id != view.store_id:
            raise Refused(
                f"the store at {self._address} has id {self.view.store_id}, the read began with store {view.store_id}",
                hint="Read the new store again, with a new checkpoint",
            )
        return True

    def close(self) -> None:
        """Close the view. The next call opens a new view."""
        if self._view is not None:
            self._view.close()
        self._view = None


PlacedRanges = tuple[tuple[LedgerRange, ...], tuple[tuple[StoredBlock, ...], ...]]
"""Ranges of one task, and the blocks of each range."""


@dataclass(frozen=True, slots=True)
class HomePlan:
    """Plan for one state of the store: the ranges of each task, with their blocks.

    `end` is the end of the log in this state: the number that the next log object will have.
    """

    store_id: str
    end: int
    tasks: tuple[PlacedRanges, ...]


@dataclass(frozen=True, slots=True)
class HomeFindings:
    """Ledgers and plan, which the first process passes to the process that makes the tasks.

    The plan is None if planning failed.
    """

    ledgers: FoundLedgers
    plan: HomePlan | None


class HomeScan(BatchPlanner):
    """Planner of a batch read. `findings` are the results of the process that was asked for the columns."""

    def __init__(self, options: LedgerOptions, user_schema: StructType | None, findings: HomeFindings | None) -> None:
        if options.home is None:
            raise Refused("option 'broker' is not 'none'", hint="Set it, or plan the read with a broker")
        self._s3 = options.home.s3()
        self._address = require_home(store_location(options.store))
        self._connection = HomeConnection(self._address, self._s3)
        self._plan = None if findings is None else findings.plan
        self._read = LedgerRead(
            options, user_schema, None if findings is None else findings.ledgers, self._connection.ask
        )

    def schema(self) -> StructType:
        return self._read.schema()

    def findings(self) -> HomeFindings:
        """Return the ledgers, and a plan by the view in which they were found."""
        try:
            return HomeFindings(self._read.ledgers, self._planned())
        except LedgerError as error:  # `tasks` plans again, and raises the error if it persists
            _log.info("%s is planned later: %s", self._read.name, error)
            return HomeFindings(self._read.ledgers, None)
        finally:
            self._connection.close()

    def tasks(self) -> list[HomeTask]:
        plan = self._plan
        if plan is None or not is_present(self._address, self._s3, plan.store_id, plan.end):
            try:
                plan = self._planned()
            finally:
                self._connection.close()
        return home_tasks(self._read, self._address, self._s3, plan.store_id, plan.tasks)

    def _planned(self) -> HomePlan:
        view = self._connection.view
        return HomePlan(view.store_id, view.end, placed_ranges(self._read, view, bounded_ranges(self._read)))


def placed_ranges(read: LedgerRead, view: HomeView, ranges: Sequence[SizedRange]) -> tuple[PlacedRanges, ...]:
    """Return the ranges of each task, with the places of their blocks in the bucket."""
    view.load_indexes([_request(sized.range) for sized in ranges])
    return tuple(
        (tuple(parts), tuple(tuple(view.stored_blocks(_request(part))) for part in parts))
        for parts in read.split_into_tasks(ranges)
    )


def home_tasks(
    read: LedgerRead, address: str, s3: S3Options, store_id: str, planned: Sequence[PlacedRanges]
) -> list[HomeTask]:
    source = ReadSource(address, store_id, read.shape(), "", False, Credentials(), read.options.fail_on_data_loss)
    return [HomeTask(source, s3, *task) for task in planned]


def _request(planned: LedgerRange) -> ReadRequest:
    return ReadRequest(planned.ledger, planned.range, planned.incarnation, max_block_bytes=BLOCK_BYTES)
