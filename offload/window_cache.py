"""LRU cache of object ranges with prefetching.

An object is divided into windows of a fixed size. A read is *sequential* if it starts near the end of an earlier read,
or at the first byte of the data. A sequential read fetches whole windows, and prefetches the next windows. Any other
read fetches exactly its range, unless all windows of the range are cached.

Invariants
- Concurrent readers of a window share one fetch.
- The cache has at most `bytes_max`, including fetches in flight. The least recently used window is evicted first.
  Exception: a window that a reader waits for is not evicted.
- A failed fetch is not cached: the next reader tries again.
- One thread pool bounds the number of fetches in flight.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.objects.object_store import ObjectStore

_ENDS_MAX = 64


@dataclass
class WindowedObject:
    """Object that is read through the cache. `size` is its length in bytes, `ends` are the ends of recent reads."""

    store: ObjectStore
    key: str
    size: int
    first: int
    """Offset of the first data byte. A read that starts here or before is sequential."""
    ends: deque[int] = field(default_factory=lambda: deque(maxlen=_ENDS_MAX))


class WindowCache:
    """Cache of the windows of all objects that a process reads. Thread-safe."""

    def __init__(self, window_bytes: int, bytes_max: int, threads: int) -> None:
        self._window_bytes = window_bytes
        self._windows_max = max(bytes_max // window_bytes, 1)
        self._prefetch_windows = min(threads, self._windows_max - 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fetch")
        self._windows: OrderedDict[tuple[str, str, int], Future[pa.Buffer]] = OrderedDict()
        self._awaited: Counter[Future[pa.Buffer]] = Counter()
        self._lock = threading.Lock()
        self._closed = False
        self.requests = 0

    def read(self, source: WindowedObject, start: int, length: int, *, alone: bool = False) -> pa.Buffer:
        """Return exactly the bytes `[start, start + length)`. A range within one window is returned as a view.

        If `alone` is set, only this range is fetched. Callers that prefetch by themselves set it. Raises Unavailable
        for a read of whole windows after `close`.
        """
        end = start + length
        first, last = start // self._window_bytes, (end - 1) // self._window_bytes
        with self._lock:
            is_sequential = not alone and self._is_sequential(source, start)
            source.ends.append(end)
            if not is_sequential and not all(self._key(source, n) in self._windows for n in range(first, last + 1)):
                futures = None
            else:
                futures = [self._window_of(source, number) for number in range(first, last + 1)]
                for number in range(last + 1, last + 1 + self._prefetch_windows if is_sequential else 0):
                    if number * self._window_bytes < source.size:
                        self._window_of(source, number)
            self._awaited.update(futures or [])
            self._evict_oldest()
        if futures is None:
            return self._fetch(source, start, length)
        try:
            return self._slice([future.result() for future in futures], start - first * self._window_bytes, length)
        except CancelledError:
            raise _closed(source) from None
        finally:
            with self._lock:
                self._awaited -= Counter(futures)

    def evict(self, source: WindowedObject) -> None:
        """Evict all windows of an object."""
        with self._lock:
            for key in [key for key in self._windows if key[:2] == (source.store.address, source.key)]:
                del self._windows[key]

    def close(self) -> None:
        """Cancel the queued fetches. Later reads of whole windows raise Unavailable."""
        with self._lock:
            self._closed = True
            self._windows.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_sequential(self, source: WindowedObject, start: int) -> bool:
        return start <= source.first or any(0 <= start - before <= self._window_bytes for before in source.ends)

    def _window_of(self, source: WindowedObject, number: int) -> Future[pa.Buffer]:
        if self._closed:
            raise _closed(source)
        key = self._key(source, number)
        found = self._windows.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception() is not None)):
            start = number * self._window_bytes
            found = self._pool.submit(self._fetch, source, start, min(self._window_bytes, source.size - start))
            self._windows[key] = found
        self._windows.move_to_end(key)
        return found

    def _evict_oldest(self) -> None:
        """Evict the least recently used windows above the limit, except windows that a reader waits for."""
        for key in list(self._windows)[: max(len(self._windows) - self._windows_max, 0)]:
            if self._windows[key] not in self._awaited:
                self._windows.pop(key).cancel()

    def _fetch(self, source: WindowedObject, start: int, length: int) -> pa.Buffer:
        self.requests += 1
        return _as_arrow(source.store.get_range(source.key, start, length))

    def _slice(self, windows: list[pa.Buffer], start: int, length: int) -> pa.Buffer:
        if len(windows) == 1:
            return windows[0].slice(start, length)
        joined = bytearray()
        for number, window in enumerate(windows):
            joined += memoryview(window)[start if number == 0 else 0 :][: length - len(joined)]
        return pa.py_buffer(joined)

    def _key(self, source: WindowedObject, number: int) -> tuple[str, str, int]:
        return source.store.address, source.key, number


def _closed(source: WindowedObject) -> Unavailable:
    return Unavailable(f"{source.store.address}/{source.key}: the reader of the object was closed", hint="Read again")


def _as_arrow(data: Buffer) -> pa.Buffer:
    return data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
