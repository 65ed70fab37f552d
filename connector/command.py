"""The whole command `ledger`: what `pyproject.toml` names as its entry point."""

from __future__ import annotations

from connector.cli import app
from connector.cli_broker import serve, stop
from connector.cli_bytes import dump, verify
from connector.cli_cursors import cursors, position_info
from connector.cli_doctor import doctor
from connector.cli_life import policy, properties, terminate, trim
from connector.cli_offload import offload
from connector.cli_publish import publish
from connector.cli_repair import repair
from connector.cli_settings import settings

app.add_typer(cursors, name="cursor")
dump.command("positioninfo")(position_info)
app.add_typer(dump, name="dump")
app.add_typer(settings, name="settings")
for command in (serve, stop, trim, terminate, properties, policy, offload, publish, verify, repair, doctor):
    app.command()(command)

__all__ = ["app"]

if __name__ == "__main__":
    app()
