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
        "Block size of a new ledger, which never changes. It limits the size of one entry. S3 refuses parts below 5 "
        "MiB.",
        FOR_NEW_LEDGERS,
        user="writers of entries above 64 MiB",
    )
    managedLedgerMaxEntriesPerLedger: int = whole(
        50_000,
        "entries",
        1,
        INT_MAX,
        "A segment with this many entries is sealed, and the log continues in a new segment.",
        user="writers of many small entries, who want fewer segments",
    )
    managedLedgerMaxSizePerLedgerMbytes: int = whole(
        2_048,
        "MiB",
        1,
        1024 * 1024,
        "A segment of this size is sealed, and the log continues in a new segment.",
        user="operators of a small disk, who want segments deleted sooner",
    )
    managedLedgerMaxLedgerRolloverTimeMinutes: int = whole(
        240,
        "minutes",
        0,
        INT_MAX,
        "A segment of this age, plus up to a twentieth of it, is sealed if it has an entry. 0: no segment is sealed "
        "by age.",
        user="operators who want slow ledgers offloaded or published sooner",
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = whole(
        0,
        "minutes",
        0,
        INT_MAX,
        "No segment is sealed before this age, even if it is full. Pulsar's default is 10, which saves writes to its "
        "metadata.",
        user="operators who keep Pulsar's minimum age",
    )
    defaultRetentionTimeInMinutes: int = whole(
        -1,
        "minutes",
        -1,
        INT_MAX,
        "Time for which a segment is kept after it was sealed, even if every cursor has read it. A segment is deleted "
        "when this limit or defaultRetentionSizeInMB allows it. -1: no segment is deleted by age. With Pulsar's "
        "default, 0 for both, the rows of a batch job would be deleted, because no cursor protects them.",
        user="operators whose disk or law limits the age of rows",
    )
    defaultRetentionSizeInMB: int = whole(
        -1,
        "MiB",
        -1,
        INT_MAX,
        "A segment that every cursor has read is deleted if all later segments of its ledger together have at least "
        "this size. -1: no segment is deleted by size.",
        user="operators whose disk limits the size of ledgers",
    )
    retentionWaitsForOffload: int = switch(
        0,
        "1: if the ledger offloads automatically, retention deletes only offloaded segments.",
        user="owners of rows that object storage must have before deletion",
    )
    deleteAfterPublish: int = switch(
        0,
        "1: a segment that every cursor has read is deleted, also in object storage, when it is published to all "
        "Delta tables of its ledger.",
        user="publishers whose history is in Delta",
    )
    stagingRetentionSeconds: int = whole(
        7 * 24 * 3600,
        "seconds",
        60,
        TEN_YEARS_SECONDS,
        "Time for which the broker keeps staged rows that were not committed, in case Spark repeats their batch.",
        user="operators of a small disk with many failing batches",
    )
    stagedPartPromotionMinBytes: int = whole(
        32 * MIB,
        "bytes",
        -1,
        INT_MAX,
        "A staged part of at least this size becomes a segment when its batch is committed. Smaller parts are copied "
        "into the open segment. -1: every part is copied. For a store in a bucket, the task puts a part of this size "
        "into the bucket itself.",
        user="writers of large batches on a disk that copies slowly",
    )
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = whole(
        360,
        "minutes",
        1,
        TEN_YEARS_SECONDS // 60,
        "At a rollover, the broker forgets each producer that was silent for this time. A message that such a "
        "producer repeats is stored twice.",
        user="operators of producers that pause for more than six hours",
    )
