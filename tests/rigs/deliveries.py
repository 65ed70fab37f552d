"""Set-up for tests of deliveries: a log whose rows are delivered, redelivered and acknowledged one by one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.cursor.redelivery import complement, skipped_rows
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.cursors import (
    AckDelivery,
    AcquireLease,
    AskDelivery,
    AskDue,
    DecidedDelivery,
    DeliveredRange,
    DescribeCursor,
    Due,
    NextDelivery,
    OpenCursor,
)
from tests.rigs.entry import entry
from tests.rigs.log import LogRig
from tests.rigs.positions import contains_row

ROWS, ENTRIES, TIMEOUT = 5, 20, 1000
Row = tuple[int, int, int]


class DeliveryRig(LogRig):
    """A log of five ledgers of four entries of five rows, and a reader in explicit mode."""

    def __init__(self, path: Path, **settings: int) -> None:
        super().__init__(path, **settings)
        self.after, self.position = 0, Position(0, 0)
        self.dead = 0
        log = self.log(entries=4)
        for number in range(ENTRIES):
            log.append([entry(b"x%d" % number, rows=ROWS)]).result()
        self.store.cursors.open(OpenCursor("log", "c", Position(0, 0)))

    def next(
        self, end: Position | None = None, *, explicit: bool = True, most: int = -1, back: int = 10**9
    ) -> DecidedDelivery:
        end = self.store.ledger("log").snapshot.end if end is None else end
        decided = self.store.deliveries.next(
            NextDelivery("log", "c", self.after, self.position, end, explicit, TIMEOUT, most, back)
        )
        self.dead = decided.dead
        return decided

    def take(self, end: Position | None = None, **how: int) -> Counter[tuple[Row, int]]:
        """The next batch as (row, count), once Spark has committed the one before; nothing when there is none."""
        decided = self.next(end, **how)
        if not decided.record:
            return Counter()
        self.after, self.position = decided.record, decided.position
        return self.rows(decided.record)

    def due(self) -> Due:
        return self.store.deliveries.due(AskDue("log", "c", self.after, TIMEOUT))

    def rows(self, record: int) -> Counter[tuple[Row, int]]:
        return self.rows_of(self.store.deliveries.get(AskDelivery("log", "c", record)).shares)

    def rows_of(self, shares: list[DeliveredRange]) -> Counter[tuple[Row, int]]:
        found: Counter[tuple[Row, int]] = Counter()
        snapshot = self.store.ledger("log").snapshot
        for share in shares:
            left = complement(skipped_rows(share), share.range, snapshot)
            for ledger in range(5):
                for number in range(4):
                    for row in range(ROWS):
                        if contains_row(left, Position(ledger, number), row):
                            found[(ledger, number, row), share.count] += 1
        return found

    def ack(self, *rows: Row) -> None:
        self.store.cursors.acknowledge("log", "c", self.batches(rows))

    def nack(self, *rows: Row) -> None:
        self.store.deliveries.nack("log", "c", self.batches(rows))

    @staticmethod
    def batches(rows: tuple[Row, ...]) -> list[pa.RecordBatch]:
        return [acknowledge_batch(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)]

    def left(self) -> set[Row]:
        """The rows that the store does not know to be acknowledged."""
        cursor = self.store.deliveries._cursor("public/default/persistent/log", "c")
        cursor, held, _ = self.store.acknowledgements.state(cursor, self.store.ledger("log").snapshot)
        at = cursor.next_position
        return {
            row for row in all_rows() if Position(*row[:2]) >= at and not contains_row(held, Position(*row[:2]), row[2])
        }

    def backlog(self) -> int:
        return self.store.cursors.describe(DescribeCursor("log", "c")).backlog_rows


def all_rows(ledgers: range = range(5)) -> list[Row]:
    return [(ledger, number, row) for ledger in ledgers for number in range(4) for row in range(ROWS)]


class LoopWorker:
    """A loop without its client: it acquires the lease, decides batches, and acknowledges them."""

    def __init__(self, rig: DeliveryRig, holder: str, ttl_ms: int = 10_000) -> None:
        self.rig, self.holder = rig, holder
        self.nacked, self.done = list[DeliveredRange](), list[DeliveredRange]()
        reply = rig.store.leases.acquire(AcquireLease("log", "c", holder, ttl_ms))
        assert reply.granted, reply
        newest = rig.store.deliveries.get(AskDelivery("log", "c", 0))
        self.after, self.since_ms = newest.record, newest.now_ms

    def decide(self, rows: int = 10**9) -> DecidedDelivery:
        """Decide the next batch, as a request whose reply is lost."""
        return self.rig.store.deliveries.next(
            NextDelivery(
                "log", "c", self.after, Position(9, 9), Position(9, 9), True, TIMEOUT, back_rows=rows,
                holder=self.holder, due_before_ms=self.since_ms, nacked=self.nacked, done=self.done,
            )
        )  # fmt: skip

    def take(self, rows: int = 10**9) -> list[DeliveredRange]:
        decided = self.decide(rows)
        self.after, self.nacked, self.done = decided.record or self.after, [], []
        return decided.shares

    def rows(self, rows: int = 10**9) -> Counter[tuple[Row, int]]:
        return self.rig.rows_of(self.take(rows))

    def acknowledge(self, shares: list[DeliveredRange]) -> Position:
        return self.rig.store.deliveries.acknowledge(AckDelivery("log", "c", self.holder, shares))
