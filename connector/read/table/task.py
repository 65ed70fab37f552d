"""Tasks that read files of a published table, as record batches with the same rows as the ledger.

A table has no message ids. The task computes the message id of a row from the row's position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, message_ids
from pyspark_ledger.offload.table.data_file import POSITION
from pyspark_ledger.offload.table.rows import TablePart, positions, read_table_part

_ID = "__messageId"


@dataclass(frozen=True, slots=True)
class TableTask:
    """Task that reads files of one ledger in a table. `partition` is the ledger's partition; -1 for none."""

    part: TablePart
    shape: RowShape
    partition: int = -1

    def read(self) -> Iterator[pa.RecordBatch]:
        target = self.shape.schema
        if _ID not in target.names:
            yield from read_table_part(self.part, target)
            return
        stored = pa.schema([field for field in target if field.name != _ID])
        if POSITION not in stored.names:
            stored = stored.append(METADATA.field(POSITION))
        for batch in read_table_part(self.part, stored):
            ids = _message_ids(batch, self.partition)
            columns = [
                ids if name == _ID else batch.column(batch.schema.get_field_index(name)) for name in target.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def _message_ids(batch: pa.RecordBatch, partition: int) -> pa.Array:
    """Return the message ids of rows from their positions. Rows of one entry share the encoded segment and entry id."""
    ledgers, entries = positions(batch)
    new = np.ones(batch.num_rows, dtype=bool)
    new[1:] = (ledgers[1:] != ledgers[:-1]) | (entries[1:] != entries[:-1])
    firsts = np.flatnonzero(new)
    places = [Position(*place) for place in zip(ledgers[firsts].tolist(), entries[firsts].tolist(), strict=True)]
    import pyarrow.compute as pc

    index = pc.struct_field(batch.column(batch.schema.get_field_index(POSITION)), "batchIndex")
    return message_ids(partition, places, np.cumsum(new) - 1, np.asarray(index, dtype=np.int64))
