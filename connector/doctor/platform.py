"""Report on a platform: it tries what Databricks, EMR or a container may forbid.

    from pyspark_ledger.connector.doctor.platform import probe_platform
    print(probe_platform(spark))

Rules
- No check raises an error. Each check has a deadline, and removes everything that it created.
- The report contains no secret and no value of an environment variable.
- The checks of the driver come first, because they need no session. They use only the standard library, because
  packages may be missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.doctor import tested_versions
from pyspark_ledger.connector.doctor.deadline import error_text, within
from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.connector.doctor.hosting import DATABRICKS, check_disk, existing, platform_name
from pyspark_ledger.connector.doctor.platform_probe import (
    SECONDS,
    probe_descriptor,
    probe_process,
    probe_shared_memory,
    probe_unix_socket,
)
from pyspark_ledger.connector.doctor.spark_probe import (
    EchoListener,
    ask_source,
    ask_task,
    driver_host,
    probed_session,
)
from pyspark_ledger.connector.doctor.task_probe import listed
from pyspark_ledger.connector.session.listeners import is_connect
from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.ownership import run_directory_path
from pyspark_ledger.ledger.version import __version__
from pyspark_ledger.offload.storage.address import ObjectAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_S3_SECONDS = 5.0  # imports of boto3, a search for credentials, and a request of `SECONDS`


@dataclass(frozen=True, slots=True)
class PlatformReport:
    """Diagnoses of a platform. `str()` returns them as the text of a report."""

    findings: tuple[Diagnosis, ...]

    def __str__(self) -> str:
        return "\n".join(line for finding in self.findings for line in finding.lines())


@dataclass(frozen=True, slots=True)
class PlatformQuestion:
    """Arguments of `probe_platform`. `location` is the store, `bucket` is empty or `s3://bucket/prefix`."""

    environ: Mapping[str, str]
    location: str
    bucket: str
    endpoint: str
    clock: Clock


def probe_platform(
    spark: SparkSession | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    bucket: str = "",
    endpoint: str = "",
    conf: Mapping[str, str] | None = None,
    clock: Clock = monotonic_ms,
) -> PlatformReport:
    """Return a report on the platform of the driver and of one task.

    Without `spark` the report uses the active session. Without an active session it starts a session with `conf`, and
    stops it at the end.
    """
    location = _tried(lambda: store_location(store), str(store or ""))
    question = PlatformQuestion(os.environ, location, bucket, endpoint, clock)
    driver = [*_of_driver(question)]
    with probed_session(spark, conf or {}) as (session, why):
        tasks = [*_of_session(session, question)] if session is not None else [_no_session(why)]
        connect = session is not None and is_connect(session)
    name = platform_name(os.environ, connect)
    kind = "no session" if session is None else "Spark Connect" if connect else "a session of the driver"
    found = f"{name} (a guess), {kind}, pyspark-ledger {__version__}"
    return PlatformReport((Diagnosis("platform", "ok", found), *driver, *tasks))


def _tried(call: Callable[[], str], otherwise: str) -> str:
    try:
        return call()
    except Exception:  # noqa: BLE001  # other checks report errors of the store
        return otherwise


def _of_driver(question: PlatformQuestion) -> Iterator[Diagnosis]:
    """Run the checks of the driver's host, which need no session."""
    yield probe_process()
    run = run_directory_path()
    do = "Nothing to do: the broker of a directory then listens at a port on loopback, and requires a token of its user"
    yield probe_unix_socket("socket of the broker", existing(run), "warning", do)
    if "://" not in question.location:
        yield _disk(Path(question.location))
    yield probe_shared_memory()
    yield probe_descriptor()
    if question.bucket:
        do = "The broker offloads with the credentials of this environment: see docs/tiered-storage.md"
        yield _bucket("S3 from the driver", _listed_here(question), do)


def _disk(store: Path) -> Diagnosis:
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
        return within(SECONDS, lambda: check_disk(store, mounts))
    except Exception as error:  # noqa: BLE001  # a platform may hide its mounts
        return Diagnosis("store's disk", "warning", error_text(error), "Check whether the disk outlives the cluster")


def _listed_here(question: PlatformQuestion) -> str:
    name, prefix = _bucket_parts(question.bucket)
    if not name:
        return "the address is not of the form s3://bucket/prefix"
    try:
        return within(_S3_SECONDS, lambda: listed(name, prefix, question.endpoint, SECONDS))
    except Exception as error:  # noqa: BLE001  # the report goes on
        return error_text(error)


def _bucket_parts(address: str) -> tuple[str, str]:
    """Return the name and the prefix of `s3://name/prefix`. The name is empty if the address is not of this form."""
    try:
        parsed = ObjectAddress.parse(address)
    except LedgerError:
        return "", ""
    return parsed.bucket, parsed.prefix


def _bucket(check: str, error: str, do: str) -> Diagnosis:
    return Diagnosis(check, "problem", error, do) if error else Diagnosis(check, "ok", "the bucket can be listed")


def _no_session(why: str) -> Diagnosis:
    do = "Call probe_platform(spark) in a notebook, or give the session's settings with --conf NAME=VALUE"
    return Diagnosis("task", "warning", f"there is no session, so no task was tested: {why}", do)


