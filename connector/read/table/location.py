"""Where a table of a catalog lies: what only a session of Spark can say, for the option that needs to know it.

Rule: asked once, by the user's program; a data source is planned where there is no session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark_ledger.ledger.errors import NotFound, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table_location(spark: SparkSession, table: str) -> str:
    """The path or address of `[catalog.][schema.]table`, as option `history` takes it; a path as it stands.

    Raises NotFound for a table that is not there, and Refused for one that is not Delta's.
    """
    from pyspark.errors import AnalysisException

    if "/" in table:
        return table
    quoted = table if "`" in table else ".".join(f"`{part}`" for part in table.split("."))
    try:
        told = spark.sql(f"DESCRIBE DETAIL {quoted}").select("format", "location").collect()[0]
    except AnalysisException as wrong:
        raise NotFound(f"table {table} is not known to this session: {wrong.getCondition()}") from wrong
    if told["format"] != "delta":
        raise Refused(f"table {table} is of format {told['format']}, expected delta", hint="Name the published table")
    location = str(told["location"])
    return unquote(urlsplit(location).path) if location.startswith("file:") else location
