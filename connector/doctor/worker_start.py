"""Time that an interpreter needs until it can connect to Spark. Spark waits ten seconds, and no setting changes this.

If such a process ends early or is slow, Spark raises "Python worker failed to connect back". A process ends early if
its interpreter lacks a package. It is slow if the host is overloaded. The limit applies to the process that drives a
stream. If `spark.python.use.daemon` is false, the limit also applies to every worker.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.ledger.clock import monotonic_ms

SPARK_WAITS_SECONDS = 10
MESSAGE = "Python worker failed to connect back"
_SLOW_SECONDS = 3.0
_LIMIT_SECONDS = 60
_CODE = "import pyspark.sql.streaming.python_streaming_source_runner"
_DO = (
    "Leave a processor free (spark.master local[N] with N below the number of processors), start fewer queries at "
    "once, and keep Python on a local disk with its bytecode (PYTHONDONTWRITEBYTECODE unset). A query that failed with "
    "this error has lost nothing: start it again"
)


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """Times of a process until its connection. `error` is the last line that it printed, if it ended early."""

    seconds: float
    processor_seconds: float
    error: str = ""


def timed_start(python: str, directory: Path, environ: Mapping[str, str]) -> WorkerStart:
    """Start an interpreter as Spark does for a stream, import the modules that Spark imports, and end it."""
    before, began = _children_seconds(), monotonic_ms()
    error = ""
    try:
        done = subprocess.run(  # noqa: S603  # the interpreter that Spark would start
            [python, "-c", _CODE],
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            error = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        error = f"it is not ready after {_LIMIT_SECONDS} s"
    return WorkerStart((monotonic_ms() - began) / 1000, _children_seconds() - before, error)


def check_start(start: WorkerStart, conf: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Check whether the start is faster than Spark's limit, and whether the limit applies to every worker."""
    check = "start of a worker"
    waits = f"Spark waits {SPARK_WAITS_SECONDS} s, then says '{MESSAGE}'"
    if start.error:
        do = "Install what is missing for that interpreter, or set PYSPARK_PYTHON to an interpreter that has it"
        yield Diagnosis(check, "problem", f"it ends before it connects: {start.error}; {waits}", do)
        return
    took = f"ready after {start.seconds:.1f} s, {start.processor_seconds:.1f} s of them processor time; {waits}"
    if start.seconds < _SLOW_SECONDS:
        yield Diagnosis(check, "ok", took)
    else:
        yield Diagnosis(check, "warning", took, _DO)
    if conf.get("spark.python.use.daemon", "true").lower() == "false":
        do = "Unset it: with the daemon the limit applies only to the process that drives a stream"
        yield Diagnosis(
            check, "warning", f"spark.python.use.daemon is false, so Spark starts each worker directly; {waits}", do
        )


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
