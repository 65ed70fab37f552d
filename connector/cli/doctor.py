"""`ledger doctor`: reasons why Spark does not find or run the data source here, and remedies.

The command changes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from pyspark_ledger.connector.cli.ledgers import Output, OutputOption, reporting, show
from pyspark_ledger.connector.cli.wording import counted
from pyspark_ledger.connector.doctor.checks import SparkEnvironment, examine
from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.ledger.version import __version__

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@reporting
def doctor(
    store: Annotated[str | None, typer.Option("--store", "-s", help="Also check this store and its broker.")] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(help="A Spark setting NAME=VALUE of your session that spark-defaults.conf lacks."),
    ] = None,
    platform: Annotated[
        bool, typer.Option("--platform", help="Start a Spark session and try what a platform may forbid.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Check what may keep Spark from running the data source: interpreters, packages, jars, Spark's search for
    data sources (discovery), the broker.

    With --platform, check only what a platform may forbid: processes, and a task that reaches the driver.
    """
    surroundings = surroundings_here(dict(_pair(text) for text in conf or ()))
    findings = platform_findings(surroundings) if platform else list(examine(surroundings, store))
    show(output, findings, lambda console: _print(console, findings))
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def surroundings_here(conf: dict[str, str]) -> SparkEnvironment:
    """Return the environment of this process. `conf` takes precedence over spark-defaults.conf."""
    here = SparkEnvironment(
        environ=dict(os.environ),
        directory=Path.cwd(),
        conf={},
        version=__version__,
    )
    return here.with_conf({**here.defaults(), **conf})


def platform_findings(surroundings: SparkEnvironment) -> list[Diagnosis]:
    """Return the results of the platform checks. Tasks of a local session use this interpreter, as in `session()`."""
    from pyspark_ledger.connector.doctor.platform import probe_platform

    if surroundings.conf.get("spark.master", "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return list(probe_platform(conf=surroundings.conf).findings)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--conf")
    return name, value


def _print(console: Console, findings: list[Diagnosis]) -> None:
    for finding in findings:
        first, *rest = finding.lines()
        console.print(Text.assemble((first[:8], _COLOURS[finding.state]), first[8:]))
        for line in rest:
            console.print(line)
    problems = sum(finding.state == "problem" for finding in findings)
    summary = f"{counted(problems, 'problem')}; interpreter here: {sys.executable}"
    console.print(summary if problems else "nothing is wrong")
