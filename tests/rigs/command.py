"""The command `ledger`, run in this process as its user types it."""

from __future__ import annotations

import functools
import json
from typing import Any

import typer.testing
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from tools.dump import dump

# A call would make the commands anew from their functions, which costs more than what most commands do.
typer.testing._get_command = functools.cache(typer.testing._get_command)


def run(*arguments: str, status: int = 0, stdin: str | None = None, command: typer.Typer = app) -> str:
    result = CliRunner().invoke(command, list(arguments), input=stdin)
    assert result.exit_code == status, result.output
    return result.output


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--output", "json"))


def dumped(*arguments: str, status: int = 0) -> str:
    """Run `python -m tools.dump` in this process."""
    return run(*arguments, status=status, command=dump)


def dumped_json(*arguments: str) -> Any:
    return json.loads(dumped(*arguments, "--output", "json"))
