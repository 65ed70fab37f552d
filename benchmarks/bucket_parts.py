"""Simulation of a stream whose tasks write eight parts a second, for a day and a month. No server, no clock, no ratio.

Each second one batch of eight parts is committed to one ledger of a store in a bucket. The broker's real code decides:

- whether a task puts a part into the bucket,
- how a batch is divided into segments,
- when a segment is sealed,
- which objects are deleted.

The sizes of metadata records are measured constants.

`python -m benchmarks.bucket_parts` prints the counts for each size of the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from pyspark_ledger.ledger.bucket_store.collector import CollectedLog, Collector, CollectorLimits
from pyspark_ledger.ledger.bucket_store.live_files import LiveFile, LiveFiles
from pyspark_ledger.ledger.bucket_store.manifest_holder import ManifestHolder
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.commits import PartRun, PutObject, StagedPart
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.direct_parts import segment_parts
from pyspark_ledger.ledger.wal.bucket import Bucket
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.requests import FoundManifest, RequestLimits
from pyspark_ledger.offload.direct.upload import DirectUpload

TASKS, DAY, MONTH = 8, 86_400, 30 * 86_400
ENTRY_BYTES_MAX = 4 * 1024 * 1024
PIECE_BYTES = 8 * 1024 * 1024
LISTING_BYTES, LISTED_BYTES, MARK_BYTES, ROLLOVER_BYTES = 240, 700, 280, 3_400  # of records in the log
SNAPSHOT_BYTES, SNAPSHOT_SEGMENT_BYTES = 6_000, 58  # compressed
PUT_DOLLARS, GET_DOLLARS = 5e-6, 0.4e-6  # S3 Standard

SIZES = {
    "10 kB": [10_000] * TASKS,
    "100 kB": [100_000] * TASKS,
    "900 kB": [900_000] * TASKS,
    "33 MiB": [33 << 20] * TASKS,
    "one of 33 MiB, seven of 100 kB": [*[100_000] * 3, 33 << 20, *[100_000] * 4],
}


class CountedBucket:
    """Bucket that keeps nothing, and counts the puts."""

    address = "memory:"

    def __init__(self) -> None:
        self.puts = 0

    def put(self, _key: str, _data: bytes, **_: Any) -> str:
        self.puts += 1
        return str(self.puts)

    def delete(self, _keys: Collection[str]) -> None:
        """Delete nothing. S3 does not charge for deletions."""


@dataclass
class Counts:
    """Sums since the start. `log_bytes` has rows and records; `records` are the bytes of records in the log."""

    parts: int = 0
    segments: int = 0
    log_objects: int = 0
    puts: int = 0
    gets: int = 0
    log_bytes: int = 0
    records: int = 0
    carried: int = 0
    snapshots: int = 0

    @property
    def dollars(self) -> float:
        """The cost of the requests."""
        return self.puts * PUT_DOLLARS + self.gets * GET_DOLLARS


@dataclass
class _OpenFile:
    name: str
    ledger_id: int
    opened_s: int
    entries: int = 0
    size: int = 0


def staged(size: int, upload_from: int) -> StagedPart:
    """Return the part of a task with `size` bytes, by the decision of the task's writer."""
    upload, entries = DirectUpload(PartRun("q", 1, 1, 1, 64 << 20, 0), upload_from), 0
    while size > 0:
        upload.write([bytes(min(size, ENTRY_BYTES_MAX))], 1)
        size -= ENTRY_BYTES_MAX
        entries += 1
    length = upload._layout.length  # noqa: SLF001 — the size of the object
    return StagedPart("", entries, entries, length, 0, 0, PutObject("", 0, b"", b"") if upload.is_due else None)


