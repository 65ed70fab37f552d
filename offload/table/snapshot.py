"""Version of a published Delta table: its files, its columns, and the last published segment of each log.

The library `deltalake` reads Delta's log. `offload.table.rows` reads the data files. The page docs/concepts.md
explains the words log and segment.

Rules
- A version never changes. Repeated reads return the same rows or raise an error.
- A publisher's commit contains one whole segment of one log, in the order of segments. A commit names a Delta
  *application* and a version of the application (`txnAppId`, `txnVersion`). Here the application is the log, and the
  version is the segment id. Delta's log keeps the newest version of each application: the last published segment.
- Delta's log may drop the version of an application that commits nothing for a long time. Then the highest segment id
  of the rows is used instead. The column `ledgerId` contains the segment id, which Pulsar calls a ledger id.
- If a later operation removed many rows at once (RESTORE, an overwrite), the read is refused. The error names this
  operation.
- A *reader feature* is a feature of a table that every reader must support. A table that needs an unsupported reader
  feature is refused with a hint.
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

# Reader features of Delta that deltalake or `offload.table.rows` supports.
_SUPPORTED_FEATURES = frozenset(
    {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "typeWidening-preview"}
)
_DELETIONS = "deletionVectors"
_SQL = (
    "Read the table with Spark instead: union the rows of spark.read.format('delta') with the ledger's rows after the "
    "last published segment"
)


class TableSnapshot:
    """Version of a published table."""

    def __init__(self, address: TableAddress, table: DeltaTable) -> None:
        self.address = address
        self._table = table
        self.version: int = table.version()
        metadata = table.metadata()
        self.table_id = str(metadata.id)
        self._partitioned_by: list[str] = list(metadata.partition_columns)
        self.columns: str = table.schema().to_json()
        """The schema in JSON, in the format of Delta and Spark."""
        self._commits = TableCommits(address, self.version)
        _require_readable(table, self)
        self.files: tuple[TableFile, ...] = tuple(self._list_files())

    def __str__(self) -> str:
        return f"version {self.version} of table {self.address.location}"

    @property
    def names(self) -> list[str]:
        return [field["name"] for field in json.loads(self.columns)["fields"]]

    def published_up_to(self, incarnation: str, application: str) -> int:
        """Return the id of a log's last published segment, -1 if no segment is published.

        `application` is Delta's application id of the log. Raises Refused if published rows were removed afterwards.
        """
        published = self._table.transaction_version(application)
        by_rows = [file.high.ledger_id for file in self.files if file.has_bounds and file.belongs_to(incarnation)]
        newest = max([-1 if published is None else published, *by_rows])
        removal = self._commits.find_removal(incarnation) if newest >= 0 else ""
        if removal:
            raise Refused(
                f"table {self.address.location} was changed by {removal} after segment {newest} was published to it: "
                "published rows may be missing",
                hint="Restore the version before this change, or publish to a new table",
            )
        return newest

    def _list_files(self) -> list[TableFile]:
        actions = pa.table(self._table.get_add_actions(flatten=False))
        paths = [unquote(path) for path in actions.column("path").to_pylist()]
        deleted = self._load_deletion_vectors(set(paths)) if _DELETIONS in _features(self._table) else {}
        foreign = [path for path in paths if "://" in path or path.startswith(("/", "file:"))]
        if foreign:
            raise Unsupported(f"{self} lists {foreign[0]}, a file of another table: it is a shallow clone", hint=_SQL)
        low, high = (_Statistics(actions, side) for side in ("min", "max"))
        values = actions.column("partition").to_pylist() if "partition" in actions.column_names else []
        rows, sizes = actions.column("num_records").to_pylist(), actions.column("size_bytes").to_pylist()
        files = []
        for number, path in enumerate(paths):
            first, last = low.of(number), high.of(number)
            file_bounds = (EARLIEST, LATEST)
            if first.ledger is not None and last.ledger is not None:
                file_bounds = bounds(first.ledger, first.entry, last.ledger, last.entry)
            has_incarnations = first.incarnation is not None and last.incarnation is not None
            files.append(
                TableFile(
                    path,
                    int(sizes[number]),
                    -1 if rows[number] is None else int(rows[number]),
                    *file_bounds,
                    (str(first.incarnation), str(last.incarnation)) if has_incarnations else None,
                    tuple((values[number] or {}).items()) if values else (),
                    deleted.get(path, b""),
                    last.publish_ms,
                )
            )
        return sorted(files, key=lambda file: (file.low, file.path))

    def _load_deletion_vectors(self, paths: AbstractSet[str]) -> dict[str, bytes]:
        """Return the bits of each file with deleted rows: one bit for each row, 0 if the row is deleted."""
        root = unquote(self._table.table_uri).removeprefix("file://").rstrip("/") + "/"
        found = {}
        for batch in pa.RecordBatchReader.from_stream(self._table.deletion_vectors()):
            for path, live in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                bits = np.asarray(live.values.to_numpy(zero_copy_only=False), dtype=bool)
                found[unquote(path).removeprefix("file://").removeprefix(root)] = np.packbits(bits).tobytes()
        if not found.keys() <= paths:
            unlisted = min(found.keys() - paths)
            raise Corrupt(f"{self} has a deletion vector for {unlisted}, which is not one of its files", hint=_SQL)
        return found


@dataclass(frozen=True, slots=True)
class _Bound:
    ledger: int | None
    entry: int | None
    incarnation: str | None
    publish_ms: int | None


class _Statistics:
    """Minima or maxima of the files' columns. A value is None if Delta's log does not state it."""

    def __init__(self, actions: pa.Table, side: str) -> None:
        found = actions.column(side).combine_chunks() if side in actions.column_names else None
        self._ledgers = _nested_column(found, POSITION, "ledgerId")
        self._entries = _nested_column(found, POSITION, "entryId")
        self._incarnations = _nested_column(found, INCARNATION)
        times = _nested_column(found, PUBLISH_TIME)
        self._times = None if times is None else pc.cast(times, pa.timestamp("ms"), safe=False).cast(pa.int64())

    def of(self, number: int) -> _Bound:
        def value(column: pa.Array | None) -> Any:
            return None if column is None else column[number].as_py()

        columns = (self._ledgers, self._entries, self._incarnations, self._times)
        return _Bound(*(value(column) for column in columns))


def open_table(address: TableAddress, version: int | None) -> TableSnapshot:
    """Open a version of a table, by default the newest.

    Raises NotFound if there is no table, and DataLoss if the version does not exist any more. Raises Unavailable,
    Unsupported or Unauthenticated if the table cannot be read.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError as missing:
        raise Refused(
            "option 'history' needs deltalake, which is not installed here",
            hint="Run pip install 'pyspark-ledger[history]' on the driver",
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
                hint="The table was deleted, or Delta has cleaned its log. Start with a new checkpoint",
            ) from wrong
        if isinstance(wrong, TableNotFoundError):
            raise NotFound(
                f"there is no Delta table at {address.location}", hint="Publish the ledger to it, or correct the path"
            ) from wrong
        raise Unsupported(f"table {address.location} cannot be read: {wrong}", hint=_SQL) from wrong


