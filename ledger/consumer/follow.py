"""Source of the batches of a log or of all partitions of a ledger, from given positions on. It keeps no cursor.

    take:  one call for the range, the columns and the places of the next rows; then the blocks
    wait:  the client's watch, which waits for all loops of the process in one call

Rules
- A batch ends between entries. Entries without rows, such as markers, make no batch.
- A message in chunks is a row of the batch that has its last chunk. Its earlier chunks are read from the log again.
- The columns of a batch are those that are registered when it is read. So a column that a writer adds appears in all
  later batches, also in those of older rows, where it is null.
- A ledger that was deleted and created again is another ledger: DataLoss. So are rows that retention has deleted.
- Partitions take turns (`ledger.consumer.turns`). A partition that is added joins at its first row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from pyspark_ledger.ledger.consumer.batch import Batch, BatchLimits
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.consumer.opened_rows import OpenedRows, objects_of, require_positions
from pyspark_ledger.ledger.consumer.turns import LogTurns, existing_partitions, named_positions
from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.names import canonical_name, short_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.actions import AskEnd
from pyspark_ledger.ledger.protocol.ends import KnownEnd, MovedEnd
from pyspark_ledger.ledger.protocol.ledgers import AskPartitions
from pyspark_ledger.ledger.protocol.reads import OpenRead, ReadLimits
from pyspark_ledger.ledger.rows.row_type import Row, RowType

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

_LIMIT_MAX = 2**62


@dataclass
class _Log:
    """Progress in one log. `known` is the newest known end of the log; None before the first read."""

    name: str
    incarnation: str
    at: Position
    known: Position | None = None
    terminated: bool = False

    @property
    def has_more(self) -> bool:
        return self.known is None or self.at < self.known

    @property
    def has_ended(self) -> bool:
        return self.terminated and not self.has_more


class FollowedLogs(Generic[Row]):
    """Source of the batches of a ledger without partitions, or of all partitions."""

    def __init__(self, client: Client, name: str, limits: BatchLimits, row_type: RowType[Row] | None) -> None:
        self._row_type = row_type
        self._client = client
        self._name = canonical_name(name)
        self._limits = ReadLimits(min(limits.max_rows or _LIMIT_MAX, _LIMIT_MAX), min(limits.max_bytes, _LIMIT_MAX))
        self._logs = LogTurns[_Log](client)

    def begin(self, start: Position) -> None:
        """Begin to read a ledger without partitions. Raises NotFound if it does not exist."""
        self._logs.add(self._name, self._begun(self._name, start))

    def begin_partitions(self, start: Position | Mapping[str, Position]) -> None:
        """Begin to read all partitions. A partition that `start` does not name is read from its first row on."""
        partitions = self._client.ask(AskPartitions(self._name)).partitions
        names = existing_partitions(self._name, partitions)
        starts = named_positions("start", start, names, repr(short_name(self._name)))
        self._logs.join(self._name, partitions, lambda name: self._begun(name, starts.get(name, EARLIEST)))

    def take(self) -> Batch[Row] | None:
        for log in self._logs:
            if (batch := self._take(log)) is not None:
                return batch
        return None

    def passed(self, batch: Batch[Row]) -> None:
        name = canonical_name(batch.ledger)
        log = self._logs[name]
        log.at = max(log.at, batch.position)
        self._logs.pass_turn(name)

    def wait(self, milliseconds: int) -> bool:
        open_logs = [log for log in self._logs if not log.has_ended]
        if not open_logs:
            return False
        known = [KnownEnd(log.name, log.incarnation, log.at) for log in open_logs]
        for state in self._logs.wait(known, milliseconds):
            self._learn(state)
        return True

    def wake(self) -> None:
        self._logs.wake()

    def close(self) -> None:
        """Do nothing: the source holds nothing while it does not wait."""

    def _take(self, log: _Log) -> Batch[Row] | None:
        while log.has_more:
            request = OpenRead(log.name, log.at, limits=self._limits, incarnation=log.incarnation)
            opened = OpenedRows(self._client, request)
            if opened.log_end == EARLIEST:  # the default of the field; no log ends there
                raise Unsupported(
                    f"the broker at {self._client.address} does not limit reads, a loop over {self._name} requires it",
                    hint="Install the client's release of pyspark-ledger at the broker, and start it again",
                )
            log.known, log.terminated = opened.log_end, opened.terminated
            table = opened.table() if opened.num_rows else None
            if table is not None and table.num_rows:
                read = OpenRead(log.name, log.at, opened.end, incarnation=log.incarnation)
                objects = objects_of(self._client, read, self._row_type)
                return Batch(short_name(log.name), log.at, opened.end, table, _objects=objects)
            log.at = max(log.at, opened.end)
        return None

    def _learn(self, state: MovedEnd) -> None:
        if state.error is not None:
            raise state.error.error()
        if self._logs.is_partitioned(state.name):
            self._logs.join(state.name, state.partitions, lambda name: self._begun(name, EARLIEST))
            return
        log = self._logs[state.name]
        # The read of another incarnation raises DataLoss, with both incarnations.
        log.known = state.end if state.incarnation == log.incarnation else LATEST
        log.terminated = state.terminated

    def _begun(self, name: str, start: Position) -> _Log:
        now = self._client.ask(AskEnd(name))
        return _Log(name, now.incarnation, now.end if start == LATEST else start)


def follow(
    client: Client, name: str, start: Position, limits: BatchLimits, row_type: RowType[Row] | None
) -> Batches[Batch[Row]]:
    """Return the batches of a ledger without partitions, from `start` on."""
    require_positions(start=start)
    source = FollowedLogs(client, name, limits, row_type)
    source.begin(start)
    return Batches(source, short_name(canonical_name(name)), limits.wait_ms)


def follow_partitions(
    client: Client,
    name: str,
    start: Position | Mapping[str, Position],
    limits: BatchLimits,
    row_type: RowType[Row] | None,
) -> Batches[Batch[Row]]:
    """Return the batches of all partitions, each from its own start on."""
    source = FollowedLogs(client, name, limits, row_type)
    source.begin_partitions(start)
    return Batches(source, short_name(canonical_name(name)), limits.wait_ms)
