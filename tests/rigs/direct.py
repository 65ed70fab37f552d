"""Data objects of direct segments, made by hand: the bytes that a task of a sink puts before its commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.log.staging.promotion import PromotedSegment
from pyspark_ledger.ledger.message.entry import ARROW_PROPERTY, WIDE_STAMP_BYTES, BrokerStamp, provisional_stamp
from pyspark_ledger.ledger.message.run_marker import CommittedBatch
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import KeyValue
from pyspark_ledger.ledger.protocol.commits import StagingPlace
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps, direct_index
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.direct_objects import direct_metadata
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.entry import entry
from tests.rigs.promotion import part_run

STAGED_MS = 1_600_000_000_000
"""Time of the provisional stamps. No reader may see it."""


class DirectPart(NamedTuple):
    """Bytes of a data object, and what its task reports: length and rows of each entry, with the marker at the end."""

    data: bytes
    entry_bytes: Integers
    rows: Integers


def arrow_entry(payload: bytes, rows: int, run: int) -> bytes:
    """Return an entry whose metadata state `rows` rows, as of an Arrow entry. Its payload is any text."""
    return entry(payload, run=run, properties=[KeyValue(key=ARROW_PROPERTY, value=str(rows))])


def direct_part(
    scratch: Path, batch: int, payloads: Sequence[bytes], block_bytes: int, *, rows: int = 1, query: str = "q"
) -> DirectPart:
    """Return the part of a task whose entries have these payloads, and `rows` rows each."""
    path = scratch / f"{query}-{batch}-{len(list(scratch.glob('*.made')))}.made"
    path.touch()
    with PartWriter.to_file(StagingPlace("part", str(path), 0), part_run(batch, query, block_bytes)) as part:
        for value in payloads:
            part.write([arrow_entry(value, rows, batch)], rows)
        part.close()
    data = bytearray(path.read_bytes())
    sizes = []
    for frame in list(walk_segment(bytes(data), 0, where=str(path))):
        start = frame.offset + FRAME_BYTES
        data[start : start + WIDE_STAMP_BYTES] = provisional_stamp(STAGED_MS)
        sizes.append(len(frame.entry) - WIDE_STAMP_BYTES)
    return DirectPart(bytes(data), np.array(sizes), np.array([rows] * len(payloads) + [0]))


def commit_direct(
    store: Store, offloader: ObjectStoreOffloader, batch: int, parts: Sequence[DirectPart], name: str = "log"
) -> list[int]:
    """Put the objects of parts and list them as segments, as a commit does. Return the ids of the segments.

    The index objects are not put.
    """
    log = store.ledger(name)
    writer, records = log._writer, store.metadata
    objects, extra = offloader.store, extra_metadata(records, log.name)

    def change() -> list[int]:
        if writer.opened is not None:
            writer.seal()
        block_bytes = writer.list.policy.block_bytes
        time_ms, row_end = max(writer._stamp.timestamp_ms, store._clock()), writer._stamp.row_end
        segments, first_row = [], row_end
        for ledger_id, part in zip(records.allocate_ledger_ids(len(parts)), parts, strict=True):
            key = ObjectKey(uuid.uuid4(), ledger_id)
            objects.put(key.data_name, part.data, direct_metadata(extra, store.epoch))
            layout = direct_index(ledger_id, RealStamps(time_ms, row_end), block_bytes, part.entry_bytes, part.rows)
            assert layout.file_bytes == len(part.data)
            attempt = OffloadAttempt.direct(key.attempt, offloader.driver, time_ms)
            segments.append(PromotedSegment(layout.index, block_bytes, layout.file_bytes, attempt))
            row_end = layout.index.row_end
        first, last = segments[0].index, segments[-1].index
        entries = sum(segment.index.count - 1 for segment in segments)
        places = Position(first.ledger_id, 0), Position(last.ledger_id, last.count)
        writer.list.add(
            segments, CommittedBatch("q", batch, *places, entries, row_end - first_row, time_ms, once=False)
        )
        writer._stamp = BrokerStamp(time_ms, row_end)
        writer.publish(writer.opened)
        return [segment.index.ledger_id for segment in segments]

    return log._change(change)
