"""Partitioned ledger in Python: appends are distributed over its partitions, and a read returns all of them.

    clicks = connect().create_partitioned("clicks", 4)
    with clicks.producer() as producer:
        producer.send(b"home", key="alice")
    for partition in clicks.partitions(): ...            # each partition is a ledger with its own positions and cursors

Rules
- Rows and messages of one partition keep their order. Rows of different partitions have no order.
- A position belongs to one partition. So the partitioned ledger refuses calls that need a position. Its cursors have a
  position in each partition (`ledger.api.joined_cursor`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor, open_cursor
from pyspark_ledger.ledger.api.ledger import Ledger, Rows
from pyspark_ledger.ledger.client.kept_producer import Entry, NothingAppended
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.consumer.batch import MAX_BYTES, Batch, BatchLimits
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.consumer.follow import follow_partitions
from pyspark_ledger.ledger.consumer.opened_rows import rows_as_table
from pyspark_ledger.ledger.consumer.turns import existing_partitions
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.ledger_selection import Addressing
from pyspark_ledger.ledger.message.columns import ColumnFit
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.partition_routing import murmur3_32, require_hashing_scheme
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.actions import ChangePartitions
from pyspark_ledger.ledger.protocol.ledgers import AskPartitions
from pyspark_ledger.ledger.rows.row_type import Row, RowType

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.partitioned_producer import PartitionedProducer
    from pyspark_ledger.ledger.protocol.actions import LedgerEnd


class PartitionedLedger(Ledger[Row]):
    """Ledger with partitions. Appends and whole reads work on all partitions.

    An append goes to the next partition in rotation, and returns the position after its rows in that partition. While a
    client appends continuously, it does not use newly added partitions. It uses them after it was idle for some
    seconds.

    A position or an end belongs to one partition, so the calls about them are refused.
    """

    def __init__(self, client: Client, name: str, row_type: RowType[Row] | None = None) -> None:
        super().__init__(client, name, row_type)
        self._turn = murmur3_32(f"ledger-api-{new_id()}")
        self._parts: list[Ledger[Row]] = []

    def partitions(self) -> list[Ledger[Row]]:
        """Return the partitions that exist now. Raises NotFound if the partitioned ledger was deleted."""
        count = self.client.ask(AskPartitions(self.name)).partitions
        return [Ledger(self.client, name, self.row_type) for name in existing_partitions(self.name, count)]

    def increase_partitions(self, partitions: int) -> None:
        """Increase the number of partitions. Raises Refused for a lower number.

        Producers that are created afterwards use all partitions. Earlier producers use the earlier partitions.
        """
        self.client.ask(ChangePartitions(self.name, partitions))

    def seal(self, older_than_ms: int = 0) -> bool:
        """Seal the open segment (file) of each partition if it has an entry and is at least `older_than_ms` old.

        Returns whether a segment was sealed.
        """
        sealed = [partition.seal(older_than_ms) for partition in self.partitions()]
        return any(sealed)

    def _append(self, rows: Rows | bytes) -> Position:
        """Append rows, or one message, to the next partition in rotation."""
        self._turn += 1
        position = self._append_kept(rows)
        if position is not None:
            return position
        self._parts = self.partitions()
        part = self._parts[self._turn % len(self._parts)]
        if isinstance(rows, bytes):
            return part._append(rows)  # noqa: SLF001 — a partition is a ledger
        given = self._table(rows, self.schema())
        columns, _ = self._registered(given)
        # A first append registers the columns of a partition, which must be the columns of the whole ledger.
        return part._append(pa.Table.from_batches(self._fitted(given, columns), columns))  # noqa: SLF001 — see above

    def _append_kept(self, rows: Rows | bytes) -> Position | None:
        """Append with the idle producer that the client keeps for the next partition.

        Return None if the client keeps no producer, or if nothing was appended, for example to a deleted partition.
        This method never creates a deleted partition.
        """
        if not self._parts:
            return None
        part = self._parts[self._turn % len(self._parts)]
        kept = self.client.kept.take(part.name)
        if kept is None:
            return None
        entries: list[Entry] = []
        try:
            with suppress(Refused):  # `append` raises this error again, with the partitioned ledger's name
                # `append` registers a type for the whole ledger, before a partition has it.
                entries = part._entries(kept, rows, registers=False)  # noqa: SLF001 — a partition is a ledger
            return kept.append(entries) if entries else None
        except (NothingAppended, NotFound):
            kept.end()
            return None
        finally:
            self.client.kept.give(kept)

    def producer(  # type: ignore[override]  # the same methods, but `send_column` returns an id for each partition
        self,
        name: str | None = None,
        *,
        hashing_scheme: str = "murmur3_32",
        compression: str = "none",
        batching_max_messages: int = 1000,
        batching_max_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 1,
        max_pending_bytes: int = 64 * 1024 * 1024,
        chunk_max_bytes: int | None = None,
    ) -> PartitionedProducer[Row]:
        """Open a producer that sends messages to all partitions, by key or in rotation. Close it, or use `with`.

        `Ledger.producer` explains `chunk_max_bytes`.
        """
        from pyspark_ledger.ledger.client.message_producer import open_producer
        from pyspark_ledger.ledger.client.partitioned_producer import PartitionedProducer
        from pyspark_ledger.ledger.message.outgoing.batching import Batching

        require_hashing_scheme(hashing_scheme)  # checked before a stream is opened
        if self.schema() is not None:
            raise Refused(f"ledger {self.name} has rows with columns", hint="Send messages to another ledger")
        batching = Batching(batching_max_messages, batching_max_bytes, batching_max_publish_delay_ms)
        name = name or f"ledger-api-{new_id()}"
        parts = self.partitions()
        producers = [
            open_producer(
                self.client,
                part.name,
                name,
                batching,
                compression=compression,
                max_pending_bytes=max(1, max_pending_bytes // len(parts)),
                chunk_max_bytes=chunk_max_bytes,
                partition=partition,
                row_type=self.row_type,
            )
            for partition, part in enumerate(parts)
        ]
        return PartitionedProducer(name, producers, batching, hashing_scheme)

    def read(self, start: Position = EARLIEST, end: Position | None = None) -> pa.Table:
        """Return all rows as one table, one partition after the other."""
        return rows_as_table(self.batches(start, end), self.schema())

    def rows(self, start: Position = EARLIEST, end: Position | None = None) -> Iterator[Row]:
        """Yield all rows as objects of the ledger's type, one partition after the other. See `Ledger.rows`."""
        self._require_all(start, end)
        for part in self.partitions():
            yield from part.rows()

    def batches(self, start: Position = EARLIEST, end: Position | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows as batches, one partition after the other.

        All batches have the columns that are registered for the partitioned ledger.
        """
        self._require_all(start, end)
        columns = self.schema()
        fit = None if columns is None else ColumnFit(columns)
        for part in self.partitions():
            for batch in part.batches():
                yield batch if fit is None else fit.fit(batch, part.name)

    def follow(
        self,
        start: Position | Mapping[str, Position] = EARLIEST,
        *,
        max_rows: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait: float | None = None,
    ) -> Batches[Batch[Row]]:
        """Return an iterator over the rows of all partitions, in batches, which waits for new rows.

            for batch in clicks.follow(start=saved):
                work(batch.table); saved[batch.ledger] = batch.position

        `start` is EARLIEST, LATEST, or a mapping of a partition's name to its position. A partition that the mapping
        does not name, and one that is added later, is read from its first row on. Each batch has rows of one
        partition, and the partitions take turns. `Ledger.follow` explains the other arguments and the errors.
        """
        limits = BatchLimits(max_rows, max_bytes, wait)
        return follow_partitions(self.client, self.name, start, limits, self.row_type)

    def cursor(  # type: ignore[override]  # the same calls, but with a position for each partition
        self, name: str, start: Position | Mapping[str, Position] = EARLIEST
    ) -> JoinedCursor[Row]:
        """Return the durable cursor of this name in all partitions. Create those that do not exist, at `start`.

        `start` is EARLIEST, LATEST, or a mapping of a partition's name to its position. A partition that the mapping
        does not name, and one that is added later, starts at its first row.

            for batch in store.ledger("rides").cursor("worker").batches(ack="after"): work(batch.table)
        """
        return open_cursor(self, Addressing((self.name,)), name, start, self.row_type)

    def end(self) -> LedgerEnd:
        """Raise Refused, because each partition has its own end."""
        self._refuse("an end")

    def _require_all(self, start: Position, end: Position | None) -> None:
        if start != EARLIEST or end is not None:
            self._refuse("a range of positions")

    def _refuse(self, what: str) -> NoReturn:
        raise Refused(
            f"{what} of {short_name(self.name)!r} was requested, but this ledger has partitions",
            hint="Call the method of each partition: `.partitions()` returns them",
        )
