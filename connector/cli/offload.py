"""`ledger offload`: copy sealed segments to object storage, show or cancel the copy, and delete unused objects.

A segment is one file of a ledger; a sealed segment never changes.

Rules
- The broker copies the segments, and continues if this command is interrupted.
- If a segment fails, the broker still tries the other segments. Then the command exits with status 1.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pyspark_ledger.connector.cli.ledgers import Name, Output, OutputOption, StoreOption, opened, reporting, show
from pyspark_ledger.connector.cli.wording import counted, next_words
from pyspark_ledger.ledger.api.ledger_admin import await_offload
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import AskOffload, OffloadPrefix, OffloadStatus


@reporting
def offload(
    name: Name,
    until: Annotated[
        str, typer.Option("--until", help="Offload only whole segments before this position, SEGMENT:ENTRY.")
    ] = "",
    seal: Annotated[bool, typer.Option("--seal", help="First seal the open segment, to offload it too.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only print the progress.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop a running offload.")] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Delete objects of this store that no offloaded segment uses.")
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="In a copied store: own the objects that its original wrote. Deletes of this store then delete them.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Adopt without asking.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the offload is done.")] = True,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Copy sealed segments to object storage.

    The broker deletes the local copies later: see the setting managedLedgerOffloadDeletionLagMs.
    """
    if sum((status, cancel, sweep, adopt)) > 1:
        raise Refused("--status, --cancel, --sweep and --adopt exclude each other", hint="Give one of them")
    if adopt and not yes:
        typer.confirm(
            f"Own the objects of {name}? The original of this store must not be used any more: it would lose rows",
            abort=True,
        )
    client, name = opened(store).client, canonical_name(name)
    if status:
        found = client.ask(AskOffload(name))
    else:
        request = OffloadPrefix(name, _position(until), cancel, sweep, seal, adopt)
        found = client.ask(request)
        if wait and not (cancel or sweep or adopt):
            found = await_offload(client, found, progress=output is Output.text)
    show(output, found, lambda console: console.print(_sentence(found)))
    if found.state == "failed":
        raise Unavailable(f"not all requested segments of {name!r} were offloaded: {found.failure}")


def _sentence(found: OffloadStatus) -> str:
    parts = [found.state]
    if found.state != "idle":
        parts.append(f"{counted(len(found.done), 'segment')} in this run, {len(found.left)} left")
    if found.offloaded:
        here = f" ({found.local} of them here, too)" if found.local else ""
        parts.append(f"{counted(found.offloaded, 'segment')} in object storage{here}")
        parts.append(f"all entries before {next_words(found.first_left)} are in object storage")
    else:
        parts.append("nothing is in object storage yet")
    if found.foreign:
        parts.append(f"{counted(found.foreign, 'segment')} of the original of this copy, see --adopt")
    if found.swept:
        parts.append(f"{counted(found.swept, 'unreferenced upload')} deleted")
    return f"{found.name}: {'; '.join(parts)}"


def _position(text: str) -> Position | None:
    try:
        return Position.parse(text) if text else None
    except ValueError as wrong:
        raise Refused(str(wrong), hint="Give SEGMENT:ENTRY, as `ledger describe` shows them") from None
