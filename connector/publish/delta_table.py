"""Operations on a Delta table for a publisher: create, append, widen, change, and read the history.

The user names the table. A text with a slash is a path in any file system that Spark supports. Any other text is a
name, `[catalog.][schema.]table`. The page docs/concepts.md explains the words segment, log and incarnation.

DataFrames write the rows. SQL statements read the history, and run OPTIMIZE, DELETE and MERGE. So these operations need
Delta's Java library, but not the Python package `delta`. Over Spark Connect, Spark's protocol for remote sessions, the
server needs no plugin of Delta.

Rules
- An append is one commit, with an application id and a version. If the table has a commit of this application with the
  same or a greater version, Delta skips the new commit. So a repeated append has no effect.
- A commit also has *user metadata*, a text of the publisher that Delta stores in the table's log.
- A commit to a table on a local disk waits for commits of other processes (`table_lock`).
- If a commit conflicts with a concurrent commit, it raises LostRace. Then the caller reads the table's state again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.publish.table_lock import directory_of, table_lock
from pyspark_ledger.connector.spark_features import is_connect
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.offload.table.commit_metadata import NO_SEGMENT, TableChange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[^\s`/;.]+(\.[^\s`/;.]+){0,2}")
# Exception classes and error names with which Delta reports a concurrent commit.
_LOST_RACE = re.compile(
    r"Concurrent(Transaction|Append|DeleteRead|DeleteDelete|Write|Modification)Exception|MetadataChangedException|"
    r"ProtocolChangedException|DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|"
    r"DELTA_TABLE_ALREADY_EXISTS|TABLE_OR_VIEW_ALREADY_EXISTS|DELTA_PATH_EXISTS"
)
_NO_TABLE = re.compile(
    r"DELTA_(MISSING_DELTA_TABLE|TABLE_NOT_FOUND|PATH_DOES_NOT_EXIST|ONLY_OPERATION)|PATH_NOT_FOUND|"
    r"TABLE_OR_VIEW_NOT_FOUND|SCHEMA_NOT_FOUND|is not a Delta table"
)
_PATTERN = re.compile(r"[*?{}\[\]\\]")  # Spark reads a path with one of these characters as a pattern
_FIRST_COMMIT = "_delta_log/00000000000000000000.json"
_RECENT = 50


class LostRace(Unavailable):
    """Conflict with a concurrent commit. This commit has not changed the table."""


class DeltaTable:
    """Delta table in a Spark session."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        self.spark = spark
        self.is_path = "/" in target
        if not self.is_path and not _NAME.fullmatch(target):
            raise Refused(
                f"{target!r} is neither a path nor a table name",
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
        table = DeltaTable(session, self.target)
        table._directory = self._directory
        return table

    def identity(self) -> str:
        """Return the id that Delta gave the table at its creation. Returns an empty text if there is no table."""
        found = self._detail()
        return "" if found is None else str(found["id"])

    def created_identity(self) -> str:
        """Return the id of a table whose first commit this process has just made.

        Reads the id from the first file of the table's log. Reason: `identity` runs DESCRIBE DETAIL, which also
        computes the state of the table, and costs as much as a small commit.

        Calls `identity` for a table with a name, for a path that Spark would read as a pattern, and for a log without
        that file.
        """
        from pyspark.errors import PySparkException

        if not self.is_path or _PATTERN.search(self.target):
            return self.identity()
        commits = self.spark.read.schema("metaData struct<id: string>")
        try:
            found = commits.json(f"{self.target}/{_FIRST_COMMIT}").where("metaData IS NOT NULL").collect()
        except PySparkException:
            return self.identity()
        return str(found[0]["metaData"]["id"]) if found else self.identity()

    def partition_columns(self) -> list[str]:
        found = self._detail()
        return [] if found is None else list(found["partitionColumns"])

    def _detail(self) -> Any:
        """Return the row of DESCRIBE DETAIL, None if there is no table. Raises Refused for a table of another format.

        The method uses SQL, because package `delta` reports a table of another format as missing.
        """
        if self._is_absent():
            return None
        found = self._query(f"DESCRIBE DETAIL {self.sql}")
        if found is not None and found[0]["format"] != "delta":
            raise Refused(f"{self} has format {found[0]['format']}, but segments are published to Delta tables only")
        if found is not None and not self.is_path:
            self._directory = directory_of(str(found[0]["location"] or ""))
        return None if found is None else found[0]

    def _is_absent(self) -> bool:
        """Return whether the table has a path on this host's disk that does not exist. False if this is unknown.

        This check saves a DESCRIBE DETAIL, which takes a tenth of a second to find no table.
        """
        if not self.is_path or self._directory is None or self._directory.exists():
            return False
        try:
            hadoop = self.spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 — Spark has no other access
        except AttributeError:  # Spark Connect: the driver may run on another host
            return False
        return self.target.startswith("file:") or str(hadoop.get("fs.defaultFS")).startswith("file:")

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
        """Create the table with its first rows in one commit. Raises LostRace if the table exists.

        If an error is raised, no table was created. For a table with a name, Delta takes the user metadata only from
        the session of `rows`. So the caller creates this session by `tagged_session`.
        """
        write = _appending(rows, app, version, user_metadata).partitionBy(*partitions).options(**(properties or {}))
        try:
            self._save(write)
        except LostRace:
            raise
        except Exception as error:
            if self.identity():  # another process has created the table with other columns
                raise LostRace(f"another process created {self} at the same time: {error}") from error
            raise

    def append(self, rows: DataFrame, app: str, version: int, user_metadata: str) -> None:
        """Append the rows in one commit. Delta skips it if `app` has committed this version or a greater version."""
        self._save(_appending(rows, app, version, user_metadata))

    def widen(self, rows: DataFrame, user_metadata: str) -> None:
        """Add the columns of `rows`, and the fields of their structs, that the table does not have."""
        write = rows.where("false").write.format("delta").mode("append").option("mergeSchema", "true")
        self._save(write.option("userMetadata", user_metadata))

    def recent(self) -> list[TableChange]:
        """Return the newest commits, newest first."""
        return self.history(_RECENT)

    def history(self, limit: int = 0) -> list[TableChange]:
        """Return the commits in the table's log, newest first. Returns an empty list if there is no table."""
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

    def change(self, statement: str) -> None:
        """Run a SQL statement that changes the table, under the table lock. Raises LostRace."""
        self._commit(lambda: self.spark.sql(statement).collect())

    def optimize(self) -> None:
        """Join small files. Raises LostRace."""
        self.change(f"OPTIMIZE {self.sql}")

    def _save(self, write: Any) -> None:
        self._commit(lambda: write.save(self.target) if self.is_path else write.saveAsTable(self.target))

    def _commit(self, commit: Callable[[], object]) -> None:
        try:
            with table_lock(self._directory):
                commit()
        except Exception as error:
            raise_lost_race(error, self)
            raise

    def _query(self, statement: str) -> list[Any] | None:
        """Return the rows of a SQL statement about the table, None if there is no table."""
        from pyspark.errors import PySparkException

        try:
            return list(self.spark.sql(statement).collect()) or None
        except PySparkException as error:
            if _NO_TABLE.search(_error_text(error)):
                return None
            raise


def _appending(rows: DataFrame, app: str, version: int, user_metadata: str) -> Any:
    write = rows.write.format("delta").mode("append").option("mergeSchema", "true")
    return write.option("txnAppId", app).option("txnVersion", version).option("userMetadata", user_metadata)


@contextmanager
def tagged_session(
    spark: SparkSession, user_metadata: str, transaction: tuple[str, int] | None = None
) -> Iterator[SparkSession]:
    """Yield a second session whose commits have these user metadata and this transaction (application, version).

    Reason: DELETE and MERGE take both from the session only. Other threads may commit in the user's session, so its
    settings are not changed.
    """
    with second_session(spark) as tagged:
        tagged.conf.set("spark.databricks.delta.commitInfo.userMetadata", user_metadata)
        if transaction is not None:
            tagged.conf.set("spark.databricks.delta.write.txnAppId", transaction[0])
            tagged.conf.set("spark.databricks.delta.write.txnVersion", str(transaction[1]))
        yield tagged


@contextmanager
def second_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a second session with the same current schema. Over Spark Connect, it ends with the block.

    Raises Refused if Spark Connect has no second session here.
    """
    if not is_connect(spark):
        second = spark.newSession()
        second.catalog.setCurrentCatalog(spark.catalog.currentCatalog())
        second.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
        yield second
        return
    cloned = _cloned_session(spark)
    try:
        yield cloned
    finally:
        with suppress(Exception):  # without this call, the server ends the session when nobody has used it for an hour
            cloned.client.release_session()
        cloned.client.close()  # `cloned.stop()` would also stop a server that this process has started


def _cloned_session(spark: Any) -> Any:
    from pyspark.errors import PySparkException

    hint = "Use Spark 4.1 or newer on the client and on the server, or publish with `ledger publish` on the server"
    if not hasattr(spark, "cloneSession"):
        raise Refused("this client of Spark Connect has no cloneSession, and the publication needs one", hint=hint)
    try:
        return spark.cloneSession()
    except PySparkException as error:
        raise Refused(f"this server of Spark Connect cannot clone a session: {error}", hint=hint) from error


def raise_lost_race(error: Exception, table: DeltaTable) -> None:
    """Raise LostRace if an error of Spark reports a concurrent commit."""
    conflict = _LOST_RACE.search(_error_text(error))
    if conflict is not None:
        raise LostRace(
            f"another commit to {table} was faster: {conflict[0]}",
            hint="This commit has not changed the table. Publish again when fewer programs write to the table",
        ) from error


def absolute_path(path: str) -> str:
    """Return a path for Spark. A relative local path becomes absolute."""
    return path if "://" in path or path.startswith(("dbfs:", "file:")) else str(Path(path).expanduser().absolute())


def _error_text(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return f"{type(error).__name__} {error} {java or ''}"
