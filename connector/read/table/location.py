"""Location of a catalog's table, for option `history`.

The user's program resolves the location. Reason: Spark plans a data source in a process without a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark_ledger.ledger.errors import NotFound, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table_location(spark: SparkSession, table: str) -> str:
    """Return the path or address of `[catalog.][schema.]table` for option `history`. A path is returned unchanged.

    Raises NotFound if the table does not exist, and Refused if it is not a Delta table. SQL distinguishes
    these two cases, and needs no Python package of Delta.
    """
    from pyspark.errors import AnalysisException

    if "/" in table:
        return table
    quoted = table if "`" in table else ".".join(f"`{part}`" for part in table.split("."))
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {quoted}").select("format", "location").collect()[0]
    except AnalysisException as wrong:
        raise NotFound(f"table {table} is not known to this session: {wrong.getCondition()}") from wrong
    if detail["format"] != "delta":
        raise Refused(f"table {table} is of format {detail['format']}, expected delta", hint="Name the published table")
    location = str(detail["location"])
    return unquote(urlsplit(location).path) if location.startswith("file:") else location
