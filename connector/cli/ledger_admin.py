"""`ledger trim`, `terminate`, `restore-schema`, `properties` and `policy`: administration of a ledger.

The page docs/concepts.md explains the words segment, cursor and retention.

Rules
- A command that cannot be undone asks for confirmation.
- `policy` and `properties` without values show the present values.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pyspark_ledger.connector.cli.ledgers import Name, Output, OutputOption, StoreOption, opened, reporting, show
from pyspark_ledger.connector.cli.wording import counted
from pyspark_ledger.ledger.api.ledger_admin import change_policy
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, RestoreSchema
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, ChangeProperties, Policies, TerminateLedger, TrimLedger

Pairs = Annotated[list[str] | None, typer.Argument(help="Values to set, each as NAME=VALUE.")]
Forget = Annotated[list[str] | None, typer.Option("--forget", help="A policy to remove; may be repeated.")]


@reporting
def trim(name: Name, store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """Delete the segments that neither the retention policy nor a cursor keeps. Without a policy, delete nothing."""
    done = opened(store).client.ask(TrimLedger(canonical_name(name)))
    gone = f"{counted(len(done.ledgers), 'segment')} with {counted(done.entries, 'entry', 'entries')}"
    text = f"{gone} trimmed; {done.name} begins at {done.start}"
    show(output, done, lambda console: console.print(text))


@reporting
def terminate(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Terminate a ledger permanently: it stays readable, and appends are refused."""
    found = opened(store)
    described = found.client.ask(DescribeLedger(canonical_name(name)))
    if not yes and described.terminated is None:
        typer.confirm(
            f"Terminate {described.name}? It will accept no more rows, and this cannot be undone.", abort=True
        )
    done = found.client.ask(TerminateLedger(described.name))
    show(output, done, lambda console: console.print(f"{described.name} ends with entry {done.position}"))


@reporting
def restore_schema(name: Name, store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """Delete the newest versions of a ledger's schema that no reader can use. Change nothing if there are none."""
    left = opened(store).client.ask(RestoreSchema(canonical_name(name)))
    newest = f"version {left.version} of its schema" if left.version >= 0 else "no schema"
    show(output, left, lambda console: console.print(f"{left.name} has {newest}"))


@reporting
def properties(
    name: Name,
    values: Pairs = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A property to remove.")] = None,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show the properties of a ledger (texts of your own). With NAME=VALUE, set them. With --remove, remove them."""
    request = ChangeProperties(canonical_name(name), _pairs(values), remove or [])
    client = opened(store).client
    kept = (
        client.ask(request).properties
        if request.values or request.remove
        else client.ask(DescribeLedger(request.name)).properties
    )

    def text(console: Console) -> None:
        for key, value in sorted(kept.items()):
            console.print(f"{key} = {value}")

    show(output, kept, text)


@reporting
def policy(
    scope: Annotated[str, typer.Argument(help="A ledger; with --namespace: a namespace, such as public/default.")],
    values: Pairs = None,
    forget: Forget = None,
    namespace: Annotated[bool, typer.Option("--namespace", help="Set the policies of a namespace.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show the policies of a ledger or namespace. Set them with NAME=VALUE, remove them with --forget.

    Policies take effect at once.
    """
    wanted = ChangePolicy(
        scope if namespace else canonical_name(scope), namespace, _numbers(values), list(forget or [])
    )
    found = change_policy(opened(store).client, wanted)
    show(output, found, lambda console: console.print(_policy_table(found)))


def _policy_table(found: Policies) -> Table:
    table = Table(found.scope, "value", "stated by")
    for name, value in found.effective.items():
        origin = "itself" if name in found.stated else "its namespace" if name in found.inherited else "the broker"
        table.add_row(name, str(value), origin)
    return table


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not separator:
            raise Refused(f"{text!r} is not of the form NAME=VALUE")
        if name in pairs:
            raise Refused(f"{name!r} is set twice, to {pairs[name]!r} and to {value!r}")
        pairs[name] = value
    return pairs


def _numbers(given: list[str] | None) -> dict[str, int]:
    numbers = {}
    for name, value in _pairs(given).items():
        try:
            numbers[name] = int(value)
        except ValueError:
            raise Refused(f"policy {name!r} is {value!r}, expected a whole number") from None
    return numbers
