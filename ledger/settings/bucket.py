"""Settings of a store in a bucket.

The log of such a store is a sequence of objects in the bucket, the *log objects*. To *put* an object is to write it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import whole


@dataclass(frozen=True)
class BucketSettings:
    """Store in a bucket: writes of its log, take-over, and snapshots."""

    bucketFlushIntervalMs: int = whole(
        100,
        "milliseconds",
        20,
        1_000,
        "Time for which entries and records are collected before they are put as one object of the log. An entry is "
        "put at once if no other client appends.",
        user="operators who want fewer requests, or shorter acknowledgements",
    )
    bucketTakeoverMs: int = whole(
        30_000,
        "milliseconds",
        1_000,
        3_600_000,
        "Another host may take over the store if the broker does not answer and puts no log object for this time.",
        user="operators who want a faster take-over, or have long pauses",
    )
    bucketCacheBytes: int = whole(
        0,
        "bytes",
        0,
        1 << 60,
        "Maximum size of the segments in the local directory. 0, and any greater value, means 8/10 of the space that "
        "they use and that is free on the disk. Above 8/10 of the maximum, local copies of uploaded segments are "
        "deleted. Above the maximum, appends wait for uploads.",
        user="operators of a disk that other programs share",
    )
