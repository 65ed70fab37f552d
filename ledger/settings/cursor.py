"""The settings of cursors that acknowledge out of order: a part of `ledger.settings.broker`, whose rules they
follow.
"""

from __future__ import annotations

from pyspark_ledger.ledger.settings.setting import Setting, TextSetting

_MB = 1024 * 1024
_SECONDS_MAX = 2**31 - 1

CURSOR_SETTINGS: dict[str, Setting] = {
    "managedLedgerMaxUnackedRangesToPersist": Setting(
        "ranges",
        0,
        2**31 - 1,
        "Ranges that a cursor may have acknowledged beyond its mark-delete; one that would have more is refused. "
        "0: no limit. Pulsar keeps 10,000 and loses the rest in a crash without a word.",
    ),
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": Setting(
        "ranges",
        0,
        200_000,
        "A cursor with no more of them is kept in its metadata record when the broker closes, and its ledger goes.",
    ),
    "persistentUnackedRangesWithMultipleEntriesEnabled": Setting(
        "0 or 1",
        0,
        1,
        "1: the state of a cursor that is larger than the next setting is cut into chunks with a footer (PIP-381). "
        "0: one that is larger is refused. PIP-381 has 0, for brokers of older versions; a store here has none.",
    ),
    "persistentUnackedRangesMaxEntrySize": Setting(
        "bytes", 1024, 4 * _MB, "The largest entry of a cursor's ledger; PIP-381's default."
    ),
    "managedLedgerCursorMaxEntriesPerLedger": Setting(
        "entries", 1, 2**31 - 1, "A cursor's ledger with so many entries is replaced by a new one."
    ),
    "managedLedgerCursorRolloverTimeInSeconds": Setting(
        "seconds", 0, _SECONDS_MAX, "A cursor's ledger of this age is replaced at its next flush; 0: age never does."
    ),
    "managedLedgerDefaultMarkDeleteRateLimit": Setting(
        "flushes per second",
        0,
        1000,
        "How often what a cursor acknowledges out of order is flushed at most. 0: before each is answered, and nothing "
        "is lost in a crash. Otherwise a crash gives back what was acknowledged since the last flush.",
    ),
    "managedLedgerCursorPositionFlushSeconds": Setting(
        "seconds",
        1,
        24 * 3600,
        "With a rate, whatever is not flushed yet is flushed after this time: the longest that a crash can give back.",
    ),
    "cursorDeltasPerState": Setting(
        "deltas",
        0,
        100_000,
        "Flushes of a cursor that write only what was added, until a whole state is written again; 0: every flush "
        "writes a whole state, as in PIP-381.",
    ),
}

CURSOR_TEXT_SETTINGS: dict[str, TextSetting] = {
    "cursorInfoCompressionType": TextSetting(
        "name",
        "How the state of a cursor is compressed: NONE, LZ4, ZLIB, ZSTD or SNAPPY. PIP-381's default is NONE.",
    ),
}
