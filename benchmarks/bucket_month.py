"""Simulation of a month of 1,000 slow ledgers in a bucket: requests, segments, bytes. It uses no server and no clock.

Each ledger gets 120 bytes every ten minutes, at its own time. The simulation calls the real functions of the broker,
which decide when an object of the log is put, and which objects are deleted. They also decide which open segments are
copied from old log objects into a newer object. The sizes of metadata records are measured constants. There is no base
and no ratio.
"""

from __future__ import annotations

from pyspark_ledger.ledger.bucket_store.collector import CollectorLimits
from pyspark_ledger.ledger.bucket_store.live_files import LiveFiles, oldest, to_carry
from pyspark_ledger.ledger.wal.fence import first_live
from pyspark_ledger.ledger.wal.requests import RequestLimits

LEDGERS, DAYS, EVERY_MS = 1_000, 30, 600_000
ENTRY_BYTES, SEGMENT_HEAD_BYTES = 250, 128  # 120 bytes of payload with metadata, stamp and frame
ROLLOVER_MS = 240 * 60_000  # managedLedgerMaxLedgerRolloverTimeMinutes
RECORD_BYTES, LEDGER_BYTES, SEGMENT_BYTES = (
    900,
    700,
    60,
)  # of a rollover's records in the log; compressed, in a snapshot
PUTS_OF_UPLOAD = 3  # data, entry index, block index


def main() -> None:
    """Print the counts of one month."""
    limits, requests = CollectorLimits(), RequestLimits()
    files, sizes, opened = LiveFiles(), [0] * LEDGERS, [0] * LEDGERS
    end = first = collected = puts = segments = carried = snapshot_bytes = log_bytes = 0
    step_ms = EVERY_MS // LEDGERS
    flushed_ms = -requests.flush_interval_ms
    for number in range(DAYS * 24 * 3_600_000 // step_ms):
        now_ms, at = number * step_ms, number % LEDGERS
        name = f"ledgers/{at}.ledger"
        if sizes[at] and now_ms - opened[at] >= ROLLOVER_MS:
            segments += 1
            puts += PUTS_OF_UPLOAD
            log_bytes += RECORD_BYTES
            end += 4  # records of the seal, the attempt, its completion, the new segment
            files.keep(lambda name=name: files.names() - {name})  # type: ignore[misc]
            sizes[at] = 0
        if not sizes[at]:
            sizes[at], opened[at] = SEGMENT_HEAD_BYTES, now_ms
        sizes[at] += ENTRY_BYTES
        if now_ms - flushed_ms >= requests.flush_interval_ms:
            end, flushed_ms = end + 1, now_ms
        files.record(name, end - 1, sizes[at])
        log_bytes += ENTRY_BYTES
        if end - collected >= limits.objects_max:
            live = files.keep(files.names)
            for slow in to_carry(live, end - limits.objects_max, limits.carry_bytes):
                carried += live[slow].length
                files.carried(slow, end)
            end += 1
            first = max(first, first_live(end, oldest(files.keep(files.names).values()), None, end))
            puts += 2  # snapshot and manifest
            snapshot_bytes += LEDGERS * LEDGER_BYTES + segments * SEGMENT_BYTES
            collected = end
    puts += end
    print(f"  objects of the log   {end:>12,}, live at the end {end - first:,}")
    print(f"  puts in all          {puts:>12,}, looks {end:,}")
    print(f"  segments             {segments:>12,}, {segments / LEDGERS / DAYS:.1f} a day and ledger")
    print(f"  bytes of entries     {log_bytes:>12,}, carried {carried:,}, snapshots {snapshot_bytes:,}")
    print(f"  cost of requests     {puts * 5e-6 + end * 0.4e-6:>12.2f} $ on S3 Standard")


if __name__ == "__main__":
    main()
