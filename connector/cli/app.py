"""The whole command `ledger`, which `pyproject.toml` names as its entry point."""

from __future__ import annotations

from collections.abc import Iterable

from typer.models import CommandInfo

from pyspark_ledger.connector.cli.cursors import cursors
from pyspark_ledger.connector.cli.describe import describe
from pyspark_ledger.connector.cli.doctor import doctor
from pyspark_ledger.connector.cli.lag import lag
from pyspark_ledger.connector.cli.ledger_admin import policy, properties, restore_schema, terminate, trim
from pyspark_ledger.connector.cli.ledgers import app
from pyspark_ledger.connector.cli.offload import offload
from pyspark_ledger.connector.cli.publish import publish
from pyspark_ledger.connector.cli.rows import append, follow, read
from pyspark_ledger.connector.cli.settings import settings
from pyspark_ledger.connector.cli.store import ServeCommand, repair, serve, stop, stores
from pyspark_ledger.connector.cli.top.command import top
from pyspark_ledger.connector.cli.verify import verify

app.add_typer(cursors, name="cursor")
app.add_typer(settings, name="settings")
app.add_typer(stores, name="store")
for command in (
    append, read, follow, describe, lag, top, serve, stop, trim, terminate, properties, policy, offload, publish,
    verify, restore_schema, repair, doctor,
):  # fmt: skip
    app.command(cls=ServeCommand if command is serve else None)(command)

EXAMPLES = {
    "create": "ledger create orders",
    "append": "ledger append orders --from orders.csv",
    "read": "ledger read orders --columns id,item --since 2026-11-22T10:15:00Z --output jsonl",
    "follow": "ledger follow orders --since earliest --wait 0",
    "list": "ledger list",
    "describe": "ledger describe orders",
    "seek": "ledger seek orders 2026-11-22T10:15:00Z",
    "cursor create": "ledger cursor create orders billing",
    "cursor list": "ledger cursor list orders",
    "cursor describe": "ledger cursor describe orders billing",
    "cursor reset": "ledger cursor reset orders billing earliest",
    "cursor export": "ledger cursor export orders billing ./state",
    "cursor show": "ledger cursor show checkpoints/billing",
    "cursor delete": "ledger cursor delete orders billing",
    "lag": "ledger lag",
    "top": "ledger top --once",
    "properties": "ledger properties orders owner=ada",
    "policy": "ledger policy orders retentionTimeInMinutes=10080 retentionSizeInMB=10240",
    "settings list": "ledger settings list",
    "settings set": "ledger settings set managedLedgerCacheSizeMB 256",
    "settings reset": "ledger settings reset managedLedgerCacheSizeMB",
    "offload": "ledger offload orders --seal",
    "trim": "ledger trim orders",
    "publish": "ledger publish orders --table ./orders-table",
    "verify": "ledger verify orders",
    "restore-schema": "ledger restore-schema orders",
    "terminate": "ledger terminate orders --yes",
    "delete": "ledger delete orders --yes",
    "doctor": "ledger doctor",
    "stop": "ledger stop",
    "repair": "ledger repair",
    "store move": "ledger store move ledger-store s3://lake/ledgers",
    "serve": "ledger serve --web http://127.0.0.1:8080",
}
"""Example of each command. You can run the examples in this order. The help of a command ends with its example."""


def _add_examples(commands: Iterable[CommandInfo], group: str = "") -> None:
    for command in commands:
        assert command.callback is not None  # noqa: S101 — for the type checker
        name = command.name or command.callback.__name__.replace("_", "-")
        command.epilog = f"Example: {EXAMPLES[f'{group} {name}'.strip()]}"


_add_examples(app.registered_commands)
for subcommands in app.registered_groups:
    assert subcommands.typer_instance is not None  # noqa: S101 — for the type checker
    _add_examples(subcommands.typer_instance.registered_commands, str(subcommands.name))

__all__ = ["EXAMPLES", "app"]

if __name__ == "__main__":
    app()
