"""Features of the running Spark. Only this module knows how releases of Spark differ.

    feature              is present if Spark has                                    in Apache Spark since
    arrow stream writer  class DataSourceStreamArrowWriter                          4.1
    admission control    module pyspark.sql.streaming.datasource                    4.2
    progress report      method DataSourceStreamReader.reportLatestOffset           4.2

Rules
- The version number of Spark is not used. Reason: platforms such as Databricks add features of newer releases to older
  releases.
- This module or `connector.read.stream_reader` replaces a missing feature.
- *Admission control* means that Spark passes the start and the limits of a batch to `latestOffset`. Without it, Spark
  4.0.5 and 4.1.4 call a source in this order:
  - without a checkpoint: `latestOffset()`, `initialOffset()`, `partitions(initial, end)`.
  - with a checkpoint: `partitions(newest, newest)` with the newest logged offset, and only then `latestOffset()`.
  - with an unfinished batch: `partitions(newest, newest)`, `partitions(start, newest)`, and then `latestOffset()`.
- If Spark has a checkpoint, but still calls `latestOffset()` first, the source refuses the batch when Spark plans it.
  Reason: the batch would be empty, or would repeat rows.
- Spark 4.0 refuses to register a source under the name of a discovered source. `register_source` replaces the
  discovered source.
- Without admission control, Spark runs Trigger.AvailableNow as Trigger.Once: one batch, whose end is determined at the
  start of the query.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import datasource

from pyspark_ledger.ledger.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

try:
    admission: Any = import_module("pyspark.sql.streaming.datasource")
except ImportError:
    admission = None


@dataclass(frozen=True, slots=True)
class SparkFeatures:
    """Features of one Spark that this package uses."""

    arrow_stream_writer: bool
    admission_control: bool
    progress_report: bool

    @property
    def missing(self) -> list[str]:
        """Names of the features that this Spark lacks."""
        return [field.name for field in fields(self) if not getattr(self, field.name)]


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect, whose process is a client."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def spark_features() -> SparkFeatures:
    """Return the features of the imported pyspark."""
    return SparkFeatures(
        arrow_stream_writer=hasattr(datasource, "DataSourceStreamArrowWriter"),
        admission_control=admission is not None,
        progress_report=hasattr(datasource.DataSourceStreamReader, "reportLatestOffset"),
    )


def stream_reader_classes() -> tuple[type, ...]:
    """Return the base classes of a stream reader.

    One of them declares support for Trigger.AvailableNow, if this Spark has admission control.
    """
    if admission is None:
        return (datasource.DataSourceStreamReader,)
    return (datasource.DataSourceStreamReader, admission.SupportsTriggerAvailableNow)


def stream_writer_classes() -> tuple[type, ...]:
    """Return the base classes of a streaming sink that receives Arrow batches.

    A Spark without DataSourceStreamArrowWriter passes Arrow batches to a streaming sink that is also a
    DataSourceArrowWriter.
    """
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        return (datasource.DataSourceStreamArrowWriter,)
    return (datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter)


def register_source(spark: SparkSession, source: type[datasource.DataSource]) -> None:
    """Register a source with a session. It replaces a discovered source of the same name.

    Raises Unsupported if Spark 4.0 keeps the discovered source.
    """
    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        _replace_discovered(spark, source)


def _replace_discovered(spark: SparkSession, source: type[datasource.DataSource]) -> None:
    """Replace a source that Spark 4.0 has discovered, in this session and in later sessions of its JVM.

    Spark has no call for this, so the function changes two maps of discovered sources: the session's map and the JVM's
    map. A stream runs in a copy of its session, and the copy uses the JVM's map.
    """
    from pyspark.sql.udf import _wrap_function

    package = "org.apache.spark.sql.execution.datasources"
    try:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
        wrapped = _wrap_function(spark.sparkContext, source)
        builder = getattr(jvm, f"{package}.v2.python.UserDefinedPythonDataSource")(wrapped)
        manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
        field = manager.getClass().getDeclaredField("staticDataSourceBuilders")
        field.setAccessible(True)
        builders = field.get(manager).updated(source.name(), builder)
        field.set(manager, builders)
        shared = getattr(getattr(jvm, f"{package}.DataSourceManager$"), "MODULE$")
        getattr(shared, "dataSourceBuilders_$eq")(jvm.scala.Option.apply(builders))
    except Exception as error:  # with Spark Connect, or with another build of Spark
        raise Unsupported(
            "Spark 4.0 keeps the source that it has discovered, so this session cannot have a default store",
            hint="Give option 'store' (and the options for its broker) to each read and write",
        ) from error
