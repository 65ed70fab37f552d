"""`ledger lag`: the backlog of every subscription of a store, the largest first."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from pyspark_ledger.connector.cli.ledgers import (
    Output,
    OutputOption,
    StoreOption,
    cursor_states,
    fail,
    ledgers_described,
    opened,
    reporting,
    show,
)
from pyspark_ledger.connector.cli.wording import next_words
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.protocol.cursors import CursorState


@reporting
def lag(store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """Show the backlog of every subscription of every ledger, the largest first. Bytes and rows are estimates."""
    found = opened(store)
    described, damage = ledgers_described(found.client, found.names())
    states = list[CursorState]()
    for ledger in described:
        present, damaged = cursor_states(found.client, ledger, precise=False)
        states += present
        damage += [f"{short_name(ledger.name)}: {line}" for line in damaged]
    states.sort(key=lambda state: (-state.backlog_rows, state.ledger, state.cursor))
    show(output, states, lambda console: _print(console, states))
    fail(*damage)


def _print(console: Console, states: list[CursorState]) -> None:
    table = Table("ledger", "subscription", "backlog rows", "entries", "bytes", "next position", "held by")
    for state in states:
        numbers = [f"{number:,}" for number in (state.backlog_rows, state.backlog_entries, state.backlog_bytes)]
        names = visible(short_name(state.ledger)), visible(state.cursor)
        table.add_row(*names, *numbers, next_words(state.next_position), state.lease_holder)
    console.print(table)
