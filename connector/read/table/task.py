"""What a task does with a part of a published table: data files in, record batches out, as the log would give them.

Rule: what the publisher leaves out because it follows from a row's position, its message id, is made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.rows.metadata_columns import message_ids
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.connector.schema import METADATA
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.offload.table.data_file import POSITION
from pyspark_ledger.offload.table.rows import TablePart, positions, read_table_part

_ID = "__messageId"


@dataclass(frozen=True, slots=True)
class TableTask:
    """Task that reads files of a table, of one log. `partition` is the log's number; -1 for a log without one."""

    part: TablePart
    shape: RowShape
    partition: int = -1

    def read(self) -> Iterator[pa.RecordBatch]:
        target = self.shape.schema
        if _ID not in target.names:
            yield from read_table_part(self.part, target)
            return
        read = pa.schema([field for field in target if field.name != _ID])
        if POSITION not in read.names:
            read = read.append(METADATA.field(POSITION))
        for batch in read_table_part(self.part, read):
            ids = _message_ids(batch, self.partition)
            columns = [
                ids if name == _ID else batch.column(batch.schema.get_field_index(name)) for name in target.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def _message_ids(batch: pa.RecordBatch, partition: int) -> pa.Array:
    """The message ids of rows that have their positions, one head for each run of rows of one entry."""
    ledgers, entries = positions(batch)
    new = np.ones(batch.num_rows, dtype=bool)
    new[1:] = (ledgers[1:] != ledgers[:-1]) | (entries[1:] != entries[:-1])
    firsts = np.flatnonzero(new)
    places = [Position(*place) for place in zip(ledgers[firsts].tolist(), entries[firsts].tolist(), strict=True)]
    import pyarrow.compute as pc

    index = pc.struct_field(batch.column(batch.schema.get_field_index(POSITION)), "batchIndex")
    return message_ids(partition, places, np.cumsum(new) - 1, np.asarray(index, dtype=np.int64))
