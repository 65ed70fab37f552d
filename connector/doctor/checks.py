"""Checks of everything that may keep Spark from finding or running the data source. Each diagnosis says what to do.

Rules
- The checks change nothing, and start no Spark session. They start the same interpreters as a session would.
- Spark reads and writes with the workers' Python. This interpreter is the first of these that is set:
  `spark.pyspark.python`, PYSPARK_PYTHON, `python3` on the path.
- Spark looks for data sources with the driver's Python. This interpreter is the first of these that is set:
  `spark.pyspark.driver.python`, PYSPARK_DRIVER_PYTHON, the workers' Python.
- If the search for data sources fails, Spark reports no error. So a check makes the same search.
- A check that passes also shows the value that it found, because the user may expect another value.
- Environment variables, settings and the directory are arguments, so that tests can set them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.doctor import tested_versions, worker_probe
from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.connector.doctor.store import check_store
from pyspark_ledger.connector.doctor.worker_start import MESSAGE, check_start, timed_start

if TYPE_CHECKING:
    from pyspark_ledger.connector.spark_features import SparkFeatures

_PROBE_SECONDS = 60
_SAYS = f"; a stream then fails with '{MESSAGE}'"
_JAVA_LEAST = 17


@dataclass(frozen=True, slots=True)
class SparkEnvironment:
    """Environment in which Spark would start. `conf` are settings of a session or of spark-defaults.conf."""

    environ: Mapping[str, str]
    directory: Path
    conf: Mapping[str, str]
    version: str

    def with_conf(self, conf: Mapping[str, str]) -> SparkEnvironment:
        return replace(self, conf=dict(conf))

    def defaults(self) -> dict[str, str]:
        home = self.spark_home
        given = self.environ.get("SPARK_CONF_DIR")
        directory = Path(given) if given else home / "conf" if home else None
        if directory is None or not (directory / "spark-defaults.conf").is_file():
            return {}
        lines = (directory / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
        words = (re.split(r"[\s=]+", line.strip(), maxsplit=1) for line in lines if line.strip())
        return {word[0]: word[1] for word in words if len(word) == 2 and not word[0].startswith("#")}

    @property
    def workers_python(self) -> str:
        return self.conf.get("spark.pyspark.python") or self.environ.get("PYSPARK_PYTHON") or "python3"

    @property
    def lookup_python(self) -> str:
        driver = self.conf.get("spark.pyspark.driver.python") or self.environ.get("PYSPARK_DRIVER_PYTHON")
        return driver or self.workers_python

    @property
    def spark_home(self) -> Path | None:
        """Directory of the Spark that a session would start; None without Spark."""
        if self.environ.get("SPARK_HOME"):
            return Path(self.environ["SPARK_HOME"])
        spec = find_spec("pyspark")
        return None if spec is None or spec.origin is None else Path(spec.origin).parent


def examine(surroundings: SparkEnvironment, store: str | None) -> Iterator[Diagnosis]:
    """Run all checks, in the order in which a session uses the things. Checks a store only if `store` is given."""
    yield check_java(surroundings)
    yield from check_spark(surroundings)
    probes: dict[str, dict[str, Any] | str] = {}
    for what, command in (
        ("the driver's python", surroundings.lookup_python),
        ("the workers' python", surroundings.workers_python),
    ):
        if command not in probes:
            probes[command] = probed(command, surroundings)
            yield from check_python(what, command, probes[command], surroundings)
    yield from _check_start(probes[surroundings.workers_python], surroundings)
    yield from check_discovery(probes[surroundings.lookup_python], surroundings)
    yield check_connect(surroundings)
    if store is not None:
        yield from check_store(store, surroundings.environ)


def probed(command: str, surroundings: SparkEnvironment) -> dict[str, Any] | str:
    """Return the result of `worker_probe` in an interpreter, or a text that says why the interpreter does not run."""
    path = shutil.which(command, path=surroundings.environ.get("PATH"))
    if path is None:
        return "there is no such command on the path"
    source = Path(worker_probe.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(  # noqa: S603  # the interpreter that Spark would start
            [path, "-c", source],
            cwd=surroundings.directory,
            env=_workers_environ(surroundings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run: {error}"
    except (ValueError, IndexError):
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return f"it is no Python, or a very old Python; status {done.returncode}: {output[-1] if output else ''}"
    return found


def _workers_environ(surroundings: SparkEnvironment) -> dict[str, str]:
    return {**surroundings.environ, "PYTHONPATH": os.pathsep.join(_python_path(surroundings))}


def _python_path(surroundings: SparkEnvironment) -> Iterator[str]:
    """Yield the PYTHONPATH of interpreters that Spark starts: Spark's archives, then the existing path."""
    if surroundings.spark_home:
        yield from map(str, sorted((surroundings.spark_home / "python" / "lib").glob("*.zip")))
    if surroundings.environ.get("PYTHONPATH"):
        yield surroundings.environ["PYTHONPATH"]


