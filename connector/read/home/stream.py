"""Streams of a store in a bucket without its broker, `spark.readStream.format("ledger").option("broker", "none")`.

The planner is `LedgerStream`, as for a stream through the broker. `HomeRead` gives it another source: a *view*, a local
copy of the store's state on the driver (`offload.home_view`). docs/concepts.md explains the other words.

    latestOffset ─▶ HomeConnection.refresh ─▶ LedgerStream: limits, lost entries ─▶ offset
    partitions   ─▶ LedgerStream: ranges ─▶ view: places of the blocks ─▶ HomeTask, which reads the bucket

Invariants
- Offsets have the same bytes as those of a stream through the broker. So a query continues from its checkpoint with or
  without the broker, and each row is read once.
- The end of a batch is in the bucket's log, which no later broker takes back. A batch contains all rows that were
  acknowledged before its trigger.
- The view changes only in `refresh`, at the start of a trigger. Then the bucket gets two requests, and one for each new
  object of the log. Exception: objects of the view may be deleted while a batch is planned. Then the view is refreshed,
  and the places of the batch are looked up again.
- If retention, a deletion or a new incarnation removed rows, the planner or the task reports the lost range. Rows whose
  bytes only moved to another object are read from there.
- Nothing is written, in the bucket or by a request. So no broker knows the query: no cursor moves, and retention does
  not wait.

A crash leaves the temporary directory of the view. The next run starts at the checkpoint, with a new view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark_ledger.connector.options.home import require_home
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.home.scan import HomeConnection, home_tasks, placed_ranges
from pyspark_ledger.connector.read.ledger.scan import FoundLedgers, LedgerRead
from pyspark_ledger.connector.read.offsets import OffsetStore
from pyspark_ledger.connector.read.planner import Task
from pyspark_ledger.connector.read.task_split import SizedRange
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.location import location_text, store_location
from pyspark_ledger.ledger.protocol.cache import CacheReads
from pyspark_ledger.ledger.protocol.request import Reply, Request

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.offload.home_view import HomeView

_Answer = TypeVar("_Answer")


class HomeRead(LedgerRead):
    """Read of ledgers from the bucket of their store."""

    def __init__(
        self,
        options: LedgerOptions,
        user_schema: StructType | None,
        ledgers: FoundLedgers | None,
        connection: HomeConnection | None,
    ) -> None:
        """Create the read. `connection` is that of another read, which shares its view; None for a new connection."""
        if options.home is None:
            raise Refused("option 'broker' is not 'none'", hint="Set it, or plan the read with a broker")
        self._s3 = options.home.s3()
        self._address = require_home(store_location(options.store))
        self.home = connection or HomeConnection(self._address, self._s3)
        super().__init__(options, user_schema, ledgers, self._ask)

    @property
    def broker(self) -> None:
        return None

    def refresh(self) -> None:
        self.home.refresh()

    def store(self) -> OffsetStore:
        return OffsetStore(self.home.view.store_id, location_text(self.location))

    def former_ids(self) -> Collection[str]:
        return self.home.view.former_ids

    def cache_reads(self) -> CacheReads:
        return CacheReads()

    def tasks(self, ranges: Sequence[SizedRange]) -> list[Task]:
        planned = self._present(lambda view: placed_ranges(self, view, ranges))
        return [*home_tasks(self, self._address, self._s3, self.home.view.store_id, planned)]

    def _ask(self, request: Request[Reply]) -> Reply:
        return self._present(lambda view: view.ask(request))

    def _present(self, ask: Callable[[HomeView], _Answer]) -> _Answer:
        """Return the result of `ask`. If objects are missing, ask the present view again: they may have moved."""
        try:
            return ask(self.home.view)
        except DataLoss:
            if not self.home.refresh():
                raise
            return ask(self.home.view)
