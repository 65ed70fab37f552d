"""Fixtures of stores whose brokers end with the test, and a repetition of tests that hit a timeout of Spark.

Spark waits ten seconds for the Python process that plans a stream, and no setting changes this timeout. On an
overloaded machine the process starts later. A story that fails only for this reason is run once more.

With LEDGER_FEATURES=DIRECTORY a run writes the results of stories with the mark `feature` to a file named by Spark's
version (`tools/feature_table.py`).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import warnings
from pathlib import Path

import pyspark
import pytest
from _pytest.runner import runtestprotocol

from tests.rigs.broker_process import store
from tests.rigs.bucket_clients import directory

__all__ = ["directory", "store"]
SPARKS_LIMIT = "Python worker failed to connect back"
_features: dict[str, bool] = {}


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a story. Run it once more if Spark's timeout for its Python process failed it."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed and SPARKS_LIMIT in report.longreprtext for report in reports):
        warnings.warn(f"{item.nodeid} runs again: {SPARKS_LIMIT}", stacklevel=1)
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    mark = item.get_closest_marker("feature")
    if mark is not None:
        name = mark.args[0]
        _features[name] = _features.get(name, True) and not any(report.failed for report in reports)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def java_version() -> str:
    java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    return done.stderr.partition('version "')[2].partition('"')[0]


def pytest_sessionfinish() -> None:
    """Write the results by feature. Features of an earlier run that this run left out are kept."""
    directory = os.environ.get("LEDGER_FEATURES")
    if directory and _features:
        path = Path(directory) / f"{pyspark.__version__}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = json.loads(path.read_text(encoding="utf-8"))["features"] if path.exists() else {}
        features = dict(sorted({**earlier, **_features}.items()))
        run = {
            "spark": pyspark.__version__,
            "python": platform.python_version(),
            "java": java_version(),
            "features": features,
        }
        path.write_text(json.dumps(run, indent=1), encoding="utf-8")
