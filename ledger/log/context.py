"""Objects and callbacks that all managed ledgers of a store share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.log.durability import DiskDurability, StoreDurability
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.sync_pool import LogPool
from pyspark_ledger.ledger.log.unfinished_chunks import ChunkTable
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metrics.latencies import LONG_BOUNDS, Latencies
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader, NoOffloader


@dataclass(frozen=True, slots=True)
class LogContext:
    """Objects and callbacks that all managed ledgers of a store share."""

    store_id: str
    require_ours: Callable[[], None]
    """Raises Fenced if another broker has taken the store over."""
    directory: Path
    metadata: Metadata
    settings: Settings
    clock: Clock
    executor: Executor
    sync_pool: LogPool
    sealed: Callable[[str], None]
    """Called with the name of a managed ledger after it has sealed a segment. Must not block."""
    due: Callable[[str, int], None]
    """Called with the name of a managed ledger, and a time at which it needs background work. Must not block."""
    unlisted: Callable[[Collection[int]], None]
    """Called with the ids of segments that were trimmed, or whose local copy is not needed. Deletes their files."""
    moved: Callable[[LogSnapshot, LogSnapshot], None] = lambda _before, _now: None
    """Called with the snapshots before and after a change, on the thread of the change. Must not wait for the log."""
    offloader: Callable[[], LedgerOffloader] = NoOffloader
    """Returns the current offloader."""
    prefer_remote: Callable[[], bool] = lambda: False
    """Returns whether a segment that has both a local copy and an offloaded copy is read from object storage."""
    chunks: ChunkTable = field(default_factory=ChunkTable)
    append_latencies: Latencies = field(default_factory=Latencies)
    """Durations from the call of an append to its acknowledgement. Only the oldest append of a group counts."""
    trim_latencies: Latencies = field(default_factory=lambda: Latencies(LONG_BOUNDS))
    """Durations of trims that deleted something."""

    durability: StoreDurability = field(default_factory=DiskDurability)