@dataclass
class Simulation:
    """Ledger that gets a batch a second. `upload_from` is the least size of a part that becomes an object."""

    sizes: Sequence[int]
    upload_from: int = Settings().stagedPartPromotionMinBytes
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        """Create the collector."""
        parts = {size: staged(size, self.upload_from) for size in set(self.sizes)}
        self._parts = [parts[size] for size in self.sizes]
        self._groups = segment_parts(self._parts)
        self._policy = LedgerPolicy.of(ManagedLedgerInfo(), {}, {}, Settings())
        self._requests, self._now_s, self._ids = RequestLimits(), 0, count()
        self._open: _OpenFile | None = None
        self._files, self._bucket = LiveFiles(), CountedBucket()
        bucket, found = cast("Bucket", self._bucket), FoundManifest(StoreManifest("", ""), "0")
        log = CollectedLog(
            end=lambda: self.counts.log_objects,
            needed=lambda: self.counts.log_objects,
            size=lambda: self.counts.log_bytes,
            snapshot=self._snapshot,
            needed_files=lambda: () if self._open is None else (self._open.name,),
            carry=self._carry,
            roll_over=self._roll_over,
            fail=_fail,
        )
        self._collector = Collector(
            bucket,
            ManifestHolder(bucket, found, self._requests, lambda: self.counts.log_objects),
            self._files,
            log,
            CollectorLimits(),
            self._requests,
            lambda: self._now_s * 1000,
        )

    def run(self, seconds: int) -> Counts:
        """Simulate some seconds more. Return the sums."""
        for _ in range(seconds):
            self._now_s += 1
            self.counts.parts += len(self.sizes)
            if self._groups:
                self._list_segments()
            else:
                self._append()
            if self._collector.is_due:
                self._collector.collect()
        return replace(self.counts, puts=self.counts.puts + self.counts.log_objects + self._bucket.puts)

    def _append(self) -> None:
        """Write the batch into the open segment."""
        opened, policy = self._open, self._policy
        if opened is not None:
            age_ms = (self._now_s - opened.opened_s) * 1000
            full = opened.entries >= policy.entries_max or opened.size >= policy.size_max
            if (full and policy.may_roll_over(age_ms)) or policy.is_due(opened.ledger_id, age_ms):
                self._seal()
        if self._open is None:
            ledger_id = next(self._ids)
            self._open = _OpenFile(f"ledgers/{ledger_id}.ledger", ledger_id, self._now_s)
            self._record(ROLLOVER_BYTES // 4)
        opened = self._open
        size = sum(part.length for part in self._parts)
        opened.entries += sum(part.entries for part in self._parts) + 1
        opened.size += size
        self._files.record(opened.name, self.counts.log_objects, opened.size)
        self._put(size)

    def _list_segments(self) -> None:
        """Make segments of the batch."""
        self._seal()
        counts = self.counts
        for parts in self._groups:
            size = sum(part.length for part in parts)
            counts.segments += 1
            counts.puts += 2 + -(-size // PIECE_BYTES) + 2  # begin, pieces, end; index objects
            counts.gets += parts[0].object is not None  # HEAD at the commit
        self._record(LISTING_BYTES + LISTED_BYTES * len(self._groups))
        self._record(MARK_BYTES * len(self._groups))

    def _seal(self) -> None:
        """Seal and upload the open segment."""
        opened, self._open = self._open, None
        if opened is not None:
            self.counts.segments += 1
            self.counts.puts += 2 + -(-opened.size // self._policy.block_bytes) + 2
            for _ in range(3):  # seal, attempt, complete upload
                self._record(ROLLOVER_BYTES // 4)

    def _record(self, size: int) -> None:
        self.counts.records += size
        self._put(size)

    def _put(self, size: int) -> None:
        """Put `size` bytes into the log. The batches of different seconds share no object."""
        objects = max(1, -(-size // self._requests.object_bytes))
        self.counts.log_objects += objects
        self.counts.gets += objects  # of the manifest
        self.counts.log_bytes += size

    def _snapshot(self) -> tuple[bytes, int]:
        data = bytes(SNAPSHOT_BYTES + SNAPSHOT_SEGMENT_BYTES * self.counts.segments)
        self.counts.snapshots += len(data)
        return data, self.counts.log_objects

    def _carry(self, files: Mapping[str, LiveFile]) -> dict[str, int]:
        self.counts.carried += sum(file.length for file in files.values())
        first = self.counts.log_objects
        for file in files.values():
            self._put(file.length)
        return dict.fromkeys(files, first)

    def _roll_over(self, _name: str) -> bool:
        self._seal()
        return True


def _fail(error: LedgerError) -> None:
    raise error


def line(name: str, period: str, counts: Counts) -> str:
    """Return a line with the counts."""
    requests = f"{counts.log_objects:>11,} {counts.puts:>12,} {counts.gets:>11,}"
    sizes = f"{counts.records + counts.snapshots:>15,} {counts.carried:>10,}"
    return f"{name:<32} {period:<6} {counts.segments:>9,} {requests} {sizes} {counts.dollars:>9.2f} $"


def main() -> None:
    """Print the counts of a day for each size, and of a month for small parts."""
    requests = f"{'log objects':>11} {'puts':>12} {'gets':>11}"
    print(f"{'parts':<39} {'segments':>9} {requests} {'metadata bytes':>15} {'carried':>10} {'requests':>11}")
    for name, sizes in SIZES.items():
        simulation = Simulation(sizes)
        print(line(name, "day", simulation.run(DAY)), flush=True)
        if max(sizes) < simulation.upload_from:
            print(line(name, "month", simulation.run(MONTH - DAY)), flush=True)
    print(line("100 kB, each part a segment", "day", Simulation(SIZES["100 kB"], upload_from=0).run(DAY)))


if __name__ == "__main__":
    main()
