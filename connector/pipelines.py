"""Declarative pipelines (`pyspark.pipelines`): whether a process or a task belongs to one, and what is refused there.

A run of a pipeline starts each streaming query with Trigger.AvailableNow, and nothing starts a query again
before the next run. Spark without admission control (`connector.spark_features`) runs this trigger as one micro-batch.
So a limit would end the run early, and the run would say COMPLETED.

Rules
- Such a query is refused, before Spark stores its first offset where that is possible. Spark tells a source neither the
  trigger nor the pipeline, so the refusal has two places:
  - The driver's process of the source looks for the command `spark-pipelines` among the processes that started it.
  - On a server that pipelines share with other sessions, only a task knows: Spark's property `callSite.long` names the
    class that started the query. There the refusal comes when the first task of a batch begins.
- A run that finds an unfinished batch repeats this batch only. The source says so on the console.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from pyspark_ledger.ledger.errors import Refused

# Arguments of the processes of a run: the JVM of `spark-pipelines`, and Python's command that it starts.
_COMMANDS = (b"org.apache.spark.deploy.SparkPipelines", b"pyspark.pipelines.cli")
_COMMAND_FILE = b"pyspark/pipelines/cli.py"
_CALL_SITE, _PIPELINES = "callSite.long", "org.apache.spark.sql.pipelines."
REPEATED = (
    "this run of the pipeline finishes the batch of a run that was interrupted, and reads no row after it. Run the "
    "pipeline once more"
)


def is_definition_file() -> bool:
    """Return whether a definition file of a pipeline runs now. Such a file may change no setting of its session."""
    registry = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if registry is None:
        return False
    from pyspark.errors import PySparkException

    try:
        registry.get_active_graph_element_registry()
    except PySparkException:
        return False
    return True


@cache
def is_driver_of_pipeline() -> bool:
    """Return whether the command `spark-pipelines` has started this process, or a process that has started it."""
    pid = os.getppid()
    with suppress(OSError):  # a process of another user, or a system without /proc
        while pid > 1:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(argument in _COMMANDS or argument.endswith(_COMMAND_FILE) for argument in arguments):
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return False


def require_complete_run(limits: str) -> None:
    """Raise Refused in a driver of a pipeline if `limits`, names of options, can end the only batch of a run."""
    if limits and is_driver_of_pipeline():
        raise _refusal(limits)


def require_complete_batch(limits: str) -> None:
    """Raise Refused in a task of a pipeline if `limits`, names of options, can end the only batch of a run."""
    if not limits:
        return
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and (context.getLocalProperty(_CALL_SITE) or "").startswith(_PIPELINES):
        raise _refusal(limits)


def _refusal(limits: str) -> Refused:
    return Refused(
        f"this Spark reads one batch of a ledger in each run of a pipeline, and {limits} could end the batch before "
        "the end of the ledger",
        hint="Remove the limit, or set option 'firstBatch' to 'everything', which reads all rows in one batch",
    )
