"""More columns beside the rows, for a read from a bucket: who wrote a message, as which, when and where in the topic.

Rules: what an entry says once is made once and spread over its rows. The index counts the messages of a topic, where
the broker stamped entries with it; null where it did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connector.metadata_columns import MILLISECONDS_MAX, Columns
from ledger.entry import arrow_rows
from ledger.wire_numbers import signed

if TYPE_CHECKING:
    from ledger.entry import ParsedEntry
    from ledger.pulsar_columns import MessageColumns

PROVENANCE = pa.schema(
    [
        pa.field("__producer", pa.string()),
        pa.field("__sequenceId", pa.int64()),
        pa.field("__orderingKey", pa.binary()),
        pa.field("__schemaVersion", pa.binary()),
        pa.field("__brokerPublishTime", pa.timestamp("us", tz="UTC")),
        pa.field("__index", pa.int64()),
    ]
)
_TIME = PROVENANCE.field("__brokerPublishTime").type


def provenance_of_batches(said: MessageColumns, entries: Sequence[ParsedEntry]) -> Columns:
    """How to make each column for messages; message `i` is of `entries[said.owner[i]]`."""
    owner = said.owner

    def index() -> pa.Array:
        counts = np.fromiter((_messages(entry) for entry in entries), np.int64, len(entries))[owner]
        ends = np.fromiter((_row_end(entry) for entry in entries), np.int64, len(entries))[owner]
        return pa.array(ends - counts + np.maximum(said.batch_index, 0), pa.int64(), mask=ends < counts)

    return {
        "__producer": lambda: _spread([entry.metadata.producer_name for entry in entries], pa.string(), owner),
        "__sequenceId": lambda: pa.array(said.sequence_ids),
        "__orderingKey": lambda: said.ordering_keys,
        "__schemaVersion": lambda: _spread([_version(entry) for entry in entries], pa.binary(), owner),
        "__brokerPublishTime": lambda: _spread([_stored(entry) for entry in entries], pa.int64(), owner).cast(_TIME),
        "__index": index,
    }


def provenance_of_entry(entry: ParsedEntry, first_row: int, rows: int) -> Columns:
    """How to make each column for rows `[first_row, first_row + rows)` of one Arrow entry."""
    metadata = entry.metadata

    def index() -> pa.Array:
        end = _row_end(entry)
        numbers = np.arange(first_row, first_row + rows, dtype=np.int64)
        return pa.array(end - _messages(entry) + numbers, pa.int64()) if end else pa.nulls(rows, pa.int64())

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), rows)

    return {
        "__producer": lambda: same(metadata.producer_name, pa.string()),
        "__sequenceId": lambda: same(signed(metadata.sequence_id), pa.int64()),
        "__orderingKey": lambda: same(
            metadata.ordering_key if metadata.HasField("ordering_key") else None, pa.binary()
        ),
        "__schemaVersion": lambda: same(_version(entry), pa.binary()),
        "__brokerPublishTime": lambda: same(_stored(entry), pa.int64()).cast(_TIME),
        "__index": index,
    }


def _spread(values: Sequence[object], kind: pa.DataType, owner: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(values, kind).take(pa.array(owner))


def _version(entry: ParsedEntry) -> bytes | None:
    return entry.metadata.schema_version if entry.metadata.HasField("schema_version") else None


def _stored(entry: ParsedEntry) -> int | None:
    """Microseconds since 1970. A stamp is outside of the checksum: any number may stand there."""
    stated = entry.stamp.timestamp_ms if entry.stamp else 0
    return stated * 1000 if 0 < stated <= MILLISECONDS_MAX else None


def _row_end(entry: ParsedEntry) -> int:
    return min(entry.stamp.row_end, 2**63 - 1) if entry.stamp else 0


def _messages(entry: ParsedEntry) -> int:
    """What an entry counts for in the index."""
    metadata = entry.metadata
    stated = arrow_rows(metadata)
    if stated is not None:
        return stated
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
