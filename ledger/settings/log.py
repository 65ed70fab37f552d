"""Settings of ledgers: block size, rollover, retention, de-duplication and staged parts."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import FOR_NEW_LEDGERS, INT_MAX, MIB, TEN_YEARS_SECONDS, switch, whole


@dataclass(frozen=True)
class LogSettings:
    """Managed ledgers: how a log is cut into segments, and how long segments are kept."""

    ledgerBlockSizeBytes: int = whole(
        64 * MIB,
        "bytes",
        5 * MIB,
        1024 * MIB,
        "Block of a new managed ledger: the part size of its offload and the limit of one entry. S3 takes no part "
        "below 5 MiB. Fixed for a ledger when it is created.",
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
        "A segment of this age is sealed if it holds an entry. Up to a twentieth is added, so that not all "
        "ledgers roll over at once. 0: no rollover by age.",
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = whole(
        0,
        "minutes",
        0,
        INT_MAX,
        "No segment is sealed before this age, even if it is full. Pulsar's 10 spares its metadata cluster. Here "
        "it is 0, because a segment costs one row of a local file and a full segment should be ready to offload.",
    )
    defaultRetentionTimeInMinutes: int = whole(
        -1,
        "minutes",
        -1,
        INT_MAX,
        "Time for which a sealed segment is kept after every cursor has read it. The first limit reached, time or"
        " size, decides. -1 keeps everything. Pulsar's default, 0 in both, deletes what every cursor has read: "
        "here a notebook's table would vanish.",
    )
    defaultRetentionSizeInMB: int = whole(
        -1,
        "MiB",
        -1,
        INT_MAX,
        "Size of a managed ledger that is kept after every cursor has read it; -1 keeps everything.",
    )
    retentionCheckIntervalInSeconds: int = whole(
        120,
        "seconds",
        1,
        24 * 3600,
        "Interval at which the broker rolls over by age, trims and offloads.",
    )
    retentionWaitsForOffload: int = switch(
        0,
        "1: if segments are offloaded automatically, retention deletes only offloaded segments, even if object "
        "storage is unreachable for long.",
    )
    deleteAfterPublish: int = switch(
        0,
        "1: a segment that every cursor has read is deleted, here and in object storage, once it is in all tables"
        " of its managed ledger.",
    )
    stagingRetentionSeconds: int = whole(
        7 * 24 * 3600,
        "seconds",
        60,
        TEN_YEARS_SECONDS,
        "Time for which the staged rows of failed task attempts are kept for a repeated run of their batch.",
    )
    brokerDeduplicationMaxNumberOfProducers: int = whole(
        10_000,
        "producers",
        1,
        1_000_000,
        "Producers whose sequence ids a ledger with de-duplication remembers. Above that, the producers that "
        "sent nothing for the longest time are forgotten.",
    )
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = whole(
        360,
        "minutes",
        1,
        TEN_YEARS_SECONDS // 60,
        "A producer that was silent for this time is forgotten when its segment is sealed. Messages that it sends"
        " again are then new.",
    )