def check_java(surroundings: SparkEnvironment) -> Diagnosis:
    """Check for Java 17 or newer."""
    home = surroundings.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else "java"
    path = shutil.which(command, path=surroundings.environ.get("PATH"))
    do = f"Install Java {_JAVA_LEAST} or newer, or set JAVA_HOME to one"
    if path is None:
        return Diagnosis("java", "problem", f"there is no {command}", do)
    done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)  # noqa: S603
    version = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr)
    major = int(version[2] if version[1] == "1" else version[1]) if version and (version[2] or version[1]) else 0
    if major < _JAVA_LEAST:
        return Diagnosis("java", "problem", f"{path} is Java {major or 'of no known version'}", do)
    return Diagnosis("java", "ok", f"{path} is Java {major}")


def check_spark(surroundings: SparkEnvironment) -> Iterator[Diagnosis]:
    """Check that Spark's Python package and jars exist, have the same version, and are tested with this release."""
    import_spec = find_spec("pyspark")
    if import_spec is None:
        do = "pip install 'pyspark-ledger[spark]', or run where the platform provides it"
        yield Diagnosis("spark", "problem", f"{sys.executable} has no pyspark", do)
        return
    from pyspark import __version__ as version

    yield check_spark_version(version)
    if tested_versions.release_line(version) >= tested_versions.OLDEST:
        from pyspark_ledger.connector.spark_features import spark_features

        yield check_features(spark_features())
    yield _check_jars(surroundings, version)
    if find_spec("delta") is not None:
        yield check_delta_version(metadata.version("delta-spark"), version)
        yield _check_delta_jar(surroundings)


def check_spark_version(version: str) -> Diagnosis:
    """Check whether this release is tested with a version of Spark."""
    tested = ", ".join(tested_versions.PAIRS)
    if tested_versions.release_line(version) < tested_versions.OLDEST:
        return Diagnosis("spark", "problem", f"pyspark is {version}", "Python data sources need Spark 4.0 or newer")
    found = f"pyspark is {version}; this release is tested with {tested}"
    if not tested_versions.is_tested(version):
        # No version is proposed: the platform chose this one, and its users can only try their queries.
        return Diagnosis("spark", "warning", found, f"Try your queries on {version} before you rely on it")
    return Diagnosis("spark", "ok", found)


def check_features(features: SparkFeatures) -> Diagnosis:
    """Return the features that this Spark lacks, and their effects on queries."""
    if not features.missing:
        return Diagnosis("features", "ok", "this Spark has all features that the source uses")
    effects = {
        "admission_control": "Trigger.AvailableNow ends after one micro-batch, even if rows are left",
        "progress_report": "the progress has the figures of the last batch",
    }
    notes = [effects[name] for name in features.missing if name in effects]
    found = f"this Spark lacks {', '.join(name.replace('_', ' ') for name in features.missing)}"
    return Diagnosis("features", "ok", f"{found}: {'; '.join(notes)}" if notes else f"{found}; no function needs this")


def _check_jars(surroundings: SparkEnvironment, version: str) -> Diagnosis:
    home = surroundings.spark_home
    jars = sorted((home / "jars").glob("spark-core_*.jar")) if home else []
    if not jars:
        do = "Unset SPARK_HOME to use pyspark's own, or reinstall pyspark"
        return Diagnosis("jars", "problem", f"{home}/jars has no spark-core: Spark cannot start", do)
    found = jars[0].stem.rpartition("-")[2]
    if found != version:
        do = "Unset SPARK_HOME, or install the pyspark of that version: with two versions, errors come late and mislead"
        return Diagnosis("jars", "problem", f"the jars in {home}/jars are of Spark {found}, pyspark is {version}", do)
    return Diagnosis("jars", "ok", f"{home}/jars are of Spark {found}")


def check_delta_version(delta: str, spark: str) -> Diagnosis:
    """Check whether this release is tested with this Delta on the release line of this Spark.

    The remedy keeps the Spark, because a platform may allow no other.
    """
    tested = tested_versions.delta_of(spark)
    if tested is None:
        found = f"delta-spark is {delta}; this release is tested with no Delta on Spark {spark}"
        return Diagnosis("delta", "warning", found, "Try your tables before you rely on them, or read and publish none")
    if delta != tested:
        found = f"delta-spark is {delta}; this release is tested with {tested} on Spark {spark}"
        do = f"Try your tables before you rely on them, or pip install --no-deps 'delta-spark=={tested}'"
        return Diagnosis("delta", "warning", found, do)
    return Diagnosis("delta", "ok", f"delta-spark is {delta}, with which this release is tested on Spark {spark}")


def _check_delta_jar(surroundings: SparkEnvironment) -> Diagnosis:
    """Check that Delta's Python package has its jar."""
    home, conf = surroundings.spark_home, surroundings.conf
    named = " ".join(conf.get(name, "") for name in ("spark.jars", "spark.jars.packages"))
    named += surroundings.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if "delta-spark" in named or (home and any((home / "jars").glob("delta-spark*.jar"))):
        return Diagnosis("delta jar", "ok", "delta-spark has its jar")
    do = "Delta tables need the jar: use session(delta=True), or set spark.jars.packages"
    return Diagnosis(
        "delta jar", "warning", "delta-spark is installed, its jar is neither in jars nor in spark.jars", do
    )


