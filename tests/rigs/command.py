"""The command `ledger`, run in this process as its user types it."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app


def run(*arguments: str, status: int = 0, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    assert result.exit_code == status, result.output
    return result.output


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--output", "json"))
