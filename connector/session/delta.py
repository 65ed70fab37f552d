"""What a Spark session of this host needs for Delta's tables: the jars that fit its version, an extension, a catalog.

Databricks and EMR bring their own; there none of this is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files, version

from pyspark_ledger.ledger.errors import Unavailable

PACKAGES = "spark.jars.packages"
_SCALA = "2.13"


def delta_settings() -> Mapping[str, str]:
    """The settings, by name; Unavailable where delta-spark, whose version they follow, is not installed."""
    try:
        delta = version("delta-spark")
    except PackageNotFoundError:
        raise Unavailable(
            "delta-spark is not installed here, so its version is not known",
            hint="pip install 'pyspark-ledger[delta]', or give the session Delta's jars as your platform does",
        ) from None
    spark = ".".join(version("pyspark").split(".")[:2])
    return {
        PACKAGES: f"io.delta:delta-spark_{spark}_{_SCALA}:{delta}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # A table's state in 50 tasks, as by default, takes a second of every commit on a laptop.
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def with_packages(settings: Mapping[str, str], conf: Mapping[str, object]) -> dict[str, object]:
    """Settings, and what goes before them: packages are those of both."""
    packages = [str(found) for found in (settings.get(PACKAGES), conf.get(PACKAGES)) if found]
    return {**settings, **conf, **({PACKAGES: ",".join(packages)} if packages else {})}


def s3a_settings() -> Mapping[str, str]:
    """What a session of this host needs to reach S3 as `s3a://…`: the jars that fit the Hadoop that came with Spark."""
    for file in files("pyspark") or ():
        found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", file.name)
        if found is not None:
            return {PACKAGES: f"org.apache.hadoop:hadoop-aws:{found[1]}"}
    raise Unavailable(
        "this Spark comes without Hadoop's client, so the version of its S3A is not known",
        hint="Give its jars by --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION",
    )
