"""Staged parts in segment layout, and the rows that a store has after their commit."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.ledger.protocol.commits import BatchOrigin, CommitRun, PartRun, StagedPart
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from tests.rigs.entry import entry

BLOCK_BYTES = 256 * 1024
LARGE = 64 * 1024
"""Bytes of a payload. A part of such entries is large enough to become a segment."""


def payload(name: str, size: int = LARGE) -> bytes:
    return name.encode() + b"." * max(size - len(name), 0)


def part_run(batch: int, query: str = "q", block_bytes: int = BLOCK_BYTES) -> PartRun:
    return PartRun(query, batch, 7, batch, block_bytes, 1)


def stage(store: Store, batch: int, payloads: Sequence[bytes], query: str = "q") -> StagedPart:
    """Stage a part in segment layout. Its entries belong to run `batch`."""
    with PartWriter.to_file(store.commits.open_part(query, batch), part_run(batch, query)) as part:
        for value in payloads:
            part.write([entry(value, run=batch)], 1)
        return part.close()


def equal_offsets(batch: int) -> BatchOrigin:
    """Return the evidence of a batch of one history: each number always has the same offsets."""
    return BatchOrigin(dict.fromkeys(range(batch + 1), "same"))


def request(batch: int, parts: list[StagedPart], ledger: str = "log") -> CommitRun:
    return CommitRun(ledger, "q", batch, 7, batch, parts, origin=equal_offsets(batch))
