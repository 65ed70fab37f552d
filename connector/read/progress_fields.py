"""Meaning of each field of a stream's progress report, in the order of `docs/progress.md`.

A test builds a report with every field (`connector.read.progress`) and compares the names.
"""

from __future__ import annotations

from collections.abc import Mapping

LEDGER = "ledgers.<name>"
"""Prefix of the fields of one ledger. `<name>` is its full name, such as `public/default/persistent/orders`."""

PROGRESS_FIELDS: Mapping[str, Mapping[str, str]] = {
    "Batch": {
        "batch.endedBy": "Reason for the end of the batch. `all there was`: the batch contains every row up to the end "
        "of the ledger. `availableNow`: every row up to the ledger's end when the run started. `the end of the read`: "
        "every row up to the end that an option sets. Otherwise: the name of the option that limits a batch.",
        "batch.id": "Id of the batch in log lines: see [logs.md](logs.md).",
        "columnsAdded": "Number of columns that were added after Spark planned the query. Absent without such columns.",
        "columnsNotRead": "Names of the added columns, at most 20. After a restart the query reads these columns.",
        "dataLoss": "The newest 20 lost ranges, each with `ledger`, `cause`, `from`, `to`, `entries`, `rows` and "
        "`bytes`. A count is null if it is unknown. Absent without a loss.",
        "dataLosses": "Number of all lost ranges since the query started.",
        "warnings": "The newest 5 different warnings that the source has logged in this run. Absent without a warning.",
    },
    "Ledgers": {
        f"{LEDGER}.lagEntries": "Entries after the end of the batch.",
        f"{LEDGER}.lagRows": "Rows after the end of the batch.",
        f"{LEDGER}.lagBytes": "Bytes after the end of the batch.",
        f"{LEDGER}.lagMs": "Age of the oldest unread entry, in milliseconds; 0 without an unread entry.",
        f"{LEDGER}.ledger": "End of the log: the segment id, which Pulsar calls ledger id.",
        f"{LEDGER}.entry": "End of the log: the entry number in that segment.",
        f"{LEDGER}.id": "Incarnation of the ledger. It changes if the ledger is deleted and created again.",
        f"{LEDGER}.lastPublishMs": "Time of the last entry, in milliseconds since 1970.",
        "ledgersInAll": "Sums of `lagEntries`, `lagRows` and `lagBytes` over all ledgers, and `ledgers`, the number of "
        "ledgers. Present if the query reads more than 50 ledgers. Then `ledgers.<name>` exists only for the 50 with "
        "the largest lag.",
        "otherLedgers": "On Spark 4.0 and 4.1: segment, entry number, incarnation and `lagRows` of the ledgers with a "
        "lag that `ledgers.<name>` leaves out.",
    },
    "Reads of all readers since the last trigger": {
        "reads.mappedBytes": "Bytes that readers on the broker's host read by memory mapping (mmap).",
        "reads.sentBytes": "Bytes that the broker sent.",
        "reads.directBytes": "Bytes that tasks fetched from a bucket themselves, a part of `reads.objectStorageBytes`.",
        "reads.cacheHitRate": "Share of served entries that needed no read from storage; null if no entry was served.",
        "reads.memoryBytes": "Bytes from the cache's memory.",
        "reads.pageCacheBytes": "Bytes of recently used local files, whose data are in the page cache (the operating "
        "system's memory for files).",
        "reads.localFileBytes": "Bytes of other local files.",
        "reads.objectStorageBytes": "Bytes from object storage.",
    },
    "Cache of the broker, for all readers and ledgers": {
        "cache.hits": "Entries served without a read from storage, since the last trigger.",
        "cache.hitBytes": "Bytes of the entries of `cache.hits`.",
        "cache.misses": "Entries read from storage and served, since the last trigger.",
        "cache.missBytes": "Bytes of the entries of `cache.misses`.",
        "cache.inserted": "Entries inserted since the last trigger.",
        "cache.evicted": "Entries evicted since the last trigger.",
        "cache.evictions": "How often the eviction ran since the last trigger.",
        "cache.evictionMs": "Time that the runs of the eviction took, in milliseconds, since the last trigger.",
        "cache.requeues": "Entries that the eviction policy kept for a later reader, since the last trigger.",
        "cache.sizeBytes": "Memory in use now.",
        "cache.lingeringBytes": "Memory of evicted entries that readers still use; a part of `cache.sizeBytes`.",
        "cache.limitBytes": "Limit of the memory.",
        "cache.inflightReadBytes": "Bytes that are being read from storage.",
        "cache.localFileBytes": "Bytes of recently read or written local files, which are probably in the system's "
        "page cache. They are not in the cache's memory.",
        "cache.localFileLimitBytes": "Limit of `cache.localFileBytes`: the setting "
        "`managedLedgerCacheLocalFilesSizeMB`.",
        "cache.expectedReads": "Number of reads of cached entries that active readers still have to make, updated "
        "once a second.",
        "cache.nonEvictableBytes": "Bytes of the cached entries that active readers still have to read, updated once a "
        "second.",
    },
    "Source": {
        "store": "Directory or address of the store.",
        "storeId": "Id of the store.",
        "subscription": "Name of the subscription. Absent without a subscription, and in `ackMode` = `explicit`.",
        "credentials": "References to the credentials: paths and names of variables, never secrets. Absent without "
        "credentials.",
        "v": "Version of the report, 1.",
    },
}
