"""`ledger repair`: put ledgers back that the metadata of a store do not know, and accept metadata that lack commits.

Rules: nothing changes without `--yes`. Nothing that is there is overwritten or deleted, with it either
(`ledger.store_repair`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from connector.cli import Output, OutputOption, StoreOption, reporting, show
from ledger.clock import system_clock_ms
from ledger.errors import Refused
from ledger.names import short_name
from ledger.store_location import store_location
from ledger.store_repair import Findings, UnknownLedger, find
from ledger.store_repair import repair as repaired


@reporting
def repair(
    ledgers: Annotated[list[int] | None, typer.Argument(help="Ids to put back; all that have a place.")] = None,
    ledger: Annotated[str, typer.Option(help="Where ledgers go whose files do not say of which they are.")] = "",
    accept_metadata: Annotated[
        bool, typer.Option("--accept-metadata", help="Go on with metadata that lack commits.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, it is only said.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Find what the metadata of a store do not know, and put it back with --yes. No broker may run then."""
    directory = Path(store_location(store))
    if not (directory / "metadata.sqlite").exists():
        raise Refused(f"there is no store at {directory} on this host", hint="Run it where the store's broker runs")
    found = find(directory, ledger)
    if not yes:
        show(output, found, lambda console: _say(console, found))
        return
    if found.behind and not accept_metadata:
        raise Refused(found.behind, hint="Restore the files, or accept what the metadata hold: --accept-metadata")
    done = repaired(directory, system_clock_ms, into=ledger, accept=bool(found.behind), only=ledgers or ())
    show(output, done, lambda console: _tell(console, done))


def _say(console: Console, found: Findings) -> None:
    if found.behind:
        console.print(f"{found.behind}. Accept it with --accept-metadata --yes")
    for one in found.unknown:
        would = (
            one.refusal or f"would be put back: {one.entries:,} entries, {one.rows:,} rows of {short_name(one.ledger)}"
        )
        console.print(f"ledger {one.ledger_id} ({', '.join(one.files)}): {would}")
    if not found.behind and not found.unknown:
        console.print("the metadata know every file and lack no commit")


def _tell(console: Console, done: list[UnknownLedger]) -> None:
    for one in done:
        console.print(f"ledger {one.ledger_id}: {one.rows:,} rows are back in {short_name(one.ledger)}")
    if not done:
        console.print("nothing was put back")
