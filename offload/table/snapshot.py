"""One version of a Delta table that ledgers are published to: its files, its columns, and how far each log is in it.

The table's log is replayed by the library `deltalake`; the data files are read by `offload.table.rows`.

Rules
- A version never changes. What is read of it is the same whenever it is read, or an error.
- A commit holds one whole segment of one log, in the order of segments. So how far a log is published is the version of
  the log's own application, or the highest ledger id among its rows where the table's log has forgotten that.
- What took rows away wholesale since then (RESTORE, an overwrite) makes that untrue, and is refused by name.
- A table that has to be read in a way that is not known here is refused with what to do.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.position import EARLIEST, LATEST
from pyspark_ledger.offload.table.commits import TableCommits
from pyspark_ledger.offload.table.data_file import INCARNATION, POSITION, PUBLISH_TIME, TableFile, bounds
from pyspark_ledger.offload.table.table_address import TableAddress

if TYPE_CHECKING:
    from deltalake import DeltaTable

# What a table may ask of its readers: what deltalake's log needs to know, and what the reader of files knows.
_KNOWN = frozenset(
    {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "typeWidening-preview"}
)
_DELETIONS = "deletionVectors"
_SQL = "Read it by Spark: union spark.read.format('delta') up to the last published ledger and the log after it"


class TableSnapshot:
    """One version of one table."""

    def __init__(self, address: TableAddress, table: DeltaTable) -> None:
        self.address = address
        self._table = table
        self.version: int = table.version()
        metadata = table.metadata()
        self.table_id = str(metadata.id)
        self._partitioned_by: list[str] = list(metadata.partition_columns)
        self.columns: str = table.schema().to_json()
        """The schema as Delta and Spark write it, in JSON."""
        self._commits = TableCommits(address, self.version)
        _require_readable(table, self)
        self.files: tuple[TableFile, ...] = tuple(self._listed())

    def __str__(self) -> str:
        return f"version {self.version} of table {self.address.location}"

    @property
    def names(self) -> list[str]:
        return [field["name"] for field in json.loads(self.columns)["fields"]]

    def published_up_to(self, incarnation: str, application: str) -> int:
        """The newest ledger id of a log that is in the table whole; -1 when there is none.

        `application` is whose transactions the commits of that log are. Refused when rows were taken away since.
        """
        known = self._table.transaction_version(application)
        by_rows = [file.high.ledger_id for file in self.files if file.has_bounds and file.belongs_to(incarnation)]
        newest = max([-1 if known is None else known, *by_rows])
        undone = self._commits.find_removal(incarnation) if newest >= 0 else ""
        if undone:
            raise Refused(
                f"table {self.address.location} was changed by {undone} after ledger {newest} was published to it: "
                "what was published may be there no more",
                hint="Restore the version before it, or publish to a new table",
            )
        return newest

    def _listed(self) -> list[TableFile]:
        actions = pa.table(self._table.get_add_actions(flatten=False))
        paths = [unquote(path) for path in actions.column("path").to_pylist()]
        deleted = self._deleted(set(paths)) if _DELETIONS in _features(self._table) else {}
        strange = [path for path in paths if "://" in path or path.startswith(("/", "file:"))]
        if strange:
            raise Unsupported(f"{self} lists {strange[0]}, a file of another table: it is a shallow clone", hint=_SQL)
        low, high = (_Statistics(actions, side) for side in ("min", "max"))
        values = actions.column("partition").to_pylist() if "partition" in actions.column_names else []
        rows, sizes = actions.column("num_records").to_pylist(), actions.column("size_bytes").to_pylist()
        files = []
        for number, path in enumerate(paths):
            first, last = low.of(number), high.of(number)
            span = (EARLIEST, LATEST)
            if first.ledger is not None and last.ledger is not None:
                span = bounds(first.ledger, first.entry, last.ledger, last.entry)
            told = first.incarnation is not None and last.incarnation is not None
            files.append(
                TableFile(
                    path,
                    int(sizes[number]),
                    -1 if rows[number] is None else int(rows[number]),
                    *span,
                    (str(first.incarnation), str(last.incarnation)) if told else None,
                    tuple((values[number] or {}).items()) if values else (),
                    deleted.get(path, b""),
                    last.publish_ms,
                )
            )
        return sorted(files, key=lambda file: (file.low, file.path))

    def _deleted(self, paths: AbstractSet[str]) -> dict[str, bytes]:
        """Of files of which rows were deleted, which rows are still there, as bits."""
        root = unquote(self._table.table_uri).removeprefix("file://").rstrip("/") + "/"
        found = {}
        for batch in pa.RecordBatchReader.from_stream(self._table.deletion_vectors()):
            for path, kept in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                bits = np.asarray(kept.values.to_numpy(zero_copy_only=False), dtype=bool)
                found[unquote(path).removeprefix("file://").removeprefix(root)] = np.packbits(bits).tobytes()
        if not found.keys() <= paths:
            lost = min(found.keys() - paths)
            raise Corrupt(f"{self} says that rows of {lost} were deleted, which is none of its files", hint=_SQL)
        return found


@dataclass(frozen=True, slots=True)
class _Bound:
    ledger: int | None
    entry: int | None
    incarnation: str | None
    publish_ms: int | None


class _Statistics:
    """One side of the statistics of all files; what is not stated is None."""

    def __init__(self, actions: pa.Table, side: str) -> None:
        found = actions.column(side).combine_chunks() if side in actions.column_names else None
        self._ledgers = _at(found, POSITION, "ledgerId")
        self._entries = _at(found, POSITION, "entryId")
        self._incarnations = _at(found, INCARNATION)
        times = _at(found, PUBLISH_TIME)
        self._times = None if times is None else pc.cast(times, pa.timestamp("ms"), safe=False).cast(pa.int64())

    def of(self, number: int) -> _Bound:
        def value(column: pa.Array | None) -> Any:
            return None if column is None else column[number].as_py()

        return _Bound(*(value(one) for one in (self._ledgers, self._entries, self._incarnations, self._times)))


def open_table(address: TableAddress, version: int | None = None) -> TableSnapshot:
    """The newest version of a table, or a given one; NotFound, Unauthenticated, or DataLoss when that is gone."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError as missing:
        raise Refused(
            "option 'history' needs deltalake, which is not installed here",
            hint="pip install 'pyspark-ledger[history]' where the driver runs",
        ) from missing
    try:
        found = DeltaTable(address.location, version=version, storage_options=address.storage_options())
        return TableSnapshot(address, found)
    except OSError as wrong:
        raise Unavailable(f"table {address.location} cannot be read: {wrong}") from wrong
    except DeltaError as wrong:
        if version is not None:
            raise DataLoss(
                f"version {version} of table {address.location} cannot be read any more: {wrong}",
                hint="The table is gone, or its log was cleaned since. Start with a new checkpoint",
            ) from wrong
        if isinstance(wrong, TableNotFoundError):
            raise NotFound(
                f"there is no Delta table at {address.location}", hint="Publish the ledger to it, or correct the path"
            ) from wrong
        raise Unsupported(f"table {address.location} cannot be read: {wrong}", hint=_SQL) from wrong


