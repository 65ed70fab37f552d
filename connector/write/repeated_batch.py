"""Batches that are in the log already: their tasks pull no rows, and their commit appends nothing.

Rules
- A batch that is not above the newest of its query is a repetition, as for the broker's commit. Batches stay in the log
  for as long as the ledger lives, so a repetition stays one.
- The driver asks once for a write that has a name. A streaming write learns its query in its tasks: a process of tasks
  asks before it stages the first batch of a query, and again for a batch that is not above the last one it staged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.protocol.commits import AskNewestBatch, NewestBatch

if TYPE_CHECKING:
    from pyspark_ledger.connector.write.target import SinkTarget

Ask = Callable[[str, AskNewestBatch], NewestBatch]
_staged: dict[tuple[str, str], int] = {}


def is_repetition(ask: Ask, target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a batch is in all of its ledgers."""
    named = target.named
    request = (
        AskNewestBatch("" if named is None else named.name, query, several=True)
        if target.several or named is None
        else AskNewestBatch(named.name, query, named.incarnation)
    )
    return batch <= ask("run.newest", request).batch


def is_repeated_task(ask: Ask, target: SinkTarget, query: str, batch: int) -> bool:
    """Return whether a task of a streaming batch has nothing to do; asks the broker only where that is likely."""
    key = target.store_id, query
    last = _staged.get(key)
    if last is not None and batch > last:
        _staged[key] = batch
        return False
    if is_repetition(ask, target, query, batch):
        return True
    _staged[key] = batch
    return False
