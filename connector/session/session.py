"""Spark session with settings for Python data sources. A listener acknowledges each batch that its queries commit.

`conf/spark-defaults.conf` has the same settings for `spark-submit`. A test compares the two.

The data source works without these settings, but more slowly. Without the listener, the last batch of a query is
acknowledged only when the query starts again. If a running session cannot change a setting, `configure_session` prints
the setting as a line for `spark-defaults.conf`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


def local_session(app_name: str | None, conf: Mapping[str, object], *, delta: bool = False) -> SparkSession:
    """Return a session with these settings, or the running one. A new session is local unless its submit has a master.

    `conf` overrides the submit's settings, and these override the settings of this module. In `conf`, a name may have
    `_` for `.`.
    """
    from pyspark.sql import SparkSession

    from pyspark_ledger.connector.session.delta import PACKAGES, delta_settings, with_packages

    # Workers must run this interpreter. Spark's default is the `python3` of the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    given = {name if "." in name else name.replace("_", "."): str(value) for name, value in conf.items()}
    named = {} if app_name is None else {"spark.app.name": app_name}
    settings = {**named, **with_packages(delta_settings() if delta else {}, given)}
    with _downloads(settings.get(PACKAGES)):
        # `getOrCreate` would set the values of the builder in an existing session too, such as another catalog.
        remote = _remote_sessions()
        kept = remote is not None or _is_running() or _is_remote(settings)
        builder = SparkSession.builder if remote is None else remote.builder
        for name, value in (given if kept else _with_defaults(settings, _submitted(settings))).items():
            builder = builder.config(name, value)
        return configure_session(builder.getOrCreate(), quiet=True)


def _with_defaults(settings: Mapping[str, str], submitted: Mapping[str, str]) -> dict[str, str]:
    """Return `settings`, and the settings of this module that neither they nor the submit have stated."""
    local = {**submitted, **settings}.get("spark.master", "local").startswith("local")
    defaults = {setting.name: setting.value for setting in (*SETTINGS, *(LOCAL_SETTINGS if local else ()))}
    named = {"spark.master": "local[*]", "spark.app.name": "pyspark-ledger", **defaults}
    return {name: value for name, value in named.items() if name not in submitted} | dict(settings)


# Settings with which this process has started its JVM. They stay in the JVM when the session stops.
_started_with: dict[str, str] = {}


def _submitted(settings: Mapping[str, str]) -> dict[str, str]:
    """Start Spark's JVM, and return the settings of `spark-submit`, `PYSPARK_SUBMIT_ARGS` and `spark-defaults.conf`.

    The JVM gets `settings`, because it reads its memory and its packages while it starts.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is None:  # noqa: SLF001
        _started_with.update(settings)
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))  # noqa: SLF001
    # Without a program to submit, Spark names the application so.
    ours = {*_started_with.items(), ("spark.app.name", "pyspark-shell")}
    return {name: value for name, value in SparkConf().getAll() if (name, value) not in ours}


def _is_running() -> bool:
    """Return whether this process has a session, which may be active in another thread."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None or SparkContext._active_spark_context is not None  # noqa: SLF001


def _remote_sessions() -> type[SparkSession] | None:
    """Return Spark Connect's class of sessions if this process has such a session, and none of the driver beside it.

    Reason: `SparkSession.builder` asks for the address of the server, or starts a session of the driver.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql.utils import is_remote

    module: Any = sys.modules.get("pyspark.sql.connect.session")  # not imported: its packages may be missing
    if module is None or (not is_remote() and _is_running()):
        return None
    try:
        module.SparkSession.active()
    except PySparkRuntimeError:
        return None
    found: type[SparkSession] = module.SparkSession
    return found


def _is_remote(settings: Mapping[str, str]) -> bool:
    """Return whether the session is one of a server of Spark Connect, which has settings of its own."""
    from pyspark.sql.utils import is_remote

    return is_remote() or "SPARK_REMOTE" in os.environ or "spark.remote" in settings


@contextmanager
def _downloads(packages: object) -> Iterator[None]:
    """Raise Unavailable, which names the packages, if the JVM ends while it downloads them."""
    from pyspark.errors import PySparkRuntimeError

    try:
        yield
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
    from pyspark_ledger.connector.pipelines import is_definition_file
    from pyspark_ledger.connector.session.commit_listener import install

    install(spark)
    if is_definition_file():
        return spark  # its settings stand in the pipeline's file
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
