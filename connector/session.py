"""A Spark session that runs Python sources well and acknowledges what its queries commit.

Everything works without these settings, slower or with more noise; without the listener the last batch of a run is
acknowledged when the query starts again. Those of a running session that cannot be set any
more are shown as lines for `spark-defaults.conf`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Setting:
    """One Spark setting, and why."""

    name: str
    value: str
    reason: str
    at_run_time: bool = False


SETTINGS: tuple[Setting, ...] = (
    Setting("spark.python.unix.domain.socket.enabled", "true", "rows cross to Python faster than over TCP"),
    Setting("spark.sql.catalogImplementation", "in-memory", "no Hive metastore is made in the working directory"),
    Setting("spark.ui.enabled", "false", "a local session needs no web server"),
    Setting("spark.sql.session.timeZone", "UTC", "times print as they are stored", at_run_time=True),
    Setting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "100000",
        "the sink gets larger batches, and makes fewer entries that are cut from several",
        at_run_time=True,
    ),
    Setting("spark.sql.execution.arrow.pyspark.enabled", "true", "toPandas and toArrow move columns", at_run_time=True),
)

LOCAL_SETTINGS: tuple[Setting, ...] = (
    Setting("spark.sql.shuffle.partitions", "8", "a stream that groups would write 200 tiny parts a batch"),
)
"""What suits one machine only: for a session that is made here, never for one that is there."""


def local_session(app_name: str, conf: Mapping[str, object], *, delta: bool = False) -> SparkSession:
    """A local session of all cores with these settings; `conf` goes before them, its names with `_` for `.`."""
    from pyspark.sql import SparkSession

    from connector.delta_settings import delta_settings, with_packages

    # Workers must be this very interpreter: Spark's default is whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master("local[*]")
    for setting in SETTINGS if SparkSession.getActiveSession() else (*SETTINGS, *LOCAL_SETTINGS):
        builder = builder.config(setting.name, setting.value)
    for name, value in with_packages(delta_settings() if delta else {}, conf).items():
        builder = builder.config(name if "." in name else name.replace("_", "."), str(value))
    return configure_session(builder.getOrCreate(), quiet=True)


def configure_session(spark: SparkSession, *, quiet: bool = False) -> SparkSession:
    """Set what can be set now, and have the session acknowledge what its queries commit.

    Unless `quiet`, print the lines that must be there before the session starts.
    """
    from connector.acknowledging import install

    install(spark)
    for setting in SETTINGS:
        if setting.at_run_time:
            spark.conf.set(setting.name, setting.value)
    missing = [
        setting for setting in SETTINGS if not setting.at_run_time and spark.conf.get(setting.name, "") != setting.value
    ]
    if missing and not quiet:
        print("# To be set before the session starts, for example in spark-defaults.conf:")  # noqa: T201
        for setting in missing:
            print(f"{setting.name} {setting.value}  # {setting.reason}")  # noqa: T201
    return spark
