"""Settings of a store in a bucket."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import MIB, whole


@dataclass(frozen=True)
class BucketSettings:
    """Store in a bucket: when its log is written, collected and taken over."""

    bucketFlushIntervalMs: int = whole(
        100,
        "milliseconds",
        20,
        1_000,
        "Entries and records of a store in a bucket are put together, one object in this time. A single client does "
        "not wait for it.",
    )
    bucketPutsInFlight: int = whole(
        8, "objects", 1, 64, "Number of objects of the log that are put at once. A store never lowers this number."
    )
    bucketTakeoverMs: int = whole(
        30_000,
        "milliseconds",
        1_000,
        3_600_000,
        "A broker on another host may be taken over after this time without a new object in the log.",
    )
    bucketSnapshotBytes: int = whole(
        64 * MIB,
        "bytes",
        MIB,
        16 * 1024 * MIB,
        "The records of a store in a bucket are written as a snapshot after this much log.",
    )
