"""Run: the rows of one batch of one query, in the log completely or not at all.

    entry (txn id)  entry (txn id)  …  entry (txn id)  marker (txn id, closes the run)

Invariants
- Entries and marker carry the run's id in Pulsar's transaction fields (22, 23), set before the checksum was made.
- From the first entry to the marker nothing else is written to that managed ledger. A run never crosses a segment.
- The committed end moves from before the run to after its marker in one step. A run without its marker at the tail of
  a recovered segment was never committed, and recovery cuts it.
- The marker is a Pulsar transaction-commit marker (`marker_type` 21) and has no row. Its properties name the query and
  the batch, so that a repeated commit of the batch is detected and appends nothing.
"""

from __future__ import annotations

import msgspec

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

TXN_COMMIT = 21
MARKER_PRODUCER = "pulsar.txn.marker"
_QUERY, _BATCH, _ENTRIES, _ROWS = (
    "ledger.run.query",
    "ledger.run.batch",
    "ledger.run.entries",
    "ledger.run.rows",
)


class RunId(msgspec.Struct, frozen=True):
    """128 bits that entries and marker of a run share, as Pulsar's two transaction id fields (unsigned)."""

    most: int
    least: int


class RunSummary(msgspec.Struct, frozen=True):
    """Content of a marker about its run."""

    query: str
    batch: int
    entries: int
    rows: int


class CommittedBatch(msgspec.Struct, frozen=True):
    """Newest batch of a query in a managed ledger, and its entries `[first, end)`, marker included."""

    query: str
    batch: int
    first: Position
    end: Position
    entries: int
    rows: int
    committed_ms: int
    once: bool = False  # the query commits nothing else


def run_id(metadata: MessageMetadata) -> RunId | None:
    """Return the run of an entry, None for an entry outside of a run."""
    if not metadata.HasField("txnid_most_bits"):
        return None
    return RunId(metadata.txnid_most_bits, metadata.txnid_least_bits)


def closes_run(metadata: MessageMetadata) -> bool:
    """Return whether an entry is the marker of a run."""
    return metadata.HasField("marker_type") and metadata.marker_type == TXN_COMMIT


def encode_marker(run: RunId, summary: RunSummary, publish_time_ms: int) -> bytes:
    """Return the marker entry that closes a run."""
    metadata = MessageMetadata(
        producer_name=MARKER_PRODUCER,
        sequence_id=summary.batch,
        publish_time=publish_time_ms,
        marker_type=TXN_COMMIT,
        txnid_most_bits=run.most,
        txnid_least_bits=run.least,
    )
    for key, value in (
        (_QUERY, summary.query),
        (_BATCH, str(summary.batch)),
        (_ENTRIES, str(summary.entries)),
        (_ROWS, str(summary.rows)),
    ):
        metadata.properties.add(key=key, value=value)
    return b"".join(encode_entry(metadata))


def marker_summary(metadata: MessageMetadata, where: str) -> RunSummary | None:
    """Return the content of a marker; None for a marker of another writer (a Pulsar broker's has no properties)."""
    said = {pair.key: pair.value for pair in metadata.properties}
    if _QUERY not in said:
        return None
    try:
        return RunSummary(said[_QUERY], int(said[_BATCH]), int(said[_ENTRIES]), int(said[_ROWS]))
    except (KeyError, ValueError) as wrong:
        raise Corrupt(f"the run marker at {where} has properties {sorted(said)}: {wrong}") from wrong
