"""Settings of ledgers: block size, rollover, retention, de-duplication and staged parts.

A *segment* is one file of a ledger. A *block* is a part of a segment with whole entries. A *staged part* is a file with
the rows of one Spark task, before their commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import FOR_NEW_LEDGERS, INT_MAX, MIB, TEN_YEARS_SECONDS, switch, whole


@dataclass(frozen=True)
class LogSettings:
    """Managed ledgers: sizes of segments, retention, staged parts and de-duplication."""

    ledgerBlockSizeBytes: int = whole(
        64 * MIB,
        "bytes",
        5 * MIB,
        1024 * MIB,
        "Block size of a new managed ledger. A block is one part of an upload to object storage, and contains whole "
        "entries. It therefore also limits the size of one entry. The minimum is 5 MiB, because S3 refuses smaller "
        "parts. The block size of a ledger never changes.",
        FOR_NEW_LEDGERS,
    )
    managedLedgerMaxEntriesPerLedger: int = whole(
        50_000,
        "entries",
        1,
        INT_MAX,
        "A segment with this many entries is sealed, and the log continues in a new segment.",
    )
    managedLedgerMaxSizePerLedgerMbytes: int = whole(
        2_048, "MiB", 1, 1024 * 1024, "A segment of this size is sealed, and the log continues in a new segment."
    )
    managedLedgerMaxLedgerRolloverTimeMinutes: int = whole(
        240,
        "minutes",
        0,
        INT_MAX,
        "A segment of this age is sealed if it has an entry. The broker adds up to a twentieth to the age, so that "
        "not all ledgers roll over at once. 0: no segment is sealed by age.",
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = whole(
        0,
        "minutes",
        0,
        INT_MAX,
        "No segment is sealed before this age, even if it is full. Pulsar's default is 10, which saves writes to its "
        "metadata cluster. The default here is 0: a segment costs one row of a local database, and only a sealed "
        "segment can be offloaded.",
    )
    defaultRetentionTimeInMinutes: int = whole(
        -1,
        "minutes",
        -1,
        INT_MAX,
        "Time for which a sealed segment is kept after it was sealed, even if every cursor has read it. A segment is "
        "deleted when this limit or defaultRetentionSizeInMB allows it. -1: no segment is deleted by age. Pulsar's "
        "default is 0 for both limits, so it deletes what every cursor has read. With that default, the rows of a "
        "batch job would be deleted, because no cursor protects them.",
    )
    defaultRetentionSizeInMB: int = whole(
        -1,
        "MiB",
        -1,
        INT_MAX,
        "A segment that every cursor has read is deleted if all later segments of its ledger together have at least "
        "this size. -1: no segment is deleted by size.",
    )
    retentionCheckIntervalInSeconds: int = whole(
        120,
        "seconds",
        1,
        24 * 3600,
        "Interval at which the broker seals segments by age, deletes segments by retention, and starts due offloads.",
    )
    retentionWaitsForOffload: int = switch(
        0,
        "1: retention deletes only offloaded segments, if the ledger offloads segments automatically. It therefore "
        "deletes nothing while object storage is unreachable.",
    )
    deleteAfterPublish: int = switch(
        0,
        "1: a segment that every cursor has read is deleted when it is published to all Delta tables of its ledger. "
        "The broker deletes both the local copy and the copy in object storage.",
    )
    stagingRetentionSeconds: int = whole(
        7 * 24 * 3600,
        "seconds",
        60,
        TEN_YEARS_SECONDS,
        "Time for which the broker keeps staged rows that were not committed, in case Spark repeats their batch.",
    )
    stagedPartPromotionMinBytes: int = whole(
        32 * MIB,
        "bytes",
        -1,
        INT_MAX,
        "A staged part of at least this size becomes a segment of its ledger when its batch is committed. Smaller "
        "parts are copied into the open segment. -1: every part is copied. If the store is in a bucket, the task puts "
        "a part of this size into the bucket itself.",
    )
    brokerDeduplicationMaxNumberOfProducers: int = whole(
        10_000,
        "producers",
        1,
        1_000_000,
        "Maximum number of producers whose sequence ids a ledger with de-duplication remembers. Above the limit the "
        "broker forgets the producers that have been silent for the longest time.",
    )
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = whole(
        360,
        "minutes",
        1,
        TEN_YEARS_SECONDS // 60,
        "When the broker seals the open segment, it forgets each producer that was silent for this time. If such a "
        "producer then repeats a message, the ledger stores the message twice.",
    )
