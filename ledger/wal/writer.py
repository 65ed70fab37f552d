"""Writer of the write-ahead log: packs batches into objects, puts several objects at once, acknowledges in order.

A *batch* is a group of changes that becomes visible in one step. The *manifest* is the object that names the owner of
the store. The *epoch* in the manifest is a number that each new owner raises. The *window* is the number of objects
that may be unacknowledged at the same time.

    append ──▶ waiting ──▶ pack thread ──▶ put threads, up to `window` ──▶ read of the manifest ──▶ futures, in order
                 │              an object is due: see `ledger.wal.flush`

Rules
- The future of a batch is set when the object with the last part of the batch is acknowledged (`ledger.wal.fence`).
- A put is repeated with the same bytes until its result is known, or until its deadline.
- The writer fails if another broker's object is in the place of its own object. It also fails if the manifest has
  another epoch, or after a deadline. Pending and later batches then get the error, and `on_failure` is called once.
- The bytes of a file are read when their object is built. So the file must stay open until the future is set.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import NamedTuple

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import log_key
from pyspark_ledger.ledger.wal.fence import require_own
from pyspark_ledger.ledger.wal.flush import FlushSchedule
from pyspark_ledger.ledger.wal.log_object import Header, WalRange, encode_object
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.packing import Item, Packed, Packer
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest, store_object
from pyspark_ledger.ledger.wal.slots import Slots

_log = logging.getLogger(__name__)


class _Pending(NamedTuple):
    """Unacknowledged object: the futures of the batches that end in the object, and its number of bytes.

    `began` is the number of the object in which its first batch begins, which may be an earlier object.
    """

    futures: list[Future[WalRange]]
    size: int
    began: int


class WalWriter:
    """Writer of one broker. `identity` contains the broker's epoch, and the first number that the broker may use."""

    def __init__(
        self,
        bucket: ObjectStore,
        identity: Header,
        window: int,
        limits: RequestLimits,
        clock: Clock,
        on_failure: Callable[[LedgerError], None],
    ) -> None:
        self.failed: LedgerError | None = None
        """The error that ended this writer."""
        self.latencies = Latencies()
        """Durations from the first attempt to put an object to its success."""
        self.bytes = 0
        """Bytes of the acknowledged objects."""
        self._bucket = bucket
        self._identity = identity
        self._limits = limits
        self._clock = clock
        self._on_failure = on_failure
        self._slots = Slots(identity.number, identity.epoch, window)
        self._schedule = FlushSchedule(limits.flush_interval_ms, limits.object_bytes, limits.idle_ms)
        self._packer = Packer()
        self._waiting: list[tuple[Sequence[Item], Future[WalRange]]] = []
        self._packed: list[Future[WalRange]] = []  # futures of the batches in the packer, in order
        self._pending: dict[int, _Pending] = {}  # unacknowledged objects by their numbers
        self._continued: int | None = (
            None  # number of the object with the first part of a batch that is not packed completely
        )
        self._checking = self._closing = False
        self._changed = threading.Condition()
        self._putters = ThreadPoolExecutor(window, thread_name_prefix="wal-put")
        self._thread = threading.Thread(target=self._run, name="wal", daemon=True)
        self._thread.start()

    @property
    def end(self) -> int:
        """The lowest number that is not acknowledged."""
        return self._slots.lowest

    @property
    def needed(self) -> int:
        """The lowest number of an object with a part of an unacknowledged batch, or `end` if there is no such batch."""
        with self._changed:
            needed = [self._slots.lowest, *[pending.began for pending in self._pending.values()]]
            return min(needed if self._continued is None else [*needed, self._continued])

    def append(self, batch: Sequence[Item]) -> Future[WalRange]:
        """Queue a batch. The future returns the numbers of the batch's objects after they are acknowledged."""
        future: Future[WalRange] = Future()
        with self._changed:
            if self.failed is not None or self._closing:
                raise self.failed or Unavailable(f"the log of {self._bucket.address} is closed", hint="Connect again")
            self._waiting.append((batch, future))
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """Wait until all queued batches are acknowledged or have failed, and end the threads. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._putters.shutdown()

    # Pack thread.

    def _run(self) -> None:
        try:
            while self._await_due():
                self._submit(self._packer.pack(self._limits.object_bytes))
        except Exception as error:  # noqa: BLE001 — every caller that waits is told
            _log.exception("the log of %s ended with an unexpected error", self._bucket.address)
            self.fail(Unavailable(f"the log of {self._bucket.address} failed: {error!r}"))
        with self._changed:
            self._changed.wait_for(lambda: self.failed is not None or not self._slots.in_flight)

    def _await_due(self) -> bool:
        """Wait until an object is due and a slot is open. Return False if the writer is closed or has failed."""
        with self._changed:
            while True:
                if self.failed is not None:
                    return False
                for batch, future in self._waiting:
                    self._packer.put(batch)
                    self._packed.append(future)
                self._waiting.clear()
                if self._closing and not len(self._packer):
                    return False
                now = monotonic_ms()
                in_flight = [pending.size for pending in self._pending.values()]
                due = self._schedule.due_ms(now, self._packer, in_flight)
                if due is not None and self._slots.is_open and (due <= now or self._closing):
                    return True
                self._changed.wait((due - now) / 1000 if due is not None and due > now else None)

    def _submit(self, packed: Packed) -> None:
        with self._changed:
            if self.failed is not None:
                return  # the file of a failed batch may be closed, and its descriptor may now belong to another file
            number = self._slots.take()
            done, self._packed = self._packed[: packed.ended], self._packed[packed.ended :]
            began = number if self._continued is None else self._continued
            self._pending[number] = _Pending(done, sum(part.length for part, _ in packed.parts), began)
            if not self._packer.is_inside_batch:
                self._continued = None
            elif self._continued is None or packed.ended:
                self._continued = number
            self._schedule.flushed(monotonic_ms(), len({part.file for part, _ in packed.parts}))
            pending = number - self._slots.lowest
        header = self._identity._replace(number=number, time_ms=self._clock(), pending=pending)
        self._putters.submit(self._put, header, encode_object(header, packed.parts))

    # Put threads.

    def _put(self, header: Header, data: Sequence[Buffer]) -> None:
        try:
            started = perf_counter()
            slot = store_object(self._bucket, header, data, self._limits, self._is_over)
            require_own(slot, header, self._bucket.address)
            self.latencies.observe(perf_counter() - started)
            with self._changed:
                self._slots.store(header.number)
            self._check_epoch()
        except LedgerError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 — every caller that waits is told
            _log.exception("%s of %s failed", log_key(header.number), self._bucket.address)
            self.fail(Unavailable(f"{log_key(header.number)} of {self._bucket.address}: {error!r}"))

    def _check_epoch(self) -> None:
        """Read the manifest and acknowledge stored objects, until no stored object waits.

        If another thread is in this method already, that thread does the work, and this call returns at once.
        """
        while True:
            with self._changed:
                stored = self._slots.checkable()
                if self._checking or not stored or self.failed is not None:
                    return
                self._checking = True
            try:
                self._acknowledge(stored, read_manifest(self._bucket, self._limits, self._is_over).manifest)
            finally:
                with self._changed:
                    self._checking = False

    def _acknowledge(self, stored: frozenset[int], manifest: StoreManifest) -> None:
        """Acknowledge the stored objects, and set their futures in order. One thread at a time calls this method."""
        with self._changed:
            if self.failed is not None:
                return
            done = self._slots.acknowledge(stored, manifest, self._bucket.address)
            ended = [(number, self._pending.pop(number)) for number in done]
            self.bytes += sum(pending.size for _, pending in ended)
            self._changed.notify_all()
        for number, pending in ended:
            first = pending.began
            for future in pending.futures:
                future.set_result(WalRange(first, number))
                first = number

    def _is_over(self) -> bool:
        return self.failed is not None

    def fail(self, error: LedgerError) -> None:
        """End the writer with an error, which pending and later batches get. Only the first call has an effect."""
        with self._changed:
            if self.failed is not None:
                return
            self.failed = error
            pending = [future for number in sorted(self._pending) for future in self._pending[number].futures]
            pending += self._packed + [future for _, future in self._waiting]
            self._pending, self._packed, self._waiting = {}, [], []
            self._changed.notify_all()
        _log.error("the log of %s ends: %s", self._bucket.address, error)
        self._on_failure(error)
        for future in pending:
            future.set_exception(error)
