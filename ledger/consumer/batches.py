"""Iterator over the batches of a loop, which waits for rows, and which any thread or signal handler may close.

    caller ── next ──▶ Batches ── take · passed · wait ──▶ BatchSource ──▶ broker
    another thread, or a signal handler ── close ──▶ Batches ── wake ──▶ BatchSource

Rules
- Each batch is handed out once. If several threads iterate, one at a time is in `next`.
- A source goes on only when the next batch is asked for. So an interrupt in `next`, such as a KeyboardInterrupt, loses
  no batch: the next call of `next` returns it.
- `close` waits for no thread in `next`, so a signal handler may call it in the middle of `next`. Such a `next` closes
  the source when it ends.
- A forked child uses nothing of its parent: `next` raises Refused, and `close` does nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from pyspark_ledger.ledger.client.unclosed import warn_unclosed
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.consumer.batch import Batch
from pyspark_ledger.ledger.errors import Refused

_WAIT_MS_MAX = 5_000  # of one wait. Python runs a signal's handler after the wait if the signal came just before it

B = TypeVar("B", bound=Batch[Any])


class BatchSource(Protocol[B]):
    """Source of the batches of one loop. One thread at a time calls its methods; any thread may call `wake`."""

    def take(self) -> B | None:
        """Return the next batch, or None if there is none now. Until `passed`, a repeated call returns it again."""

    def passed(self, batch: B) -> None:
        """Go on after a batch that was handed out. A repeated call has no further effect."""

    def wait(self, milliseconds: int) -> bool:
        """Wait until there may be a batch, or until this time has passed. May return early.

        0 milliseconds: look once whether there is a batch, before the loop ends. Returns False if no batch can follow,
        for example after the end of a terminated ledger.
        """

    def wake(self) -> None:
        """End a `wait` that runs, or else the next one. Takes no lock, because a signal handler may call it."""

    def close(self) -> None:
        """Release what the source holds. A repeated call has no further effect."""


class BatchSteps(Generic[B]):
    """Steps of an iterator over batches: `fill` reads a batch, `hand_out` returns it. asyncio's loops call them."""

    def __init__(
        self,
        source: BatchSource[B],
        name: str,
        wait_ms: int | None,
        after: Callable[[B], None] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        """`after` receives each batch when the thread that got it asks for the next one, or at the end of the loop.

        With `leave`, an iterator that is freed before its end and not closed calls it, and gives a ResourceWarning.
        """
        self._source = source
        self._name = name
        self._wait_ms = wait_ms
        self._after = after
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._closed = False
        self._unseen: list[B] = []  # a batch that was read, and not handed out yet
        self._newest: B | None = None  # the batch that the source has to pass before it takes the next one
        self._given: dict[int, B] = {}  # the batch that each thread got last, if `after` has to receive it
        self._unclosed: weakref.finalize[Any, Any] | None = None
        if leave is not None:
            weakref.finalize(self, leave)
            self._unclosed = warn_unclosed(self, f"batches of {name}")

    def until(self) -> int | None:
        """Return the monotonic time in milliseconds at which a wait that begins now ends the loop; None: never."""
        return None if self._wait_ms is None else monotonic_ms() + self._wait_ms

    def fill(self, until: int | None, longest_ms: int) -> bool:
        """Read the next batch, for `hand_out`. Return False at the end of the loop.

        A source raises Parked where it would wait, inside `end_watch.parking`. Then call this method again.
        """
        self._require_own_process()
        try:
            with self._turn:
                self._finish(0)
                return self._read(until, longest_ms)
        finally:
            if self._closed:
                self._release()

    def hand_out(self) -> B:
        """Return the batch that `fill` has read. All calls of these two methods count as those of one thread."""
        batch = self._unseen.pop(0)
        if self._after is not None:
            self._given[0] = batch
        return batch

    def _finish(self, thread: int) -> None:
        """Pass the thread's last batch to `after`. If this fails, the next call repeats it."""
        if self._after is not None and not self._closed and thread in self._given:
            self._after(self._given[thread])
            del self._given[thread]

    def _read(self, until: int | None, longest_ms: int) -> bool:
        """Read a batch into `_unseen`. Return False at the end of the loop, and then close the iterator."""
        looked = False
        while not self._closed and not self._unseen:
            if self._newest is not None:
                self._source.passed(self._newest)
                self._newest = None
            batch = self._source.take()
            if batch is not None:
                self._newest = batch
                self._unseen.append(batch)
                break
            left = longest_ms if until is None else max(min(until - monotonic_ms(), longest_ms), 0)
            if looked or not self._source.wait(left):
                self._closed = True
            looked = not left
        return not self._closed

    def _release(self) -> None:
        """Close the source, unless a thread is in `next`. That thread calls this method afterwards."""
        if not self._turn.locked():
            with self._turn:
                if self._unclosed is not None:
                    self._unclosed.detach()
                self._source.close()

    def _require_own_process(self) -> None:
        if self._pid != os.getpid():
            raise Refused(
                f"the batches of {self._name} were opened in process {self._pid}, process {os.getpid()} iterates them",
                hint="Begin a loop of its own in each process, after the fork",
            )


class Batches(BatchSteps[B], Iterator[B]):
    """Iterator over batches. Use it in a `for` statement, and close it or use `with`.

    `close` ends the iteration, also from another thread or in a signal handler. A `next` that waits then raises
    StopIteration, as every later one. After another error or an interrupt, `next` can be called again.

    The iterator of a cursor that is freed before its end, and not closed, gives a ResourceWarning, as a file does.

        with orders.follow() as batches:
            for batch in batches: ...
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}, {'closed' if self._closed else 'open'}>"

    def __enter__(self) -> Batches[B]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Batches[B]:
        return self

    def __next__(self) -> B:
        """Return the next batch. Wait for its rows.

        Raises StopIteration at the end of the loop, and the errors of the source, such as DataLoss and Unavailable.
        """
        self._require_own_process()
        thread = threading.get_ident()
        batch: B | None = None
        try:
            with self._turn:
                self._finish(thread)
                self._read_or_stop()
                # Python delivers an interrupt only after a call. Nothing is called between the next two lines, nor
                # between the lines after `with`. So the batch is in exactly one of `_unseen` and `batch`.
                batch = self._unseen[0]
                del self._unseen[0]
            if self._after is not None:
                self._given[thread] = batch
            return batch  # noqa: TRY300 — an `else` block would be outside of the `try`
        except BaseException:
            if batch is not None:
                self._unseen.insert(0, batch)  # an interrupt: the caller does not get the batch
            raise
        finally:
            if self._closed:
                self._release()

    def close(self) -> None:
        """End the iteration, and wake a `next` that waits. A repeated call has no further effect.

        Does not acknowledge the batch that was handed out last.
        """
        if self._pid == os.getpid():
            self._closed = True
            self._source.wake()
            self._release()

    def _read_or_stop(self) -> None:
        """Read a batch into `_unseen`. Raises StopIteration at the end of the loop."""
        if not self._read(self.until(), _WAIT_MS_MAX):
            raise StopIteration
