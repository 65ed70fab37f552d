"""Run: the entries that one batch of a Spark query appends to a ledger. Readers see all of them or none.

A *segment* is one file of a ledger. A *staged part* is a file with the rows of one Spark task, before their commit.

    entry (txn id)  entry (txn id)  …  entry (txn id)  marker (txn id, closes the run)

Invariants
- Entries and marker have the run's id in Pulsar's transaction fields (22, 23). The checksum covers these fields.
- From the first entry to the marker nothing else is written to the ledger. A run is in one segment. Exception: if the
  staged parts of a run become segments, each segment has its own marker. One change of the metadata adds all of them.
- Readers read up to the committed end of the log, which moves from before the run to after its marker in one step.
- A run without its marker at the tail of a recovered segment was never committed, and recovery removes the run.
- The marker is a Pulsar transaction-commit marker (`marker_type` 21) and has no row. Its properties name the query and
  the batch, so that a repeated commit of the batch is detected and appends nothing.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

TXN_COMMIT = 21
NAMED_WRITE = "txn:"
"""Start of the query's name of a write with `txnAppId`."""
MARKER_PRODUCER = "pulsar.txn.marker"
_QUERY, _BATCH, _ENTRIES, _ROWS = (
    "ledger.run.query",
    "ledger.run.batch",
    "ledger.run.entries",
    "ledger.run.rows",
)
_OFFSETS, _SUMS, _NUMBERING = "ledger.run.offsets", "ledger.run.sums", "ledger.run.numbering"


class RunId(msgspec.Struct, frozen=True):
    """Id of a run in 128 bits, split between Pulsar's two transaction id fields (unsigned)."""

    most: int
    least: int


def query_run(query: str, batch: int) -> RunId:
    """Return the id of the run for a batch of a query: a hash of the query, and the number of the batch."""
    return RunId(int.from_bytes(hashlib.blake2b(query.encode(), digest_size=8).digest(), "big"), batch)


class RunOrigin(msgspec.Struct, frozen=True):
    """Evidence of what a batch has read. `ledger.log.segments.repeated_batches` compares the evidence of two batches.

    `offsets` is a digest of the sources' offsets in Spark's checkpoint. `sums` are sums over the rows. Each is empty if
    it is unknown. `numbering` is 1, and rises when the query starts to count its batches from a lower number. It is 0
    if an earlier version, which recorded no origin, has written the run.
    """

    offsets: str = ""
    sums: str = ""
    numbering: int = 0


class RunSummary(msgspec.Struct, frozen=True):
    """Properties of a marker: the query, the batch, the number of entries and rows in its run, the batch's origin."""

    query: str
    batch: int
    entries: int
    rows: int
    origin: RunOrigin = RunOrigin()


class CommittedBatch(msgspec.Struct, frozen=True):
    """Newest batch of a query in a ledger, with its entries `[first, end)`, marker included."""

    query: str
    batch: int
    first: Position
    end: Position
    entries: int
    rows: int
    committed_ms: int
    once: bool = False  # the query has only this batch: a batch write
    origin: RunOrigin = RunOrigin()

    @property
    def is_of_stream(self) -> bool:
        """Whether the batch is of a streaming query. The name of a named write contains the ledger's incarnation."""
        return not self.once and not self.query.startswith(NAMED_WRITE)


class RecordedBatch(Protocol):
    """Newest committed batch of a query, in one ledger or in several."""

    @property
    def batch(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def origin(self) -> RunOrigin: ...


def is_written(batch: int, origin: RunOrigin, newest: RecordedBatch | None) -> bool:
    """Return whether a batch is committed: the newest batch of its query is this batch, or a later batch."""
    return newest is not None and (origin.numbering, batch) <= (newest.origin.numbering, newest.batch)


def run_id(metadata: MessageMetadata) -> RunId | None:
    """Return the id of the run that an entry belongs to, None for an entry outside of a run."""
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
    origin = summary.origin
    for key, value in (
        (_QUERY, summary.query),
        (_BATCH, str(summary.batch)),
        (_ENTRIES, str(summary.entries)),
        (_ROWS, str(summary.rows)),
    ):
        metadata.properties.add(key=key, value=value)
    for key, value in (
        (_OFFSETS, origin.offsets),
        (_SUMS, origin.sums),
        (_NUMBERING, str(origin.numbering or "")),
    ):
        if value:
            metadata.properties.add(key=key, value=value)
    return b"".join(encode_entry(metadata))


def marker_summary(metadata: MessageMetadata, where: str) -> RunSummary | None:
    """Return the properties of a marker. Returns None for a Pulsar broker's marker, which has no properties."""
    properties = {pair.key: pair.value for pair in metadata.properties}
    if _QUERY not in properties:
        return None
    try:
        return RunSummary(
            properties[_QUERY],
            int(properties[_BATCH]),
            int(properties[_ENTRIES]),
            int(properties[_ROWS]),
            RunOrigin(properties.get(_OFFSETS, ""), properties.get(_SUMS, ""), int(properties.get(_NUMBERING, "0"))),
        )
    except (KeyError, ValueError) as wrong:
        raise Corrupt(f"the run marker at {where} has properties {sorted(properties)}: {wrong}") from wrong