def _of_session(spark: SparkSession, question: PlatformQuestion) -> Iterator[Diagnosis]:
    """Run the checks of a session and of one task."""
    yield from _spark(spark)
    host, listener, refused = driver_host(spark), None, ""
    try:
        listener = within(SECONDS, lambda: EchoListener(host))
    except Exception as error:  # noqa: BLE001  # the host name is another machine's, or the platform forbids listeners
        refused = error_text(error)
    try:
        began = question.clock()
        facts = ask_task(spark, _task_question(question, host, listener))
        seconds = (question.clock() - began) / 1000
    except Exception as error:  # noqa: BLE001  # the session or the platform may raise anything
        do = "Run `ledger doctor` for the interpreters, and look at the executors' logs"
        yield Diagnosis("task", "problem", error_text(error), do)
    else:
        yield Diagnosis("task", "ok", f"a Python function ran in a task, with an answer after {seconds:.1f} s")
        yield from _of_task(facts)
        yield check_address(host, refused, facts["reached"], echoed=listener is not None and listener.echoed.is_set())
    finally:
        if listener is not None:
            listener.close()
    yield check_credentials(spark, platform_name(question.environ, is_connect(spark)))


def _spark(spark: SparkSession) -> Iterator[Diagnosis]:
    try:
        from pyspark_ledger.connector.doctor.checks import check_features, check_spark_version

        yield check_spark_version(within(SECONDS, lambda: str(spark.version)))
        from pyspark_ledger.connector.spark_features import spark_features

        yield check_features(spark_features())
    except Exception as error:  # noqa: BLE001  # this Spark lacks the call, or does not answer
        do = f"This release is tested with {', '.join(tested_versions.spark_versions())}"
        yield Diagnosis("spark", "warning", error_text(error), do)


def _task_question(question: PlatformQuestion, host: str, listener: EchoListener | None) -> dict[str, Any]:
    name, prefix = _bucket_parts(question.bucket)
    port = listener.port if listener else 0
    asked = {"host": host, "port": port, "bucket": name, "prefix": prefix, "endpoint": question.endpoint}
    return {**asked, "seconds": SECONDS}


def _of_task(facts: Mapping[str, Any]) -> Iterator[Diagnosis]:
    yield check_python(list(sys.version_info[:3]), facts["python"])
    yield check_package(facts["ledger"])
    if facts["listed"] is not None:
        do = "A task that reads a bucket searches credentials on its own host: a role, or the option credentialProvider"
        yield _bucket("S3 from a task", facts["listed"], do)


def check_python(ours: list[int], theirs: list[int]) -> Diagnosis:
    """Compare the driver's Python with the Python of a task."""
    found = f"the driver has {'.'.join(map(str, ours))}, a task {'.'.join(map(str, theirs))}"
    if ours[:2] != theirs[:2]:
        return Diagnosis("python", "problem", found, "Set PYSPARK_PYTHON to the same version on every host")
    return Diagnosis("python", "ok", found)


def check_package(imported: Mapping[str, str]) -> Diagnosis:
    """Check that a task imports this package, in the driver's version."""
    check = "package in a task"
    do = "Install the driver's version of pyspark-ledger on every host, or ship it (spark.submit.pyFiles)"
    if "error" in imported:
        return Diagnosis(check, "problem", f"pyspark_ledger is not imported: {imported['error']}", do)
    if imported["version"] != __version__:
        return Diagnosis(check, "problem", f"pyspark-ledger is {imported['version']}, here {__version__}", do)
    return Diagnosis(check, "ok", f"pyspark-ledger is {__version__}")


def check_address(host: str, refused: str, failed: str | None, *, echoed: bool) -> Diagnosis:
    """Check the connection from a task to the driver.

    `refused` says why the driver could not listen, `failed` why the task got no answer. Both are empty otherwise.
    """
    check = "driver's address"
    if refused:
        do = "Call serve(spark, host=…) with a name of this host, or set the store to a broker that tasks reach"
        return Diagnosis(check, "problem", f"this process cannot listen at {host}: {refused}", do)
    if failed or not echoed:
        do = "Open a port: serve(spark, host=…, port=…). Or run `ledger serve` on a host that tasks reach"
        return Diagnosis(check, "problem", f"a task does not reach {host}: {failed or 'no token came back'}", do)
    return Diagnosis(check, "ok", f"a task reaches a listener at {host}")


def check_credentials(spark: SparkSession, platform: str) -> Diagnosis:
    """Check whether a Python source imports Unity Catalog's provider of credentials."""
    check = "Unity Catalog"
    if not platform.startswith(DATABRICKS):
        return Diagnosis(check, "ok", "not Databricks")
    do = "Use the option offloadProfile, a role of the instance, or a credentialProvider of your own"
    try:
        errors = dict(zip(("the planner", "a task"), ask_source(spark), strict=True))
    except Exception as error:  # noqa: BLE001  # the session or the platform may raise anything
        return Diagnosis(check, "problem", f"no Python source can be read: {error_text(error)}", do)
    failed = [f"{where} ({error})" for where, error in errors.items() if error]
    if failed:
        found = f"databricks.service_credentials is not imported by {' and '.join(failed)} of a source"
        return Diagnosis(check, "warning", found, do)
    return Diagnosis(check, "ok", "planner and tasks of a Python source import databricks.service_credentials")
