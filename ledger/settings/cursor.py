"""Settings of cursors that acknowledge rows out of order: the limits of their state, and how often it is written.

A cursor's *mark-delete position* is an entry: this entry and every earlier entry are acknowledged. The state of a
cursor also has the ranges that are acknowledged after this position.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import INT_MAX, MIB, switch, text, whole


@dataclass(frozen=True)
class CursorSettings:
    """Cursors that acknowledge out of order."""

    managedLedgerMaxUnackedRangesToPersist: int = whole(
        0,
        "ranges",
        0,
        INT_MAX,
        "Maximum number of ranges that a cursor has acknowledged after its mark-delete position. The broker refuses "
        "an acknowledgement above the limit. 0: no limit. Pulsar stores 10,000 ranges, and silently loses all "
        "further ranges in a crash.",
    )
    managedLedgerMaxUnackedRangesToPersistInMetadataStore: int = whole(
        1_000,
        "ranges",
        0,
        200_000,
        "When the broker stops, it writes the state of a cursor with at most this many ranges to the metadata, and "
        "deletes the cursor's own log (the file of its states).",
    )
    persistentUnackedRangesWithMultipleEntriesEnabled: int = switch(
        1,
        "1: a cursor's state above persistentUnackedRangesMaxEntrySize is split into chunks (PIP-381). 0: such a "
        "state is refused. PIP-381 has 0, because older brokers of a Pulsar cluster cannot read chunks. A store here "
        "has one broker.",
    )
    persistentUnackedRangesMaxEntrySize: int = whole(
        MIB, "bytes", 1024, 4 * MIB, "Maximum size of an entry in a cursor's log. PIP-381 has the same default."
    )
    managedLedgerCursorMaxEntriesPerLedger: int = whole(
        50_000, "entries", 1, INT_MAX, "The broker starts a new log for a cursor whose log has this many entries."
    )
    managedLedgerCursorRolloverTimeInSeconds: int = whole(
        14_400,
        "seconds",
        0,
        INT_MAX,
        "The broker starts a new log for a cursor whose log has this age, at the next flush. 0: no log is replaced by "
        "age.",
    )
    managedLedgerDefaultMarkDeleteRateLimit: int = whole(
        0,
        "flushes per second",
        0,
        1000,
        "Maximum number of flushes a second. A flush writes out-of-order acknowledgements to the cursor's log. 0: "
        "each acknowledgement is flushed before the call returns, and a crash loses none. Above 0, a crash loses the "
        "acknowledgements since the last flush, and their rows are delivered again.",
    )
    managedLedgerCursorPositionFlushSeconds: int = whole(
        60,
        "seconds",
        1,
        24 * 3600,
        "If managedLedgerDefaultMarkDeleteRateLimit is above 0: maximum time until an acknowledgement is flushed.",
    )
    cursorDeltasPerState: int = whole(
        256,
        "deltas",
        0,
        100_000,
        "Number of flushes that write only the changes of a cursor's state. The next flush writes the whole state. 0: "
        "every flush writes the whole state, as in PIP-381.",
    )
    cursorInfoCompressionType: str = text(
        "name",
        "Compression of a cursor's state: NONE, LZ4, ZLIB, ZSTD or SNAPPY. PIP-381's default is NONE.",
        default="NONE",
    )
