"""Ranges of objects in memory: fetched once however many ask, a few ahead of whoever reads on, bounded.

An object is cut into windows of a fixed size. Who reads on from where a read ended, or from the first byte of the data,
is served by windows, and the next ones are on their way meanwhile. A read somewhere else fetches what it needs and no
more.

Invariants: at most `bytes_max` are kept, windows that are on their way included, but for those that somebody waits for;
the least recently used go first. A fetch that failed is forgotten: the next reader tries again. One thread pool bounds
what is in flight.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.offload.storage.object_store import ObjectStore

_ENDS_KEPT = 64


@dataclass
class WindowedObject:
    """One object that is read through windows; `size` is its length in bytes."""

    store: ObjectStore
    key: str
    size: int
    first: int
    """Where its data begin: who reads from there reads on, it is assumed."""
    ends: deque[int] = field(default_factory=lambda: deque(maxlen=_ENDS_KEPT))


class WindowCache:
    """Windows of all objects that a process reads. Any thread may call any method."""

    def __init__(self, window_bytes: int, bytes_max: int, threads: int) -> None:
        self._window = window_bytes
        self._most = max(bytes_max // window_bytes, 1)
        self._ahead = min(threads, self._most - 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fetch")
        self._kept: OrderedDict[tuple[str, str, int], Future[pa.Buffer]] = OrderedDict()
        self._awaited: Counter[Future[pa.Buffer]] = Counter()
        self._lock = threading.Lock()
        self._closed = False
        self.requests = 0

    def read(self, source: WindowedObject, start: int, length: int, *, alone: bool = False) -> pa.Buffer:
        """Exactly the bytes `[start, start + length)`; a view of one window where they lie in one.

        `alone`: the reader knows better what it reads next, and nothing else is fetched.
        """
        end = start + length
        first, last = start // self._window, (end - 1) // self._window
        with self._lock:
            reads_on = not alone and self._reads_on(source, start)
            source.ends.append(end)
            if not reads_on and not all(self._key(source, n) in self._kept for n in range(first, last + 1)):
                wanted = None
            else:
                wanted = [self._wanted(source, number) for number in range(first, last + 1)]
                for number in range(last + 1, last + 1 + self._ahead if reads_on else 0):
                    if number * self._window < source.size:
                        self._wanted(source, number)
            self._awaited.update(wanted or [])
            self._make_room()
        if wanted is None:
            return self._fetch(source, start, length)
        try:
            return self._cut([future.result() for future in wanted], start - first * self._window, length)
        except CancelledError:
            raise _closed(source) from None
        finally:
            with self._lock:
                self._awaited -= Counter(wanted)

    def forget(self, source: WindowedObject) -> None:
        """Let go of what is kept of an object."""
        with self._lock:
            for key in [key for key in self._kept if key[:2] == (source.store.address, source.key)]:
                del self._kept[key]

    def close(self) -> None:
        """Fetch nothing more; what is read from now on is Unavailable."""
        with self._lock:
            self._closed = True
            self._kept.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _reads_on(self, source: WindowedObject, start: int) -> bool:
        return start <= source.first or any(0 <= start - before <= self._window for before in source.ends)

    def _wanted(self, source: WindowedObject, number: int) -> Future[pa.Buffer]:
        if self._closed:
            raise _closed(source)
        key = self._key(source, number)
        found = self._kept.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception() is not None)):
            start = number * self._window
            found = self._pool.submit(self._fetch, source, start, min(self._window, source.size - start))
            self._kept[key] = found
        self._kept.move_to_end(key)
        return found

    def _make_room(self) -> None:
        """Let the oldest windows go; those that anybody waits for stay."""
        for key in list(self._kept)[: max(len(self._kept) - self._most, 0)]:
            if self._kept[key] not in self._awaited:
                self._kept.pop(key).cancel()

    def _fetch(self, source: WindowedObject, start: int, length: int) -> pa.Buffer:
        self.requests += 1
        return _as_arrow(source.store.get_range(source.key, start, length))

    def _cut(self, windows: list[pa.Buffer], start: int, length: int) -> pa.Buffer:
        if len(windows) == 1:
            return windows[0].slice(start, length)
        joined = bytearray()
        for number, window in enumerate(windows):
            joined += memoryview(window)[start if number == 0 else 0 :][: length - len(joined)]
        return pa.py_buffer(joined)

    def _key(self, source: WindowedObject, number: int) -> tuple[str, str, int]:
        return source.store.address, source.key, number


def _closed(source: WindowedObject) -> Unavailable:
    return Unavailable(f"{source.store.address}/{source.key}: its reader was closed", hint="Read again")


def _as_arrow(data: Buffer) -> pa.Buffer:
    return data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
