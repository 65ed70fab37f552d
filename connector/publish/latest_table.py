"""Second Delta table, called the *view*, with the newest row of each key. A MERGE from the published table updates it.

    published table ── rows of the segments that the view lacks, newest row of each key ──▶ MERGE ──▶ view

A *segment* is one sealed file of a log. A *log* is a ledger without partitions, or one partition. The *incarnation* of
a log is an id that changes when the ledger is deleted and created again.

Rules
- Each Delta commit to a table, view or published table, names the last segment whose rows this table then has.
- Rows are read from the published table, never from the log. So the user may add a view later. If an update of the view
  is killed, the next update completes it.
- A MERGE covers one log. Its Delta transaction has an application and a version: the log's incarnation and the newest
  segment. Delta skips a MERGE that arrives after a newer MERGE. So a deleted key does not reappear.
- A row is replaced only by a row with a later position. Rows without a key are ignored.
- A tombstone deletes its key. By default, a tombstone is a row whose other columns are all null. The user may give a
  condition for tombstones instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.publish.delta_table import DeltaTable, tagged_session
from pyspark_ledger.connector.publish.segments import SealedLog
from pyspark_ledger.connector.schema import nullable_type
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.offload.table.commit_metadata import NO_SEGMENT, Publication, app_id, find_newest_segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DELETES, _RANK = "__deletes", "__rank"
_ROWS = "ledger_newest_rows"


@dataclass(frozen=True, slots=True)
class LatestRows:
    """View of a published table. `key` is the key column. `deleted_when` is the user's SQL condition for tombstones."""

    table: DeltaTable
    view: DeltaTable
    key: str = "__key"
    deleted_when: str = ""

    def require_free(self, log: SealedLog, log_columns: Sequence[str]) -> None:
        """Raise Refused if the log has a column with a name that the view uses internally.

        Called before a segment is published, because a published segment cannot be removed.
        """
        if clashing := {_DELETES, _RANK} & set(log_columns):
            raise Refused(
                f"column {', '.join(sorted(clashing))} of {log.name} has a name that view {self.view} uses internally",
                hint="Publish without the view, or rename the column in the ledger",
            )

    def refresh(self, log: SealedLog, up_to: int, log_columns: Sequence[str]) -> None:
        """Merge the published segments up to `up_to` into the view. `log_columns` are the columns of the log's rows.

        Raises LostRace if another publisher has merged later segments. Raises Refused if a column name clashes with a
        name of the view, or the key column is missing.
        """
        self.require_free(log, log_columns)  # a column may have been added since the first check
        newest = find_newest_segment(self.view.history(), log.name, "view")
        merged_up_to = newest.segment if newest is not None and newest.incarnation == log.incarnation else NO_SEGMENT
        if up_to <= merged_up_to:
            return
        application, metadata = app_id(log.name, log.incarnation), Publication("view", log.name, log.incarnation, up_to)
        with tagged_session(self.view.spark, metadata.text(), (application, up_to)) as session:
            rows = self._rows(self.table.in_session(session).frame(), log, (merged_up_to, up_to), log_columns)
            columns = [name for name in rows.columns if name not in (_DELETES, _RANK)]
            view = self.view.in_session(session)
            if not self.view.identity():
                live = rows.where(f"NOT {_quoted(_DELETES)}").select(*map(_quoted, columns))
                view.create(live, application, up_to, metadata.text())
                return
            kinds = {field.name: nullable_type(field.dataType) for field in self.view.frame().schema}
            if any(kinds.get(name) != nullable_type(rows.schema[name].dataType) for name in columns):
                self.view.widen(self.table.frame().select(*map(_quoted, columns)), Publication("create").text())
            rows.createOrReplaceTempView(_ROWS)
            view.change(_merge(view, self.key, columns))

    def _rows(
        self, rows: DataFrame, log: SealedLog, segments: tuple[int, int], log_columns: Sequence[str]
    ) -> DataFrame:
        """Return the newest row of each key in the segments after `segments[0]` up to `segments[1]`.

        The column `__deletes` says whether the row is a tombstone.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        if self.key not in rows.columns:
            raise Refused(
                f"the key {self.key!r} of view {self.view} is no column of {self.table}",
                hint=f"The columns are {', '.join(rows.columns)}",
            )
        segment, key = f.col("__position.ledgerId"), f.col(_quoted(self.key))
        found = rows.where((f.col("__topic") == log.topic) & (f.col("__incarnation") == log.incarnation))
        found = found.where((segment > segments[0]) & (segment <= segments[1]) & key.isNotNull())
        newest = f.row_number().over(Window.partitionBy(key).orderBy(f.col("__position").desc()))
        found = found.withColumn(_RANK, newest).where(f.col(_RANK) == 1)
        names = [name for name in rows.columns if name in log_columns]
        return found.withColumn(_DELETES, f.expr(self._deletes(names)))

    def _deletes(self, log_columns: Sequence[str]) -> str:
        if self.deleted_when:
            return f"coalesce({self.deleted_when}, false)"
        values = [name for name in log_columns if name != self.key]
        return " AND ".join(f"{_quoted(name)} IS NULL" for name in values) or "false"


def _merge(view: DeltaTable, key: str, columns: Sequence[str]) -> str:
    """Return the statement that merges the rows of the temporary view `_ROWS`."""
    newer, names = "s.__position > t.__position", [_quoted(name) for name in columns]
    return (
        f"MERGE INTO {view.sql} AS t USING {_ROWS} AS s ON t.{_quoted(key)} = s.{_quoted(key)} "  # noqa: S608
        f"WHEN MATCHED AND {newer} AND s.{_DELETES} THEN DELETE "
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)} "
        f"WHEN NOT MATCHED AND NOT s.{_DELETES} "
        f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