def require_same_table(snapshot: TableSnapshot, table_id: str) -> None:
    """Refused when the table is not the one that a reader began with."""
    if snapshot.table_id != table_id:
        raise Refused(
            f"table {snapshot.address.location} was deleted and made again: its id is {snapshot.table_id}, the reader "
            f"began with {table_id}",
            hint="Start with a new checkpoint, or name the table that it began with",
        )


def _require_readable(table: DeltaTable, snapshot: TableSnapshot) -> None:
    protocol = table.protocol()
    if protocol.min_reader_version > 3:
        raise Unsupported(f"{snapshot} needs reader version {protocol.min_reader_version}, 3 is known here", hint=_SQL)
    strange = sorted(_features(table) - _KNOWN)
    mapped = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
    if "columnMapping" in strange or mapped != "none":
        raise Unsupported(
            f"{snapshot} has columns that were renamed or dropped (columnMapping, mode {mapped})",
            hint=f"ALTER TABLE … DROP FEATURE columnMapping makes it plain again. {_SQL}",
        )
    if strange:
        raise Unsupported(f"{snapshot} needs readers that know {', '.join(strange)}", hint=_SQL)
    if POSITION not in snapshot.names or INCARNATION not in snapshot.names:
        raise Refused(
            f"{snapshot} has no column {POSITION!r} or {INCARNATION!r}: no ledger was published to it",
            hint="Name the table that `ledger publish` writes to",
        )


def _features(table: DeltaTable) -> set[str]:
    return set(table.protocol().reader_features or ())


def _at(found: pa.Array | None, *names: str) -> pa.Array | None:
    for name in names:
        if found is None or not pa.types.is_struct(found.type) or found.type.get_field_index(name) < 0:
            return None
        found = pc.struct_field(found, name)
    return found
