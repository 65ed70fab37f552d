"""Report on a platform: tries what Databricks, EMR or a container may forbid, on this host and in one task.

    from pyspark_ledger.connector.doctor.platform import probe_platform
    print(probe_platform(spark))

Rules
- No check raises an error. The job of one task ends within thirty seconds.
- The report contains no secret and no value of an environment variable.
- The function of the task is pickled with its code, and needs only the standard library. Reason: a task may lack this
  package.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS, _TASK_SECONDS = 2.0, 30.0  # the first task waits until an executor and Python start
_CHILD = (sys.executable or "python3", "-I", "-S", "-c", "")


@dataclass(frozen=True, slots=True)
class PlatformReport:
    """Diagnoses of a platform. `str()` returns them as the text of a report."""

    findings: tuple[Diagnosis, ...]

    def __str__(self) -> str:
        return "\n".join(line for finding in self.findings for line in finding.lines())


def probe_platform(
    spark: SparkSession | None = None,
    *,
    conf: Mapping[str, str] | None = None,
) -> PlatformReport:
    """Return a report on the platform of the driver and of one task.

    Without `spark` the report uses the active session, else a new session with `conf`, which it stops at the end.
    """
    try:
        from pyspark_ledger.connector.spark_features import is_connect  # here, as Spark may be missing

        with _probed_session(spark, conf or {}) as session:
            there = [*_check_session(session)]
            kind = "Spark Connect" if is_connect(session) else "a session of the driver"
    except Exception as error:  # noqa: BLE001  # Spark may be missing, and the platform may raise anything
        do = "Call probe_platform(spark) in a notebook, or give the session's settings with --conf NAME=VALUE"
        there = [Diagnosis("task", "warning", f"there is no session, so no task was tested: {_text(error)}", do)]
        kind = "no session"
    return PlatformReport(
        (Diagnosis("platform", "ok", f"{kind}, pyspark-ledger {__version__}"), check_process(), *there)
    )


def check_process(command: tuple[str, ...] = _CHILD) -> Diagnosis:
    """Test whether a detached child process starts and ends, as a broker must."""
    try:
        subprocess.run(command, cwd="/", start_new_session=True, capture_output=True, timeout=_SECONDS, check=True)  # noqa: S603 — our own program
    except (OSError, subprocess.SubprocessError) as error:
        do = "Run `ledger serve` on another host, and name its address as the store"
        return Diagnosis("background process", "problem", _text(error), do)
    return Diagnosis("background process", "ok", "a detached process starts and ends")


@contextmanager
def _probed_session(spark: SparkSession | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield `spark`, else the active session, else a new session with `conf`, which is stopped at the end."""
    from pyspark.sql import SparkSession

    given = spark or SparkSession.getActiveSession()
    if given is not None:
        yield given
        return
    builder = SparkSession.builder
    for name, value in {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **conf}.items():
        builder = builder.config(name, value)
    created = builder.getOrCreate()
    try:
        yield created
    finally:
        created.stop()


def _check_session(spark: SparkSession) -> Iterator[Diagnosis]:
    """Run one task, which states its Python and package, and connects to this process."""
    from pyspark_ledger.connector.doctor.checks import check_spark_version

    yield check_spark_version(str(spark.version))
    try:
        host = spark.conf.get("spark.driver.host", None) or socket.getfqdn()  # as `serve` chooses it
        with _listener(host) as (port, heard):
            facts = ask_task(spark, host, port)
    except Exception as error:  # noqa: BLE001  # the session or the platform may raise anything
        do = "Run `ledger doctor` for the interpreters, look at the executors' logs, or call serve(spark, host=…)"
        yield Diagnosis("task", "problem", _text(error), do)
        return
    yield Diagnosis("task", "ok", "a Python function ran in a task")
    do = "Set PYSPARK_PYTHON to the same version on every host"
    yield compare("python", ".".join(map(str, sys.version_info[:2])), facts["python"], do)
    do = "Install the driver's version of pyspark-ledger on every host, or ship it (spark.submit.pyFiles)"
    yield compare("package in a task", __version__, facts["package"], do)
    do = "Open a port: serve(spark, host=…, port=…). Or run `ledger serve` on a host that tasks reach"
    reached = facts["refused"] or ("reached" if heard.is_set() else "another listener answered")
    yield compare("driver's address", f"{host} reached", f"{host} {reached}", do)


def compare(check: str, expected: str, found: str, do: str) -> Diagnosis:
    """Compare what a task found with what the driver has."""
    if found == expected:
        return Diagnosis(check, "ok", found)
    return Diagnosis(check, "problem", f"{found}, expected {expected}", do)


def ask_task(spark: SparkSession, host: str, port: int, seconds: float = _TASK_SECONDS) -> dict[str, str]:
    """Return the Python and the package of one task, and why it did not reach `host` and `port`.

    Raises TimeoutError after `seconds`, and then interrupts the job. Raises Spark's errors.
    """
    tag = f"ledger-doctor-{new_id()}"
    answers: list[dict[str, str] | BaseException] = []

    def task_facts(_: int) -> str:
        facts = {"python": ".".join(map(str, sys.version_info[:2])), "refused": ""}
        try:
            import pyspark_ledger

            facts["package"] = pyspark_ledger.__version__
        except BaseException as error:  # noqa: BLE001  # also SystemExit: the task must answer
            facts["package"] = type(error).__name__
        try:
            socket.create_connection((host, port), 2.0).close()
        except OSError as error:
            facts["refused"] = str(error.strerror or error)
        return json.dumps(facts)

    def ask() -> None:
        from pyspark.sql.functions import udf

        try:
            with suppress(Exception):  # if this Spark has no tags, a late job is not interrupted
                spark.addTag(tag)
            frame = spark.range(0, 1, 1, 1)
            (row,) = frame.select(udf(task_facts, "string", useArrow=False)(frame.id)).collect()
            answers.append(json.loads(row[0]))
        except BaseException as error:  # noqa: BLE001  # also SystemExit, which Spark Connect raises without pandas
            answers.append(error)

    thread = threading.Thread(target=ask, name="ledger-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        with suppress(Exception):
            spark.interruptTag(tag)
        raise TimeoutError(f"no answer within {seconds:g} s")
    if isinstance(answers[0], BaseException):
        raise RuntimeError(_text(answers[0])) from answers[0]  # noqa: TRY004 — an error of the task, not of a type
    return answers[0]


@contextmanager
def _listener(host: str) -> Iterator[tuple[int, threading.Event]]:
    """Listen at a free port of `host`. The event is set by a connection. Raises OSError for another host."""
    heard = threading.Event()
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(_TASK_SECONDS)

        def answer() -> None:
            with suppress(OSError):  # nobody connected in time, or the listener is closed
                listener.accept()[0].close()
                heard.set()

        thread = threading.Thread(target=answer, name="ledger-doctor", daemon=True)
        thread.start()
        yield int(listener.getsockname()[1]), heard
        thread.join(_SECONDS if not heard.is_set() else None)


def _text(error: BaseException) -> str:
    """Return an error in one line: its class, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:240]
