"""Report of the demo: tables of checks and timings on the screen and in `report.txt`, and `picture.png`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from streaming_examples.acts.audit import Check
from streaming_examples.acts.chart import draw
from streaming_examples.acts.meter import Meter


def write_report(
    checks: Sequence[Check], timings: Sequence[tuple[str, float]], meter: Meter, directory: Path, console: Console
) -> None:
    """Print the report and write it to files. The last line has the number of checks that passed."""
    draw(meter.samples, meter.events, directory / "picture.png")
    failed = [check for check in checks if not check.held]
    backlogs = [sample.backlog for sample in meter.samples if sample.backlog is not None]
    verdict = f"{len(checks) - len(failed)} of {len(checks)} checks held"
    with (directory / "report.txt").open("w", encoding="utf-8") as file:
        for output in (console, Console(file=file, width=110)):
            output.print(_checks(checks), _timings(timings))
            output.print(f"largest backlog of the subscription: {max(backlogs, default=0):,} rows")
            output.print(f"in {directory}: report.txt, picture.png, and all state of the run")
            output.print(verdict, style="bold red" if failed else "bold green")


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("", "check", "found", title="Checks", title_justify="left")
    for check in checks:
        table.add_row("[green]holds[/]" if check.held else "[red]FAILS[/]", check.what, check.numbers)
    return table


def _timings(timings: Sequence[tuple[str, float]]) -> Table:
    table = Table("what", title="Timings", title_justify="left")
    table.add_column("seconds", justify="right")
    for what, seconds in timings:
        table.add_row(what, f"{seconds:.2f}")
    return table
