"""Description of a sealed segment, a file of a ledger, for an offload and a verification.

The values come from the records in the store's metadata, so the ledger need not be open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.names import pulsar_path
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloaded_schemas import schemas_to_offload
from pyspark_ledger.ledger.tiering.offloader import LocalSegment


def recorded_segment(
    records: Metadata, name: str, row: SegmentRecord, path: Path, index: Callable[[], EntryIndex]
) -> LocalSegment:
    """Return the segment of a record. `path` is the place of its data."""
    listed = row.listed()
    return LocalSegment(
        name,
        row.ledger_id,
        listed.entries,
        listed.size,
        row.file_bytes,
        row.block_bytes,
        row.created_ms,
        path,
        index,
        schemas_to_offload(records, name),
        DirectSegment.of(row),
    )


def extra_metadata(records: Metadata, name: str) -> dict[str, str]:
    """Return the values that an offload writes to the objects of a managed ledger's segments."""
    return {
        "ManagedLedgerName": pulsar_path(name),
        "pulsarClusterName": records.store_record().store_id,
        "LedgerIncarnation": records.ledger(name).incarnation,
    }
