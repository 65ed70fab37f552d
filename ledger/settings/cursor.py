"""Settings of cursors that acknowledge rows out of order: the limits of their state, and how often it is written.

A cursor's *mark-delete position* is an entry: this entry and every earlier entry are acknowledged. The state of a
cursor also has the ranges that are acknowledged after this position.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import INT_MAX, MIB, text, whole


@dataclass(frozen=True)
class CursorSettings:
    """Cursors that acknowledge out of order."""

    managedLedgerMaxUnackedRangesToPersist: int = whole(
        0,
        "ranges",
        0,
        INT_MAX,
        "Maximum number of ranges that a cursor has acknowledged after its mark-delete position. The broker refuses "
        "an acknowledgement above the limit. 0: no limit. Pulsar loses ranges above 10,000 in a crash.",
        user="operators who limit the broker's memory for one cursor",
    )
    persistentUnackedRangesMaxEntrySize: int = whole(
        MIB,
        "bytes",
        1024,
        4 * MIB,
        "Maximum size of an entry in a cursor's log. PIP-381 has the same default.",
        user="operators who keep PIP-381's value from Pulsar",
    )
    managedLedgerDefaultMarkDeleteRateLimit: int = whole(
        0,
        "flushes per second",
        0,
        1000,
        "Maximum number of writes of out-of-order acknowledgements a second. 0: each is written before the call "
        "returns, and a crash loses none. Above 0, the rows acknowledged since the last write are delivered again "
        "after a crash.",
        user="readers with thousands of acknowledgements a second, who may get rows again",
    )
    cursorInfoCompressionType: str = text(
        "name",
        "Compression of a cursor's state: NONE, LZ4, ZLIB, ZSTD or SNAPPY. PIP-381's default is NONE.",
        default="NONE",
        user="readers with large states on a small disk or in a bucket",
    )
