"""A store whose broker is gone when the test is, and Spark's own limit of ten seconds.

Spark waits ten seconds for the Python process that plans a stream, and no setting raises that. On a machine with many
more processes than cores the process comes later. A story that failed for this reason alone is told once more.
"""

from __future__ import annotations

import warnings

import pytest
from _pytest.runner import runtestprotocol

from tests.rigs.broker_process import store

__all__ = ["store"]
SPARKS_LIMIT = "Python worker failed to connect back"


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a story, and once more where Spark gave up its own process."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed and SPARKS_LIMIT in report.longreprtext for report in reports):
        warnings.warn(f"{item.nodeid} runs again: {SPARKS_LIMIT}", stacklevel=1)
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
