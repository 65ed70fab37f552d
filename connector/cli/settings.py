"""`ledger settings`: the settings of a running broker, and changes while it runs.

Rules
- A change is stored in the store, so it also applies to later brokers.
- A change of a setting that needs a restart is refused. The error names the setting.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from pyspark_ledger.connector.cli.ledgers import Output, OutputOption, StoreOption, opened, reporting, show
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.actions import AskSettings, ChangeSetting
from pyspark_ledger.ledger.settings.broker import declared

settings = typer.Typer(no_args_is_help=True, help="Settings of a running broker.")
Setting = Annotated[str, typer.Argument(help="The name of a setting, as in conf/broker.toml.")]


@settings.command("list")
@reporting
def list_settings(store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """List every setting with its present value."""
    found = opened(store).client.ask(AskSettings())
    table = Table("setting", "value", "default", "unit", "can be changed")
    for state in found.settings:
        value = f"{state.value} (changed)" if state.changed else str(state.value)
        table.add_row(state.name, value, str(state.default), state.unit, "yes" if state.live else "with a restart")
    show(output, found.settings, lambda console: console.print(table))


@settings.command("set")
@reporting
def set_setting(
    name: Setting,
    value: Annotated[str, typer.Argument(help="The number or text.")],
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Change a setting now and for later brokers of the store."""
    try:
        wanted = value if declared(name).is_text else int(value)
    except ValueError:
        raise Refused(f"setting {name!r} is {value[:80]!r}, expected a whole number") from None
    declared(name).require(wanted)
    _change(store, output, ChangeSetting(name, wanted))


@settings.command("reset")
@reporting
def reset_setting(name: Setting, store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """Set a setting to its value in the broker's file, or to its default."""
    _change(store, output, ChangeSetting(name))


def _change(store: str | None, output: Output, request: ChangeSetting) -> None:
    found = opened(store).client.ask(request)
    (state,) = (state for state in found.settings if state.name == request.name)
    show(output, state, lambda console: console.print(f"{state.name} = {state.value} {state.unit}"))
