"""Special columns of a written row: its ledger, and its metadata for readers.

    __ledger             string                the ledger of this row; null means the ledger that the write names
    __key                string                the row's key, which also selects the partition
    __eventTime          timestamp             the row's event time
    __messageProperties  map<string,string>    the row's properties

Rules
- None of these columns is a column of the ledger. An entry stores the last three of them, after the ledger's columns. A
  read with `includeMetadata` returns these three as they were written. Other reads ignore them.
- The rows of a batch are grouped by ledger with a stable sort, so rows of one ledger keep the task's order.
- No Python code runs for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.cast_hint import cast_hint
from pyspark_ledger.connector.schema import nullable_type, spark_schema
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.partition_routing import grouped
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, WRITABLE_METADATA

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LEDGER = "__ledger"
# Special columns that an entry stores, in this order, after the columns of its ledger.
KEPT = pa.schema([METADATA.field(name) for name in WRITABLE_METADATA])
ADDRESS = pa.schema([pa.field(LEDGER, pa.string()), *KEPT])


def own_columns(schema: StructType) -> StructType:
    """Return the columns without special columns. Raises Refused if a special column has the wrong type."""
    from pyspark.sql.types import StructType

    wanted = {field.name: field.dataType for field in spark_schema(ADDRESS, "")}
    for field in schema:
        kind = wanted.get(field.name)
        if kind is not None and field.dataType.simpleString() != kind.simpleString():
            cast = cast_hint(field.name, nullable_type(field.dataType), kind)
            raise Refused(
                f"column {field.name!r} is {field.dataType.simpleString()}, but this special column must be "
                f"{kind.simpleString()}",
                hint=f"{cast or 'Convert it'}; or rename the column if it is an ordinary column",
            )
    return StructType([field for field in schema if field.name not in wanted])


def kept_columns(names: list[str]) -> list[pa.Field]:
    return [field for field in KEPT if field.name in names]


def by_ledger(rows: pa.RecordBatch, default: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each ledger with its name. A row without a name belongs to ledger `default`."""
    if LEDGER not in rows.schema.names:
        yield default, rows
        return
    named = rows.column(LEDGER).dictionary_encode()
    names = named.dictionary.to_pylist()
    codes = np.asarray(named.indices.fill_null(-1), dtype=np.int64)
    for code, group in grouped(rows, codes):
        if code < 0 and not default:
            raise Refused(
                f"{group.num_rows} rows have null in {LEDGER!r}, and the write names no ledger",
                hint="Name their ledger in save(), start() or option 'ledger', or fill the column",
            )
        yield (names[code] if code >= 0 else default), group
