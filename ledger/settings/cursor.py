"""Settings of cursors that acknowledge out of order: their state, and the rate of its flushes."""

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
        "Ranges that a cursor may have acknowledged beyond its mark-delete position. An acknowledgement above the"
        " limit is refused. 0: no limit. Pulsar keeps 10,000 and silently loses the rest in a crash.",
    )
    managedLedgerMaxUnackedRangesToPersistInMetadataStore: int = whole(
        1_000,
        "ranges",
        0,
        200_000,
        "A cursor with at most this many ranges is kept in its metadata record when the broker closes, and its "
        "own log is deleted.",
    )
    persistentUnackedRangesWithMultipleEntriesEnabled: int = switch(
        1,
        "1: a cursor's state above the next setting is split into chunks with a footer (PIP-381). 0: a larger "
        "state is refused. PIP-381 has 0, for brokers of older versions; a store here has none.",
    )
    persistentUnackedRangesMaxEntrySize: int = whole(
        MIB, "bytes", 1024, 4 * MIB, "Largest entry of a cursor's log; PIP-381's default."
    )
    managedLedgerCursorMaxEntriesPerLedger: int = whole(
        50_000, "entries", 1, INT_MAX, "A cursor's log with this many entries is replaced by a new one."
    )
    managedLedgerCursorRolloverTimeInSeconds: int = whole(
        14_400,
        "seconds",
        0,
        INT_MAX,
        "A cursor's log of this age is replaced at its next flush; 0: never by age.",
    )
    managedLedgerDefaultMarkDeleteRateLimit: int = whole(
        0,
        "flushes per second",
        0,
        1000,
        "Maximum number of flushes a second of out-of-order acknowledgements. 0: each acknowledgement is flushed "
        "before the call returns, and a crash loses none. Otherwise a crash loses the acknowledgements since the "
        "last flush.",
    )
    managedLedgerCursorPositionFlushSeconds: int = whole(
        60,
        "seconds",
        1,
        24 * 3600,
        "With a rate, acknowledgements are flushed at the latest after this time.",
    )
    cursorDeltasPerState: int = whole(
        256,
        "deltas",
        0,
        100_000,
        "Flushes of a cursor that write only the difference, until a whole state is written again; 0: every flush"
        " writes a whole state, as in PIP-381.",
    )
    cursorInfoCompressionType: str = text(
        "name",
        "Compression of a cursor's state: NONE, LZ4, ZLIB, ZSTD or SNAPPY. PIP-381's default is NONE.",
        default="NONE",
    )
