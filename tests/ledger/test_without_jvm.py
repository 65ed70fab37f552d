"""Goal: formats, disk and crashes are tested without a JVM. Method: one is asked for here, and cannot be started."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path


def test_no_jvm_can_be_started_here() -> None:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    command = Path(spark.origin).parent / "bin" / "spark-submit"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "/dev/null/bin/java" in done.stderr
