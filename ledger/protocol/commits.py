"""Messages about staged parts and runs. The rules of `ledger.protocol.actions` hold here too.

A task of a query writes a staged part, a file that no reader sees. A commit appends the parts of a batch to a ledger as
one run: entries with a common transaction id, closed by a marker (`ledger.message.run_marker`).
"""

from __future__ import annotations

import msgspec

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import Int64, Uint64


class OpenStaging(msgspec.Struct, frozen=True):
    """Request for a new file in the store for a part of a run, by a client that proved to be on the same host."""

    query: Name
    batch: Int64
    token: Name


class StagingPlace(msgspec.Struct, frozen=True):
    """File to write frames to (created empty by the broker), and the part's name in the store."""

    part: str
    path: str


class StagedPart(msgspec.Struct, frozen=True):
    """Staged part as its writer describes it: frames numbered from 0; `crc32c` is over all bytes of the file."""

    part: Name
    entries: Int64
    rows: Int64
    length: Int64
    crc32c: Int64


class CommitRun(msgspec.Struct, frozen=True):
    """Request to append the staged parts as one run, closed by a marker, exactly once per (ledger, query, batch).

    `txn_most` and `txn_least` are the run's transaction id, as in its entries. `once`: the query commits nothing else,
    so the broker may forget the query when its parts expire.
    """

    ledger: Name
    query: Name
    batch: Int64
    txn_most: Uint64
    txn_least: Uint64
    parts: list[StagedPart]
    once: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a wrong field, which a decoder reports."""
        if max(self.txn_most, self.txn_least) >= 2**64:
            raise ValueError("each half of a run's id has 64 bits")


class LedgerParts(msgspec.Struct, frozen=True):
    """Staged parts of one ledger, in order."""

    ledger: Name
    parts: list[StagedPart]


class CommitRuns(msgspec.Struct, frozen=True):
    """Request to commit a batch of a query to several ledgers, exactly once. The first commit determines the routing.

    `once`: the query commits nothing else, as in `CommitRun`.
    """

    query: Name
    batch: Int64
    txn_most: Uint64
    txn_least: Uint64
    runs: list[LedgerParts]
    once: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a wrong field, which a decoder reports."""
        if max(self.txn_most, self.txn_least) >= 2**64:
            raise ValueError("each half of a run's id has 64 bits")


class CommittedRun(msgspec.Struct, frozen=True):
    """Run in the log. `repeated`: an earlier call appended the run."""

    repeated: bool
    first: Position
    end: Position
    entries: int
    rows: int


class CommittedRuns(msgspec.Struct, frozen=True):
    """Runs of a batch, by the canonical names of their ledgers. `repeated`: this call changed nothing.

    `runs` is empty for a batch before the newest one. Reason: only the newest batch has a record of its ledgers.
    """

    repeated: bool
    runs: dict[str, CommittedRun]


class AskNewestBatch(msgspec.Struct, frozen=True):
    """Request for the newest batch of a query in one ledger, of this `incarnation`; with `several`, over all
    ledgers.
    """

    name: Name
    query: Name
    incarnation: Name = ""
    several: bool = False


class NewestBatch(msgspec.Struct, frozen=True):
    """Newest batch that is in all of its ledgers; -1: none is."""

    batch: int


class AbortRun(msgspec.Struct, frozen=True):
    """Request to delete staged parts. Missing parts are ignored."""

    query: Name
    batch: Int64
    parts: list[Name]
