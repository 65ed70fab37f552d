"""Items that wait in the queue of a log: appends, runs of committed batches, and changes of the log itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.log.deduplication import SequenceClaim
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun
from pyspark_ledger.ledger.log.staging.opened_part import OpenedPart
from pyspark_ledger.ledger.logs.batch import BatchId, current_batch
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RunOrigin
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun
from pyspark_ledger.ledger.segment.writer import SegmentWriter


class CheckedEntry(NamedTuple):
    """Entry whose checksum was verified, its size in bytes, and the number of rows that readers get from it."""

    data: Buffer
    size: int
    rows: int


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Pending(Generic[T]):
    """Queued item with the future of its caller."""

    future: Future[T] = field(default_factory=Future, kw_only=True)

    def __post_init__(self) -> None:
        # A queued item cannot be cancelled: after this call, `cancel()` of the future returns False.
        self.future.set_running_or_notify_cancel()

    def fail(self, error: LedgerError) -> None:
        """Complete the future with `error`."""
        self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class PendingAppend(Pending[Position]):
    """Queued append: entries that get consecutive ids in one segment.

    `retried` is true after the first failed write or sync. `claim` reserves the sequence ids of the entries
    (`ledger.log.deduplication`). If the reservation was cancelled, the entries are not written. `queued_s` is the time
    of the call, measured by `perf_counter`.
    """

    entries: Sequence[CheckedEntry]
    size: int
    retried: bool = False
    claim: SequenceClaim | None = None
    queued_s: float = field(default_factory=perf_counter)


@dataclass(slots=True, eq=False)
class PendingRun(Pending[CommittedRun]):
    """Queued run: the verified entries of a batch. The writer adds the marker, the entry that ends a run.

    `size` is in bytes and includes the header of each entry in the file. `parts` are set if the staged parts (the files
    of the tasks) become segments (`ledger.log.staging.promotion`). `direct` is set if the parts are data objects in the
    bucket; then the run has no entries here. `batch` is the id of the Spark batch, for messages of Python's `logging`.
    `fault` is the error that prevents the use of the parts. The writer raises it only if the batch is new.
    `decided` is the recorded origin of a batch that was judged before, as a batch of several ledgers is.
    """

    request: CommitRun
    entries: Sequence[CheckedEntry]
    size: int
    parts: Sequence[OpenedPart] = ()
    direct: DirectRun | None = None
    fault: LedgerError | None = None
    decided: RunOrigin | None = None
    batch: BatchId | None = field(default_factory=current_batch)

    def committed(self, first: Position, end: Position, entries: int, rows: int, now_ms: int) -> CommittedBatch:
        """Return the record of the batch, whose entries are `[first, end)`."""
        request, origin = self.request, self.decided or RunOrigin()
        return CommittedBatch(request.query, request.batch, first, end, entries, rows, now_ms, request.once, origin)


@dataclass(slots=True, eq=False)
class PendingChange(Pending[Any]):
    """Queued change of the log itself. The thread of the write stage calls `change`.

    `settled`: the change starts only when no group is in flight. False for a change that concerns only sealed segments.
    """

    change: Callable[[], object]
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Room:
    """Number of entries and bytes that fit before the segment is full. The first item need not fit."""

    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    """Group that was written to a segment and waits for its sync.

    `end` is the entry id after the group's last entry. `end_offset` is the end of this entry in the file.
    """

    ledger: SegmentWriter
    group: list[PendingAppend]
    firsts: list[Position]
    end: int
    end_offset: int


Item = PendingAppend | PendingRun | PendingChange
Group = list[PendingAppend] | PendingRun | PendingChange
