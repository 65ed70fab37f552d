"""Spark session with settings for Python data sources. A listener acknowledges each batch that its queries commit.

`conf/spark-defaults.conf` has the same settings for `spark-submit`. A test compares the two.

The data source works without these settings, but more slowly. Without the listener, the last batch of a query is
acknowledged only when the query starts again. If a running session cannot change a setting, `configure_session` prints
the setting as a line for `spark-defaults.conf`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SparkSetting:
    """Setting of Spark, and its reason."""

    name: str
    value: str
    reason: str
    default: str = ""  # Spark's default
    at_run_time: bool = False


SETTINGS: tuple[SparkSetting, ...] = (
    SparkSetting("spark.python.unix.domain.socket.enabled", "true", "rows reach Python faster than over TCP", "false"),
    SparkSetting(
        "spark.sql.catalogImplementation",
        "in-memory",
        "no Hive metastore is made in the working directory",
        "in-memory",
    ),
    SparkSetting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "100000",
        "the sink gets larger batches, so fewer entries are joined from several batches",
        default="10000",
        at_run_time=True,
    ),
)

LOCAL_SETTINGS: tuple[SparkSetting, ...] = (
    SparkSetting("spark.sql.session.timeZone", "UTC", "times are shown as they are stored, in UTC"),
    SparkSetting(
        "spark.sql.execution.arrow.pyspark.enabled", "true", "toPandas and toArrow transfer columns, not rows"
    ),
    SparkSetting("spark.ui.enabled", "false", "a local session needs no web server"),
    SparkSetting(
        "spark.sql.shuffle.partitions", "8", "a stream with groupBy would otherwise write 200 tiny files a batch"
    ),
)
"""Settings of a new local session. An existing session never gets them: they suit only one machine, or change answers
of its other queries, as the time zone does.
"""


def local_session(app_name: str, conf: Mapping[str, object], *, delta: bool = False) -> SparkSession:
    """Return a local session on all cores with these settings. `conf` overrides them, and may have `_` for `.`."""
    from pyspark.sql import SparkSession

    from pyspark_ledger.connector.session.delta import PACKAGES, delta_settings, with_packages

    # Workers must run this interpreter. Spark's default is the `python3` of the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master("local[*]")
    # `getOrCreate` would set the values of the builder in an existing session too.
    for setting in () if _is_running() else (*SETTINGS, *LOCAL_SETTINGS):
        builder = builder.config(setting.name, setting.value)
    settings = with_packages(delta_settings() if delta else {}, conf)
    for name, value in settings.items():
        builder = builder.config(name if "." in name else name.replace("_", "."), str(value))
    return configure_session(_started(builder, settings.get(PACKAGES)), quiet=True)


def _is_running() -> bool:
    """Return whether this process has a session, which may be active in another thread."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None or SparkContext._active_spark_context is not None  # noqa: SLF001


def _started(builder: SparkSession.Builder, packages: object) -> SparkSession:
    """Return the session. Raises Unavailable, which names the packages, if the JVM ends while it downloads them."""
    from pyspark.errors import PySparkRuntimeError

    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        # The JVM downloads the packages before it answers, and ends without an error if the download fails.
        if not packages or error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise Unavailable(
            f"Spark ended before it created a session, probably while it downloaded the packages {packages}",
            hint="Check that Maven Central can be reached from this host; Spark's messages are on standard error",
        ) from error


def configure_session(spark: SparkSession, *, quiet: bool = False) -> SparkSession:
    """Set the settings that a running session can change and nobody has set. Add the listener that acknowledges.

    Print each change. Unless `quiet` is set, print the settings that must be set before the session starts.
    No setting here may change an answer of the session's other queries.
    """
    from pyspark_ledger.connector.connection import print_once
    from pyspark_ledger.connector.session.commit_listener import install

    install(spark)
    stated = spark.conf.getAll  # without Spark's defaults, so a default that the user has set is there
    for setting in SETTINGS:
        if setting.at_run_time and setting.name not in stated:
            spark.conf.set(setting.name, setting.value)
            print_once(f"set {setting.name} to {setting.value}: {setting.reason}")
    missing = [
        setting
        for setting in SETTINGS
        if not setting.at_run_time and spark.conf.get(setting.name, setting.default) != setting.value
    ]
    if missing and not quiet:
        print("# To be set before the session starts, for example in spark-defaults.conf:")  # noqa: T201
        for setting in missing:
            # The reason is a separate line, because in that file the rest of a line is the value.
            print(f"# {setting.reason}\n{setting.name} {setting.value}")  # noqa: T201
    return spark
