"""A Delta table as a publisher needs it: by path or by name, made, appended to, asked for its history.

Only DataFrames and SQL are used, so that a platform brings its own Delta. A target with a slash is a path of any file
system that Spark reaches, any other is a name, `[catalog.][schema.]table`.

Rules: an append is one commit, passed over by Delta when its version is not above the newest of its application. A
commit to a table on this host's disk waits for that of another process. What lost a race against another commit is
`LostRace`: whoever asked looks again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.publish.table_lock import directory_of, table_lock
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.offload.table.commit_metadata import NO_SEGMENT, TableChange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[^\s`/;.]+(\.[^\s`/;.]+){0,2}")
# How Delta says that another commit was faster, as a class or as an error's name.
_RACES = re.compile(
    r"Concurrent(Transaction|Append|DeleteRead|DeleteDelete|Write|Modification)Exception|MetadataChangedException|"
    r"ProtocolChangedException|DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|"
    r"DELTA_TABLE_ALREADY_EXISTS|TABLE_OR_VIEW_ALREADY_EXISTS|DELTA_PATH_EXISTS"
)
_ABSENT = re.compile(
    r"DELTA_(MISSING_DELTA_TABLE|TABLE_NOT_FOUND|PATH_DOES_NOT_EXIST|ONLY_OPERATION)|PATH_NOT_FOUND|"
    r"TABLE_OR_VIEW_NOT_FOUND|SCHEMA_NOT_FOUND|is not a Delta table"
)
_RECENT = 50


class LostRace(Unavailable):
    """Another commit was faster; nothing of this one is in the table."""


class DeltaTable:
    """One table of one session."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        self.spark = spark
        self.is_path = "/" in target
        if not self.is_path and not _NAME.fullmatch(target):
            raise Refused(
                f"{target!r} is no table",
                hint="Give a path, such as ./tables/orders or s3a://bucket/orders, or [catalog.][schema.]table",
            )
        self.target = absolute_path(target) if self.is_path else target
        self._directory = directory_of(self.target) if self.is_path else None

    def __str__(self) -> str:
        return self.target

    @property
    def sql(self) -> str:
        if self.is_path:
            return f"delta.`{self.target.replace('`', '``')}`"
        return ".".join(f"`{part}`" for part in self.target.split("."))

    def in_session(self, session: SparkSession) -> DeltaTable:
        same = DeltaTable(session, self.target)
        same._directory = self._directory
        return same

    def identity(self) -> str:
        """The id that Delta gave the table when it was made; empty when there is none."""
        found = self._detail()
        return "" if found is None else str(found["id"])

    def partition_columns(self) -> list[str]:
        found = self._detail()
        return [] if found is None else list(found["partitionColumns"])

    def _detail(self) -> Any:
        found = self._query(f"DESCRIBE DETAIL {self.sql}")
        if found is not None and found[0]["format"] != "delta":
            raise Refused(f"{self} is a table of {found[0]['format']}, and segments are published to Delta's")
        if found is not None and not self.is_path:
            self._directory = directory_of(str(found[0]["location"] or ""))
        return None if found is None else found[0]

    def frame(self) -> DataFrame:
        read = self.spark.read.format("delta")
        return read.load(self.target) if self.is_path else read.table(self.target)

    def create(
        self,
        rows: DataFrame,
        app: str,
        version: int,
        user_metadata: str,
        partitions: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make the table with its first rows in one commit; an error leaves no table. Raises Raced if there is one.

        A table with a name takes user metadata from the session of `rows` only: see `tagged_session`.
        """
        write = _appending(rows, app, version, user_metadata).partitionBy(*partitions).options(**(properties or {}))
        try:
            self._save(write)
        except LostRace:
            raise
        except Exception as error:
            if self.identity():  # of other columns: of somebody who was faster
                raise LostRace(f"another maker of {self} was faster: {error}") from error
            raise

    def append(self, rows: DataFrame, app: str, version: int, user_metadata: str) -> None:
        """One commit of these rows, if the table has none of this application with this version or above."""
        self._save(_appending(rows, app, version, user_metadata))

    def widen(self, rows: DataFrame, user_metadata: str) -> None:
        """Give it the columns of these rows that it has not."""
        write = rows.where("false").write.format("delta").mode("append").option("mergeSchema", "true")
        self._save(write.option("userMetadata", user_metadata))

    def recent(self) -> list[TableChange]:
        """Its newest commits, newest first."""
        return self.history(_RECENT)

    def history(self, limit: int = 0) -> list[TableChange]:
        """Its commits, newest first, so far back as its log goes; none of a table that is not there."""
        rows = self._query(f"DESCRIBE HISTORY {self.sql}" + (f" LIMIT {limit}" if limit else ""))
        return [
            TableChange(int(row["version"]), str(row["operation"]), row["userMetadata"], str(row["timestamp"]))
            for row in rows or ()
        ]

    def largest_segment(self, topic: str, incarnation: str) -> int:
        """Return the largest segment id among the rows of this incarnation of a topic.

        Returns NO_SEGMENT if there is no such row, or the table has no metadata columns.
        """
        from pyspark.sql import functions as f

        rows = self.frame()
        if not {"__topic", "__incarnation", "__position"} <= set(rows.columns):
            return NO_SEGMENT
        own = rows.where((f.col("__topic") == topic) & (f.col("__incarnation") == incarnation))
        found = own.agg(f.max("__position.ledgerId")).collect()[0][0]
        return NO_SEGMENT if found is None else int(found)

    def run(self, statement: str) -> list[Any]:
        """A statement of SQL; raises Raced."""
        try:
            with table_lock(self._directory):
                return list(self.spark.sql(statement).collect())
        except Exception as error:
            raise_lost_race(error, self)
            raise

    def _save(self, write: Any) -> None:
        try:
            with table_lock(self._directory):
                if self.is_path:
                    write.save(self.target)
                else:
                    write.saveAsTable(self.target)
        except Exception as error:
            raise_lost_race(error, self)
            raise

    def _query(self, statement: str) -> list[Any] | None:
        """The rows of a statement about the table; None when there is no table."""
        from pyspark.errors import PySparkException

        try:
            return list(self.spark.sql(statement).collect()) or None
        except PySparkException as error:
            if _ABSENT.search(_said(error)):
                return None
            raise


def _appending(rows: DataFrame, app: str, version: int, user_metadata: str) -> Any:
    write = rows.write.format("delta").mode("append").option("mergeSchema", "true")
    return write.option("txnAppId", app).option("txnVersion", version).option("userMetadata", user_metadata)


def tagged_session(spark: SparkSession, user_metadata: str, transaction: tuple[str, int] | None = None) -> SparkSession:
    """A session whose statements of SQL commit with these user metadata, and once for the transaction (app, version).

    SQL takes both from the session only, and other threads may commit in the user's.
    """
    apart = spark.newSession()
    apart.catalog.setCurrentCatalog(spark.catalog.currentCatalog())
    apart.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
    apart.conf.set("spark.databricks.delta.commitInfo.userMetadata", user_metadata)
    if transaction is not None:
        apart.conf.set("spark.databricks.delta.write.txnAppId", transaction[0])
        apart.conf.set("spark.databricks.delta.write.txnVersion", str(transaction[1]))
    return apart


def raise_lost_race(error: Exception, table: DeltaTable) -> None:
    """Raise Raced if an error of Spark's says that another commit was faster."""
    found = _RACES.search(_said(error))
    if found is not None:
        raise LostRace(
            f"another commit to {table} was faster: {found[0]}",
            hint="Nothing of this one is there. Publish again when fewer others write to the table",
        ) from error


def absolute_path(path: str) -> str:
    """A path as Spark takes it, a relative one of this host made absolute."""
    return path if "://" in path or path.startswith(("dbfs:", "file:")) else str(Path(path).expanduser().absolute())


def _said(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return f"{type(error).__name__} {error} {java or ''}"
