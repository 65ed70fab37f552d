"""Id of a batch of a query, for logs. Client calls carry it in a header, so the broker logs the same id.

    ledger-batch: BATCH TRIGGER            both percent-encoded; TRIGGER may be missing

    write    BATCH is QUERY:NUMBER, the query and the number of its batch
    read     BATCH is RUN-NUMBER: a random id of the query's run, and a counter. Reason: Spark does not tell a reader
             its query and the number of its batch
    both     TRIGGER is QUERY:NUMBER of Spark. Only tasks and listeners know it; elsewhere it is missing

A *trigger* is the unit of work of a streaming query: Spark plans, runs and commits one batch.

Rules
- The id is for people who read logs. No decision depends on it, and a call without it is served the same.
- The id is a context variable (`contextvars`) of a thread. A thread that works for another thread's batch must set it.
- A text from a header has at most `_LENGTH_MAX` characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, unquote

HEADER = "ledger-batch"
_LENGTH_MAX = 256
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchId:
    """Id of a batch, and the trigger of Spark to which the batch belongs; empty if the trigger is not known."""

    batch: str
    trigger: str = ""

    @classmethod
    def of_write(cls, query: str, number: int, trigger: str = "") -> BatchId:
        """Return the id of batch `number` of a write. Without a `trigger`, query and number are also its trigger."""
        batch = f"{query}:{number}"
        return cls(batch, trigger or batch)


_current: ContextVar[BatchId | None] = ContextVar("ledger-batch", default=None)


def current_batch() -> BatchId | None:
    """Return the batch of this context, None outside of a batch."""
    return _current.get()


@contextmanager
def in_batch(batch: BatchId | None) -> Iterator[None]:
    """Run the block as a part of a batch; None changes nothing."""
    if batch is None:
        yield
        return
    token = _current.set(batch)
    try:
        yield
    finally:
        _current.reset(token)


def each_in_batch(batch: BatchId | None, items: Iterable[T]) -> Iterator[T]:
    """Yield items. The iterator that makes the items runs as a part of a batch. The caller's code does not."""
    iterator = iter(items)
    while True:
        with in_batch(batch):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def batch_header() -> list[tuple[bytes, bytes]]:
    """Return the header of a call in this context; none outside of a batch."""
    batch = current_batch()
    if batch is None:
        return []
    texts = [text for text in (batch.batch, batch.trigger) if text]
    return [(HEADER.encode(), " ".join(quote(text[:_LENGTH_MAX], safe=":") for text in texts).encode())]


def batch_of_header(value: str) -> BatchId | None:
    """Return the batch of a header; None for an empty header."""
    batch, _, trigger = value.partition(" ")
    texts = [unquote(text)[:_LENGTH_MAX] for text in (batch, trigger)]
    return BatchId(*texts) if texts[0] else None
