"""A story of Spark for `test_spark_without_variables`: write, read, stream, acknowledge, in each of the given stores.

    python -m tests.rigs.bare_app FOLDER      reads FOLDER/given.json, writes FOLDER/result.json and what Spark shows

The folder then has the places where a secret could appear: `plans.txt`, `events/`, `checkpoints/`, `progress.json` and
`errors.txt`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pyspark_ledger import acknowledge, catch_up, configure, session

ROWS = 400
_PREFIXES = ("LEDGER_", "AWS_")


def variables() -> list[str]:
    return sorted(name for name in os.environ if name.startswith(_PREFIXES))


class VariablesSource(DataSource):
    """Source of the names of variables of the process that plans, and of the one that reads."""

    @classmethod
    def name(cls) -> str:
        return "variables"

    def schema(self) -> str:
        return "process string, names string"

    def reader(self, schema: Any) -> DataSourceReader:
        return _VariablesReader()


class _VariablesReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(",".join(variables()))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        yield "planner", partition.value
        yield "worker", ",".join(variables())


def started(folder: Path) -> SparkSession:
    (folder / "events").mkdir()
    return session(
        "bare",
        spark_master="local[2]",
        **{"spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "events").as_uri()},
        **{"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"},
    )


def environments(spark: SparkSession) -> dict[str, Any]:
    """Return the names of the variables that must be absent, by process."""
    spark.dataSource.register(VariablesSource)
    found = {row.process: row.names for row in spark.read.format("variables").load().collect()}
    jvm = [name for name in spark._jvm.System.getenv() if name.startswith(_PREFIXES)]
    conf = [name for name, _ in spark.sparkContext.getConf().getAll()]
    shipped = [name for name in conf if name == "spark.files" or name.startswith("spark.executorEnv.LEDGER")]
    return {**found, "jvm": ",".join(jvm), "driver": ",".join(variables()), "conf": shipped}


def plan(frame: DataFrame, folder: Path) -> None:
    with (folder / "plans.txt").open("a", encoding="utf-8") as file:
        file.write(frame._jdf.queryExecution().toString())


def story(spark: SparkSession, folder: Path, name: str, ledger: str) -> dict[str, Any]:
    """Write, read, stream, sink and acknowledge in the session's default store."""
    bills = f"{ledger}-bills"
    rows = spark.range(ROWS).selectExpr("id", "uuid() AS text").coalesce(1)
    rows.write.format("ledger").mode("append").save(ledger)
    frame = spark.read.format("ledger").option("mapping", "off").load(ledger)
    plan(frame.where(f"text <> '{ledger}'"), folder)
    read = spark.readStream.format("ledger").option("subscription", "billing").option("startingPosition", "earliest")
    write = read.load(ledger).writeStream.format("ledger").queryName(name)
    write = write.option("checkpointLocation", str(folder / "checkpoints" / name)).trigger(availableNow=True)
    query = write.start(bills)
    ended = catch_up(query, 240)
    with (folder / "progress.json").open("a", encoding="utf-8") as file:
        file.write(json.dumps([json.loads(progress.json) for progress in query.recentProgress]))
    sold = spark.read.format("ledger").option("includeMetadata", "true").load(bills)
    plan(sold, folder)
    spark.read.format("ledger").load(bills).createOrReplaceTempView("bills")
    explicit = spark.readStream.format("ledger").option("subscription", "audit").option("ackMode", "explicit")
    audited: list[int] = []

    def audit(batch: DataFrame, _number: int) -> None:
        audited.append(batch.count())
        acknowledge(batch, bills, "audit")

    auditing = explicit.option("startingPosition", "earliest").load(bills).writeStream.foreachBatch(audit)
    auditing = auditing.option("checkpointLocation", str(folder / "checkpoints" / f"{name}-audit"))
    auditing.trigger(availableNow=True).start().awaitTermination(240)
    cursors = spark.read.format("ledger").option("table", "cursors").load().collect()
    return {
        "read": frame.count(),
        "sold": sold.count(),
        "in SQL": spark.sql("SELECT count(*) FROM bills").first()[0],
        "caught up": bool(ended),
        "audited": sum(audited),
        "backlogs": {
            row["cursor"]: row["backlogRows"] for row in cursors if row["ledger"].rpartition("/")[2].startswith(ledger)
        },
    }


def failures(spark: SparkSession, folder: Path, wrong: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Read with wrong options, and return the errors. They are also written with their traces."""
    errors = {}
    for name, given in wrong.items():
        options = dict(given)
        ledger = options.pop("path")
        try:
            errors[name] = f"no error: {spark.read.format('ledger').options(**options).load(ledger).count()} rows"
        except Exception as error:  # noqa: BLE001 — the errors are the result
            errors[name] = str(error)
            with (folder / "errors.txt").open("a", encoding="utf-8") as file:
                file.write(f"{name}: {error!r}\n{traceback.format_exc()}\n")
    return errors


def main(folder: Path) -> None:
    given = json.loads((folder / "given.json").read_text(encoding="utf-8"))
    spark = started(folder)
    found: dict[str, Any] = {"environments": environments(spark)}
    for name, options in given["stores"].items():
        configure(spark, store=options.pop("store"), options=options)
        found[name] = story(spark, folder, name, f"{given['mark']}-{name}")
        if name == "bucket":  # the tasks reach the bucket themselves
            alone = spark.read.format("ledger").option("broker", "none").load(f"{given['mark']}-bucket")
            found["without broker"] = alone.count()
    encrypted = spark.read.format("ledger").options(**given["encrypted"]).load()
    plan(encrypted, folder)
    found["decrypted"] = encrypted.count()
    found["errors"] = failures(spark, folder, given["wrong"])
    spark.stop()
    (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
