"""Goal: executors without an installed package run from a packed environment, or from a zip file as `--py-files`.

Method: `spark-submit` to a standalone cluster whose workers are in network namespaces. Driver and tasks run the
interpreter of the packed archive, never the environment of the tests. Takes about three minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rigs import cluster as rig

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20_000
APP = f"""
import json, sys
from pyspark.sql import SparkSession
import pyspark_ledger
from pyspark_ledger import serve

spark = SparkSession.builder.appName("delivered").getOrCreate()
served = serve(spark, "store")
spark.range(0, {ROWS}, 1, 4).withColumnRenamed("id", "n").write.format("ledger").mode("append").save("orders")
rows = spark.readStream.format("ledger").option("startingPosition", "earliest").load("orders")
write = rows.writeStream.format("ledger").option("checkpointLocation", "checkpoint")
write.trigger(availableNow=True).start("copied").awaitTermination()
total, count = spark.read.format("ledger").load("copied").selectExpr("sum(n)", "count(*)").first()

def place(_):
    import pyspark_ledger
    return pyspark_ledger.__file__, sys.prefix

found = spark.sparkContext.parallelize(range(4), 4).map(place).distinct().collect()
print("RESULT", json.dumps({{
    "total": total, "count": count, "driver": pyspark_ledger.__file__, "tasks": [list(row) for row in found],
}}))
served.stop()
spark.stop()
"""


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Run a command to its end, and return its output. Its whole process group is killed after the deadline."""
    with (cwd / "out").open("wb") as out, (cwd / "err").open("wb") as err:
        process = subprocess.Popen(
            command, cwd=cwd, env={**clean_environment(), **environment}, stdout=out, stderr=err, start_new_session=True
        )
    try:
        status = process.wait(240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert status == 0, (cwd / "err").read_text(encoding="utf-8", errors="replace")[-4000:]
    return (cwd / "out").read_text(encoding="utf-8")


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables by which Python or Spark would find this checkout."""
    mine = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "LEDGER_STORE")
    return {name: value for name, value in os.environ.items() if name not in mine}


@pytest.fixture(autouse=True)
def _no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the workers from finding this checkout."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed environment, and beside it the wheel in `dist`."""
    folder = tmp_path_factory.mktemp("packed")
    wheel = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", str(ROOT))
    run(sys.executable, *wheel, cwd=folder)
    (built,) = (folder / "dist").glob("*.whl")
    base = str(Path(sys.base_prefix) / "bin" / "python3")
    run(str(ROOT / "deploy" / "pack_environment.sh"), f"{built}[crypto]", "environment.tar.gz", cwd=folder, PYTHON=base)
    return folder / "environment.tar.gz"


def submitted(folder: Path, cluster: rig.Cluster, *words: str, **environment: str) -> dict:
    """Return the result of the application, submitted from `folder`, with the unpacked environment on the driver."""
    (folder / "app.py").write_text(APP, encoding="utf-8")
    conf = {
        "spark.driver.host": cluster.host, "spark.driver.bindAddress": cluster.host, "spark.executor.memory": "512m",
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "in-memory",
    }  # fmt: skip
    command = [str(rig.SPARK / "bin" / "spark-submit"), "--master", cluster.master]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    python = "./environment/bin/python"
    said = run(*command, *words, "app.py", cwd=folder, PYSPARK_PYTHON=python, SPARK_HOME=str(rig.SPARK), **environment)
    found: dict = json.loads(said.partition("RESULT")[2])
    assert (found["total"], found["count"]) == (ROWS * (ROWS - 1) // 2, ROWS)
    return found


def unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    run("tar", "-xzf", str(archive), "-C", str(folder), cwd=folder.parent)


@pytest.mark.slow
@pytest.mark.spark
def test_a_packed_environment_brings_everything_to_executors(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path / "environment")
    with rig.cluster(tmp_path) as cluster:
        found = submitted(tmp_path, cluster, "--archives", f"{archive}#environment")
    assert found["driver"].startswith(str(tmp_path / "environment"))
    assert found["tasks"]
    for place, prefix in found["tasks"]:
        assert "/work" in place, "the executor's directory"
        assert place.startswith(prefix)


@pytest.mark.slow
@pytest.mark.spark
def test_a_zip_as_py_files_meets_installed_requirements(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path / "environment")
    python = str(tmp_path / "environment" / "bin" / "python")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pyspark-ledger", cwd=tmp_path)
    run("tar", "-czf", "requirements.tar.gz", "-C", str(tmp_path / "environment"), ".", cwd=tmp_path)
    (wheel,) = (archive.parent / "dist").glob("*.whl")
    package = tmp_path / "pyspark_ledger.zip"  # Spark ignores the extension .whl
    package.write_bytes(wheel.read_bytes())
    words = ("--archives", "requirements.tar.gz#environment", "--py-files", str(package))
    with rig.cluster(tmp_path) as cluster:
        # Spark gives --py-files to tasks, and not to the processes that plan reads and writes on the driver.
        found = submitted(tmp_path, cluster, *words, PYTHONPATH=str(package))
    assert ".zip/" in found["driver"]
    assert all(".zip/" in place for place, _ in found["tasks"])
