"""Settings of a store in a bucket.

The log of such a store is a sequence of objects in the bucket, the *log objects*. To *put* an object is to write it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import MIB, whole


@dataclass(frozen=True)
class BucketSettings:
    """Store in a bucket: writes of its log, take-over, and snapshots."""

    bucketFlushIntervalMs: int = whole(
        100,
        "milliseconds",
        20,
        1_000,
        "Time for which a store in a bucket collects entries and records before it puts them as one object of its log. "
        "An entry is put at once if no other client appends.",
    )
    bucketPutsInFlight: int = whole(
        8,
        "objects",
        1,
        64,
        "Maximum number of log objects whose puts are in flight. For an existing store a lower value has no effect, "
        "because a broker that was replaced may still have puts in flight.",
    )
    bucketTakeoverMs: int = whole(
        30_000,
        "milliseconds",
        1_000,
        3_600_000,
        "Another host may take over the store if the broker does not answer and the log gets no object for this time.",
    )
    bucketSnapshotBytes: int = whole(
        64 * MIB,
        "bytes",
        MIB,
        16 * 1024 * MIB,
        "A store in a bucket puts a snapshot of its records after its log has grown by this size.",
    )
