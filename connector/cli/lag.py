"""`ledger lag`: the backlog of every subscription of every ledger, the largest first.

A *log* is a ledger without partitions, or one partition.

Rules
- One call to the broker measures one subscription of each log. So there are as many calls as the log with the most
  subscriptions has.
- If a ledger or subscription is damaged, the other subscriptions are still shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from rich.table import Table

from pyspark_ledger.connector.cli.ledgers import (
    DAMAGE,
    Output,
    OutputOption,
    StoreOption,
    fail,
    ledgers_described,
    opened,
    reporting,
    show,
)
from pyspark_ledger.connector.cli.wording import age_words
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.protocol.actions import LedgerDescription
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, ReadProgress


class Lag(msgspec.Struct, frozen=True):
    """Backlog of a subscription. The time and age of the oldest unread row are None without a backlog."""

    ledger: str
    subscription: str
    backlog_rows: int
    backlog_entries: int
    backlog_bytes: int
    oldest_unread_ms: int | None = None
    age_ms: int | None = None


@reporting
def lag(store: StoreOption = None, output: OutputOption = Output.text) -> None:
    """Show the backlog of every subscription of every ledger, and the age of its oldest unread row."""
    found = opened(store)
    described, damage = ledgers_described(found.client, found.names())
    lags = list[Lag]()
    for cursors in _rounds(described):
        measured, damaged = _measured(found.client, cursors)
        lags += measured
        damage += damaged
    lags.sort(key=lambda lag: (-lag.backlog_rows, lag.ledger, lag.subscription))
    show(output, lags, lambda console: console.print(_table(lags)))
    fail(*damage)


def _rounds(described: Iterable[LedgerDescription]) -> Iterator[dict[str, str]]:
    """Yield the first subscription of each log, then the second subscription of each log, and so on."""
    logs = [log for ledger in described for log in ledger.partitions or [ledger]]
    for number in range(max((len(log.cursors) for log in logs), default=0)):
        yield {log.name: log.cursors[number] for log in logs if number < len(log.cursors)}


def _measured(client: Client, cursors: dict[str, str]) -> tuple[list[Lag], list[str]]:
    """Return the lags of subscriptions by log, and a line for each damaged subscription."""
    try:
        return _asked(client, cursors), []
    except DAMAGE as error:
        if len(cursors) == 1:
            (log, cursor), *_ = cursors.items()
            return [], [f"{visible(cursor)} of {short_name(log)}: {error}"]
    each = [_measured(client, {log: cursor}) for log, cursor in cursors.items()]
    return [lag for lags, _ in each for lag in lags], [line for _, lines in each for line in lines]


def _asked(client: Client, cursors: dict[str, str]) -> list[Lag]:
    readings = {log: ReadProgress(cursor=cursor) for log, cursor in cursors.items()}
    found = client.ask(AskLogStatuses(list(cursors), readings))
    return [
        Lag(
            log.name,
            cursors[log.name],
            log.rows,
            log.entries,
            log.size_bytes,
            *((log.head_ms, max(found.now_ms - log.head_ms, 0)) if log.rows else ()),
        )
        for log in found.logs
    ]


def _table(lags: Iterable[Lag]) -> Table:
    table = Table("ledger", "subscription", "rows", "entries", "bytes", "oldest unread")
    for lag in lags:
        numbers = (f"{number:,}" for number in (lag.backlog_rows, lag.backlog_entries, lag.backlog_bytes))
        age = "none" if lag.age_ms is None else f"{age_words(lag.age_ms)} ago"
        table.add_row(visible(short_name(lag.ledger)), visible(lag.subscription), *numbers, age)
    return table
