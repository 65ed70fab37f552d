"""Generated pages of the documentation, by path in the repository. Tests compare each with its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark_ledger.connector.options.table import options_reference
from pyspark_ledger.ledger.broker.telemetry.reference import metrics_reference
from pyspark_ledger.ledger.settings.broker import broker_toml, settings_reference
from tools.reference.command_line import command_line_reference
from tools.reference.progress import progress_reference
from tools.reference.python_api import python_api_reference

ROOT = Path(__file__).resolve().parents[2]

PAGES: Mapping[str, Callable[[], str]] = {
    "conf/broker.toml": broker_toml,
    "docs/api.md": python_api_reference,
    "docs/cli.md": command_line_reference,
    "docs/metrics.md": metrics_reference,
    "docs/options.md": options_reference,
    "docs/progress.md": progress_reference,
    "docs/settings.md": settings_reference,
}
