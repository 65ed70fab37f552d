"""The whole command `ledger`, which `pyproject.toml` names as its entry point."""

from __future__ import annotations

from pyspark_ledger.connector.cli.cursors import cursors, position_info
from pyspark_ledger.connector.cli.describe import describe
from pyspark_ledger.connector.cli.doctor import doctor
from pyspark_ledger.connector.cli.dump import dump, verify
from pyspark_ledger.connector.cli.lag import lag
from pyspark_ledger.connector.cli.ledger_admin import policy, properties, terminate, trim
from pyspark_ledger.connector.cli.ledgers import app
from pyspark_ledger.connector.cli.offload import offload
from pyspark_ledger.connector.cli.publish import publish
from pyspark_ledger.connector.cli.settings import settings
from pyspark_ledger.connector.cli.store import repair, serve, stop
from pyspark_ledger.connector.cli.top.command import top

app.add_typer(cursors, name="cursor")
dump.command("positioninfo")(position_info)
app.add_typer(dump, name="dump")
app.add_typer(settings, name="settings")
for command in (
    describe, lag, top, serve, stop, trim, terminate, properties, policy, offload, publish, verify, repair, doctor,
):  # fmt: skip
    app.command()(command)

__all__ = ["app"]

if __name__ == "__main__":
    app()