def require_same_table(snapshot: TableSnapshot, table_id: str) -> None:
    """Raise Refused if the table was deleted and created again since the reader began."""
    if snapshot.table_id != table_id:
        raise Refused(
            f"table {snapshot.address.location} was deleted and created again: its id is {snapshot.table_id}, the "
            f"reader began with {table_id}",
            hint="Start with a new checkpoint, or name the table that the reader began with",
        )


def _require_readable(table: DeltaTable, snapshot: TableSnapshot) -> None:
    protocol = table.protocol()
    if protocol.min_reader_version > 3:
        raise Unsupported(f"{snapshot} needs reader version {protocol.min_reader_version}, 3 is supported", hint=_SQL)
    unsupported = sorted(_features(table) - _SUPPORTED_FEATURES)
    mapped = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
    if "columnMapping" in unsupported or mapped != "none":
        raise Unsupported(
            f"{snapshot} has columns that were renamed or dropped (columnMapping, mode {mapped})",
            hint=f"Run ALTER TABLE … DROP FEATURE columnMapping. {_SQL}",
        )
    if unsupported:
        raise Unsupported(f"{snapshot} needs readers that support {', '.join(unsupported)}", hint=_SQL)
    if POSITION not in snapshot.names or INCARNATION not in snapshot.names:
        raise Refused(
            f"{snapshot} has no column {POSITION!r} or {INCARNATION!r}: no ledger was published to it",
            hint="Name the table that `ledger publish` writes to",
        )


def _features(table: DeltaTable) -> set[str]:
    return set(table.protocol().reader_features or ())


def _nested_column(found: pa.Array | None, *names: str) -> pa.Array | None:
    for name in names:
        if found is None or not pa.types.is_struct(found.type) or found.type.get_field_index(name) < 0:
            return None
        found = pc.struct_field(found, name)
    return found