def check_python(
    what: str, command: str, found: dict[str, Any] | str, surroundings: SparkEnvironment
) -> Iterator[Diagnosis]:
    """Check that an interpreter of Spark runs, has the driver's version, and imports all that a task imports."""
    fix = f"Set PYSPARK_PYTHON={sys.executable} (or to the same environment on every host), then start a new session"
    if isinstance(found, str):
        yield Diagnosis(what, "problem", f"{command}: {found}{_SAYS}", fix)
        return
    version, ours = ".".join(map(str, found["python"])), ".".join(map(str, sys.version_info[:3]))
    if found["python"][:2] != list(sys.version_info[:2]):
        yield Diagnosis(what, "problem", f"{command} is {found['executable']}, Python {version}; this is {ours}", fix)
        return
    missing = {name: module["error"] for name, module in found["modules"].items() if "error" in module}
    if missing:
        reasons = "; ".join(f"{name}: {error}" for name, error in missing.items())
        yield Diagnosis(
            what, "problem", f"{command} is {found['executable']}, which does not import {reasons}{_SAYS}", fix
        )
    else:
        yield Diagnosis(
            what, "ok", f"{command} is {found['executable']}, Python {version}, with all that a task imports"
        )
    yield _check_origins(what, found, surroundings)


def _check_start(found: dict[str, Any] | str, surroundings: SparkEnvironment) -> Iterator[Diagnosis]:
    """Check the time until a worker connects. Does nothing if the interpreter fails to import the modules."""
    if isinstance(found, str) or any("error" in module for module in found["modules"].values()):
        return  # reported already
    start = timed_start(found["executable"], surroundings.directory, _workers_environ(surroundings))
    yield from check_start(start, surroundings.conf)


def _check_origins(what: str, found: dict[str, Any], surroundings: SparkEnvironment) -> Diagnosis:
    """Check that this package exists, is not hidden by another module of its name, and has the driver's version."""
    check, face = f"modules of {what}", found["origins"]["pyspark_ledger"]
    if not face:
        do = "Install pyspark-ledger there, the same version on every host (or ship it: spark.submit.pyFiles)"
        return Diagnosis(check, "problem", f"{found['executable']} has no module 'pyspark_ledger'", do)
    for name, origin in found["origins"].items():
        if Path(origin).name != "__init__.py":
            do = f"Rename {face}, or start in another directory: Python finds this file before the package"
            what_is = f"'import pyspark_ledger' finds {face}, which is not pyspark-ledger: it has no {name}"
            return Diagnosis(check, "problem", what_is, do)
    theirs = found["ours"].get("version", "")
    if "error" in found["ours"]:
        return Diagnosis(
            check, "problem", f"pyspark_ledger: {found['ours']['error']}", "Reinstall pyspark-ledger there"
        )
    if theirs != surroundings.version:
        do = "Install one version for driver and workers: tasks and commits of different versions refuse each other"
        return Diagnosis(check, "problem", f"pyspark-ledger is {theirs} there, {surroundings.version} here", do)
    return Diagnosis(check, "ok", f"pyspark-ledger {theirs} from {found['ours'].get('origin')}")


def check_discovery(found: dict[str, Any] | str, surroundings: SparkEnvironment) -> Iterator[Diagnosis]:
    """Check whether Spark finds the source. If the import of one package `pyspark_…` fails, Spark finds no source."""
    check, by_hand = "discovery", "Or call pyspark_ledger.configure(spark)"
    if isinstance(found, str):
        do = f"Unset PYSPARK_DRIVER_PYTHON or set it to {sys.executable}. {by_hand}"
        what = f"Spark looks for sources with {surroundings.lookup_python}: {found}"
        yield Diagnosis(check, "problem", f"{what}; Spark finds no source", do)
        return
    broken = {name: error for name, error in found["discovery"].items() if error}
    for name, error in broken.items():
        do = f"Repair or uninstall {name}, then start a new session: a session searches only once. {by_hand}"
        yield Diagnosis(check, "problem", f"module {name} fails ({error}), so Spark finds no source at all", do)
    if not broken and "pyspark_ledger" not in found["discovery"]:
        do = f"Install pyspark-ledger for {found['executable']}. {by_hand}"
        yield Diagnosis(check, "problem", f"{found['executable']} has no module pyspark_ledger on its path", do)
    elif not broken:
        yield Diagnosis(check, "ok", f"Spark finds the source among {', '.join(sorted(found['discovery']))}")


def check_connect(surroundings: SparkEnvironment) -> Diagnosis:
    """Check the imports of Spark Connect's client, if Spark Connect is used."""
    remote = surroundings.environ.get("SPARK_REMOTE") or surroundings.conf.get("spark.remote", "")
    if not remote:
        return Diagnosis("connect", "ok", "not used")
    missing = [name for name in ("grpc", "grpc_status", "pandas") if find_spec(name) is None]
    if missing:
        do = "pip install 'pyspark[connect]'"
        return Diagnosis("connect", "problem", f"SPARK_REMOTE is set, and {', '.join(missing)} cannot be imported", do)
    return Diagnosis("connect", "ok", "the client's packages are installed; the server's host needs the source as well")
