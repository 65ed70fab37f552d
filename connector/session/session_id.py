"""Id under which this process keeps the default store and the listener of a session.

Spark's API makes several objects for one session, so no object identifies a session.

Rules
- A session of Spark Connect has an id. No setting is changed there, as a definition file of a pipeline may change none.
- Otherwise a setting of the session has the id. A copy of the session has the same setting, a new session has not.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark_ledger.connector.spark_features import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_id(spark: SparkSession, setting: str) -> str:
    """Return the id of a session; empty if `set_session_id` was not called for this setting."""
    if is_connect(spark):
        return str(spark.session_id)  # type: ignore[attr-defined]  # only the class of Spark Connect has it
    return spark.conf.get(setting, "") or ""


def set_session_id(spark: SparkSession, setting: str) -> str:
    """Return the id of a session, and write a new one into the setting if there is none."""
    name = session_id(spark, setting) or str(uuid.uuid4())
    if not is_connect(spark):
        spark.conf.set(setting, name)
    return name
