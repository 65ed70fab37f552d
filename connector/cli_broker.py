"""`ledger serve` and `ledger stop`: the broker of a store's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from connector.cli import Output, OutputOption, reporting, show
from ledger.broker.embedded import stop_broker
from ledger.store_location import store_location

Directory = Annotated[str | None, typer.Option("--store", "-s", help="Directory of the store.")]


def serve(
    store: Directory = None,
    address: Annotated[
        str | None, typer.Option(help="grpc://127.0.0.1:PORT or grpc+tls://HOST:PORT, instead of the settings'.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings, see conf/broker.toml.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the store if there is none.")] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Fence off a broker that holds it.")] = False,
) -> None:
    """Serve a store until it is told to stop."""
    from ledger.broker.main import main

    directory = _directory(store)
    arguments = ["--store", directory, "--idle", "0"]
    arguments += ["--address", address] if address else []
    arguments += ["--config", str(config)] if config else []
    arguments += ["--create"] * create + ["--take-over"] * take_over
    raise typer.Exit(main(arguments))


@reporting
def stop(
    store: Directory = None,
    output: OutputOption = Output.text,
) -> None:
    """Ask the broker of a store to leave. The next process that uses the store starts one, with its environment."""
    directory = _directory(store)
    stopped = stop_broker(Path(directory))
    said = f"the broker of {directory} has left" if stopped else f"no broker runs for {directory}"
    show(output, {"stopped": stopped}, lambda console: console.print(said))


def _directory(store: str | None) -> str:
    location = store_location(store)
    if "://" in location:
        raise typer.BadParameter(f"{location!r} is an address: give the directory of a store", param_hint="--store")
    return location
