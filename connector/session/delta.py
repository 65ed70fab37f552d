"""Settings of a local Spark session for Delta tables: jars of the right version, an extension, a catalog.

Databricks and EMR have their own Delta and need none of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files, version

from pyspark_ledger.ledger.errors import Unavailable

PACKAGES = "spark.jars.packages"
_SCALA = "2.13"


def delta_settings() -> Mapping[str, str]:
    """Return the settings, by name. Raises Unavailable without delta-spark, whose version they follow."""
    try:
        delta = version("delta-spark")
    except PackageNotFoundError:
        raise Unavailable(
            "delta-spark is not installed here, so its version is not known",
            hint="pip install 'pyspark-ledger[delta]', or give the session Delta's jars as your platform does",
        ) from None
    return {
        PACKAGES: f"io.delta:{_artifact(delta)}:{delta}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # By default Delta computes a table's state in 50 tasks, which takes a second of every commit on a laptop.
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def _artifact(delta: str) -> str:
    """Return the name of Delta's artifact. Since Delta 4.1 there is one for each release line of Spark."""
    if delta.startswith("4.0."):
        return f"delta-spark_{_SCALA}"
    spark = ".".join(version("pyspark").split(".")[:2])
    return f"delta-spark_{spark}_{_SCALA}"


def with_packages(settings: Mapping[str, str], conf: Mapping[str, object]) -> dict[str, object]:
    """Return settings with overrides. Packages of both are joined."""
    packages = [str(found) for found in (settings.get(PACKAGES), conf.get(PACKAGES)) if found]
    return {**settings, **conf, **({PACKAGES: ",".join(packages)} if packages else {})}


def s3a_settings() -> Mapping[str, str]:
    """Return the settings of a local session for `s3a://…`: the jars that fit Spark's Hadoop."""
    for file in files("pyspark") or ():
        found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", file.name)
        if found is not None:
            return {PACKAGES: f"org.apache.hadoop:hadoop-aws:{found[1]}"}
    raise Unavailable(
        "this Spark comes without Hadoop's client, so the version of its S3A is not known",
        hint="Give its jars by --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION",
    )
