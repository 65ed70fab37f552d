"""`ledger lag`: the backlog of every subscription of every ledger, the largest first.

A *log* is a ledger without partitions, or one partition.

Rules
- One call to the broker measures one subscription of each log. So there are as many calls as the log with the most
  subscriptions has.
- If a ledger or subscription is damaged, the other subscriptions are still shown.
- With `--checkpoint`, the rows are shown that Spark has committed, and that no query has acknowledged yet
  (`connector.read.committed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
import typer
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
from pyspark_ledger.connector.read.committed import committed_ends
from pyspark_ledger.connector.read.offsets import LedgerOffset
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.hidden_characters import visible
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.protocol.actions import LedgerDescription
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, ReadProgress


class Lag(msgspec.Struct, frozen=True):
    """Backlog of a subscription. The time and age of the oldest unread row are None without a backlog.

    `committed_rows` are the rows of the backlog that Spark has committed, and that are not yet acknowledged. It is None
    if no checkpoint tells.
    """

    ledger: str
    subscription: str
    backlog_rows: int
    backlog_entries: int
    backlog_bytes: int
    oldest_unread_ms: int | None = None
    age_ms: int | None = None
    committed_rows: int | None = None


CheckpointOption = Annotated[
    str | None,
    typer.Option(
        help="Directory with checkpoints of Spark, such as the storage of a pipeline. Shows the rows that are "
        "committed, and not yet acknowledged.",
    ),
]
_Ends = Mapping[tuple[str, str], LedgerOffset]


@reporting
def lag(store: StoreOption = None, checkpoint: CheckpointOption = None, output: OutputOption = Output.text) -> None:
    """Show the backlog of every subscription of every ledger, and the age of its oldest unread row."""
    found = opened(store)
    ends = {} if checkpoint is None else committed_ends(checkpoint, found.client.store_id)
    described, damage = ledgers_described(found.client, found.names())
    lags = list[Lag]()
    for cursors in _rounds(described):
        measured, damaged = _measured(found.client, cursors, ends)
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


def _measured(client: Client, cursors: dict[str, str], ends: _Ends) -> tuple[list[Lag], list[str]]:
    """Return the lags of subscriptions by log, and a line for each damaged subscription."""
    try:
        return _asked(client, cursors, ends), []
    except DAMAGE as error:
        if len(cursors) == 1:
            (log, cursor), *_ = cursors.items()
            return [], [f"{visible(cursor)} of {short_name(log)}: {error}"]
    each = [_measured(client, {log: cursor}, ends) for log, cursor in cursors.items()]
    return [lag for lags, _ in each for lag in lags], [line for _, lines in each for line in lines]


def _asked(client: Client, cursors: dict[str, str], ends: _Ends) -> list[Lag]:
    readings = {log: ReadProgress(cursor=cursor) for log, cursor in cursors.items()}
    found = client.ask(AskLogStatuses(list(cursors), readings))
    later = {
        log: ReadProgress(end.position, end.incarnation, cursor=cursor)
        for log, cursor in cursors.items()
        if (end := ends.get((log, cursor)))
    }
    left = {log.name: log.rows for log in client.ask(AskLogStatuses(list(later), later)).logs} if later else {}
    return [
        Lag(
            log.name,
            cursors[log.name],
            log.rows,
            log.entries,
            log.size_bytes,
            log.head_ms if log.rows else None,
            max(found.now_ms - log.head_ms, 0) if log.rows else None,
            log.rows - min(left[log.name], log.rows) if log.name in left else None,
        )
        for log in found.logs
    ]


def _table(lags: Sequence[Lag]) -> Table:
    table = Table("ledger", "subscription", "rows", "entries", "bytes", "oldest unread")
    if any(lag.committed_rows is not None for lag in lags):
        table.add_column("committed, not yet acknowledged", justify="right")
    for lag in lags:
        numbers = (f"{number:,}" for number in (lag.backlog_rows, lag.backlog_entries, lag.backlog_bytes))
        age = "none" if lag.age_ms is None else f"{age_words(lag.age_ms)} ago"
        committed = [] if lag.committed_rows is None else [f"{lag.committed_rows:,} rows"]
        table.add_row(visible(short_name(lag.ledger)), visible(lag.subscription), *numbers, age, *committed)
    return table
