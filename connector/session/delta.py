"""Settings of a local Spark session for Delta tables: jars of the right version, an extension, a catalog.

Databricks and EMR have their own Delta and do not need these settings. The names of the jars depend on the versions of
Delta and Spark. So the package `delta-spark` computes the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import files, version

from pyspark_ledger.ledger.errors import Unavailable

PACKAGES = "spark.jars.packages"


def delta_settings() -> Mapping[str, str]:
    """Return the settings by name. Raises Unavailable if delta-spark is not installed."""
    try:
        version("delta-spark")  # checked first, because the library itself raises a plain Exception
        from delta import configure_spark_with_delta_pip
    except ImportError:
        raise Unavailable(
            "delta-spark is not installed here, so its version is not known",
            hint="pip install 'pyspark-ledger[delta]', or give the session Delta's jars as your platform does",
        ) from None
    from pyspark.sql import SparkSession

    # pyspark has no public way to read a builder's settings. The caller needs them before the session exists.
    named = configure_spark_with_delta_pip(SparkSession.Builder())._options[PACKAGES]  # noqa: SLF001
    return {
        PACKAGES: named,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # By default Delta computes a table's state in 50 tasks, which takes a second of every commit on a laptop.
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def with_packages(settings: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """Return `settings` overridden by `conf`. The lists of jars of both are joined."""
    packages = [found for found in (settings.get(PACKAGES), conf.get(PACKAGES)) if found]
    return {**settings, **conf, **({PACKAGES: ",".join(packages)} if packages else {})}


def s3a_settings() -> Mapping[str, str]:
    """Return the settings of a local session for `s3a://…` (Spark's addresses of S3): jars that fit Spark's Hadoop."""
    for file in files("pyspark") or ():
        found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", file.name)
        if found is not None:
            return {PACKAGES: f"org.apache.hadoop:hadoop-aws:{found[1]}"}
    raise Unavailable(
        "this Spark has no Hadoop client, so the version of its S3A is not known",
        hint="Name the jars with --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION",
    )
