"""The newest row of each key: a second table beside the published one, brought up to date by MERGE.

    published table ── rows behind what the view has, the newest of each key ──▶ MERGE ──▶ view

Rules
- What the view has is told by its own commits, as in the published table; its rows come from there and never from the
  log, so a view that is added later, or was killed, catches up.
- A MERGE is of one log, with the log's life and the newest segment as Delta's transaction: one that comes late,
  behind a newer one, is passed over, and never brings back a key that was deleted since.
- Only a newer position replaces a row. A row without a key is in no view. A tombstone deletes: a row whose other
  columns are all null, unless the user says which rows do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.publish.delta_table import DeltaTable, tagged_session
from pyspark_ledger.connector.publish.segments import SealedLog
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.offload.table.commit_metadata import NO_SEGMENT, Publication, app_id, find_newest_segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DELETES, _RANK = "__deletes", "__rank"


@dataclass(frozen=True, slots=True)
class LatestRows:
    """One view of one published table. `key` is the column that tells rows apart; `deleted_when` is SQL over a row."""

    table: DeltaTable
    view: DeltaTable
    key: str = "__key"
    deleted_when: str = ""

    def require_free(self, log: SealedLog, own: Sequence[str]) -> None:
        """Refuse columns of the view's own names. Asked before a segment is published, which is not taken back."""
        if taken := {_DELETES, _RANK} & set(own):
            raise Refused(
                f"column {', '.join(sorted(taken))} of {log.name} has a name that view {self.view} needs for itself",
                hint="Publish without the view, or rename it in the ledger",
            )

    def refresh(self, log: SealedLog, up_to: int, own: Sequence[str]) -> None:
        """Bring the view up to this segment of the published table. `own`: the columns of the log's own rows."""
        self.require_free(log, own)  # it may have got one since
        newest = find_newest_segment(self.view.history(), log.name, "view")
        has = newest.segment if newest is not None and newest.incarnation == log.incarnation else NO_SEGMENT
        if up_to <= has:
            return
        said = Publication("view", log.name, log.incarnation, up_to).text()
        apart = tagged_session(self.view.spark, said, (app_id(log.name, log.incarnation), up_to))
        rows = self._rows(self.table.in_session(apart).frame(), log, (has, up_to), own)
        columns = [name for name in rows.columns if name not in (_DELETES, _RANK)]
        view = self.view.in_session(apart)
        if not self.view.identity():
            kept = rows.where(f"NOT {_quoted(_DELETES)}").select(*map(_quoted, columns))
            view.create(kept, app_id(log.name, log.incarnation), up_to, said)
            return
        if set(columns) - set(self.view.frame().columns):
            self.view.widen(self.table.frame().select(*map(_quoted, columns)), Publication("create").text())
        source = f"ledger_latest_{new_id().replace('-', '')}"
        rows.createTempView(source)
        try:
            view.run(_merge(self.view.sql, source, self.key, columns))
        finally:
            apart.catalog.dropTempView(source)

    def _rows(self, rows: DataFrame, log: SealedLog, segments: tuple[int, int], own: Sequence[str]) -> DataFrame:
        """The newest row of each key of the segments `(after, up to]`, and whether it deletes."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        if self.key not in rows.columns:
            raise Refused(
                f"the key {self.key!r} of view {self.view} is no column of {self.table}",
                hint=f"It has {', '.join(rows.columns)}",
            )
        segment, key = f.col("__position.ledgerId"), f.col(_quoted(self.key))
        found = rows.where((f.col("__topic") == log.topic) & (f.col("__incarnation") == log.incarnation))
        found = found.where((segment > segments[0]) & (segment <= segments[1]) & key.isNotNull())
        newest = f.row_number().over(Window.partitionBy(key).orderBy(f.col("__position").desc()))
        found = found.withColumn(_RANK, newest).where(f.col(_RANK) == 1)
        return found.withColumn(_DELETES, f.expr(self._deletes([name for name in rows.columns if name in own])))

    def _deletes(self, own: Sequence[str]) -> str:
        if self.deleted_when:
            return f"coalesce({self.deleted_when}, false)"
        values = [name for name in own if name != self.key]
        return " AND ".join(f"{_quoted(name)} IS NULL" for name in values) or "false"


def _merge(view: str, source: str, key: str, columns: list[str]) -> str:
    names = [_quoted(name) for name in columns]
    key, newer = _quoted(key), "s.`__position` > t.`__position`"
    return (
        f"MERGE INTO {view} t USING {source} s ON t.{key} = s.{key} "  # noqa: S608  # quoted names
        f"WHEN MATCHED AND {newer} AND s.`{_DELETES}` THEN DELETE "
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)} "
        f"WHEN NOT MATCHED AND NOT s.`{_DELETES}` THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
