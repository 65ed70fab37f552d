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
        50_000, "entries", 1, INT_MAX, "A ledger with so many entries is sealed, and the log goes on in a new ledger."
    )
    managedLedgerMaxSizePerLedgerMbytes: int = whole(
        2_048, "MiB", 1, 1024 * 1024, "A ledger of this size is sealed, and the log goes on in a new ledger."
    )
    managedLedgerMaxLedgerRolloverTimeMinutes: int = whole(
        240,
        "minutes",
        0,
        INT_MAX,
        "A ledger of this age is sealed if it holds an entry. Up to a twentieth is added, so that not all ledgers roll "
        "over at once. 0: age alone never seals.",
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = whole(
        0,
        "minutes",
        0,
        INT_MAX,
        "No ledger is sealed before it is older than this, however full. Pulsar's 10 spares its metadata cluster; here "
        "0, because a ledger costs one row of a local file and a full ledger should be ready to offload.",
    )
    defaultRetentionTimeInMinutes: int = whole(
        -1,
        "minutes",
        -1,
        INT_MAX,
        "How long a sealed ledger that every cursor has read is kept. Whichever of time and size is reached first "
        "decides. -1 keeps everything. Pulsar's default, 0 in both, deletes what every cursor has read: here a "
        "notebook's table would vanish.",
    )
    defaultRetentionSizeInMB: int = whole(
        -1,
        "MiB",
        -1,
        INT_MAX,
        "How much of a managed ledger is kept after every cursor has read it; -1 keeps everything.",
    )
    retentionCheckIntervalInSeconds: int = whole(
        120,
        "seconds",
        1,
        24 * 3600,
        "How often the broker looks for ledgers to roll over by age, to trim and to offload.",
    )
    retentionWaitsForOffload: int = switch(
        0,
        "1: where ledgers are offloaded automatically, retention deletes no ledger that is not offloaded yet, however "
        "long object storage cannot be reached.",
    )
    deleteAfterPublish: int = switch(
        0,
        "1: a ledger that every cursor has read is deleted, here and in object storage, once it is in all tables that "
        "its managed ledger is published to.",
    )
    stagingRetentionSeconds: int = whole(
        7 * 24 * 3600,
        "seconds",
        60,
        TEN_YEARS_SECONDS,
        "How long the staged rows of failed task attempts wait for a re-run of their batch.",
    )
    brokerDeduplicationMaxNumberOfProducers: int = whole(
        10_000,
        "producers",
        1,
        1_000_000,
        "Producers whose sequence ids a ledger with de-duplication remembers. Beyond it the producers that were "
        "silent longest are forgotten.",
    )
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = whole(
        360,
        "minutes",
        1,
        TEN_YEARS_SECONDS // 60,
        "A producer that was silent for so long is forgotten when its ledger is sealed: what it sends again is new.",
    )
