"""Reader of the write-ahead log, from the first live number to the first missing number.

Rules
- Objects are asked for by number, several at once, and applied in order.
- If the object at the first live number is missing, the reader reads the manifest again: a collector may have been
  faster. The same first live number means an empty log.
- A number behind the window after the end proves a lost object: Corrupt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark_ledger.ledger.errors import Corrupt, NotFound
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, Bucket, log_key, number_of
from pyspark_ledger.ledger.wal.log_object import LogObject, decode_object
from pyspark_ledger.ledger.wal.requests import RequestLimits, repeated
from pyspark_ledger.ledger.wal.scan import Batch, LogScan

OBJECT_BYTES_MAX = 1024 * 1024 * 1024
_AHEAD = 8


class WalReader:
    """Reader of one pass over the log. `scan` has the position and the epoch."""

    def __init__(self, bucket: Bucket, store_id: str, scan: LogScan, limits: RequestLimits) -> None:
        self.scan = scan
        self._bucket = bucket
        self._store_id = store_id
        self._limits = limits

    def batches(self) -> Iterator[Batch]:
        """Yield all batches to the end of the log."""
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="wal-get") as getters:
            ahead: deque[Future[LogObject | None]] = deque()
            while True:
                while len(ahead) < _AHEAD:
                    ahead.append(getters.submit(self.fetch, self.scan.next + len(ahead)))
                found = ahead.popleft().result()
                if found is None:
                    for future in ahead:
                        future.cancel()
                    return
                yield from self.apply(found)

    def apply(self, found: LogObject) -> Iterator[Batch]:
        """Return the batches that are whole with the next object."""
        return self.scan.feed(found, self._where(found.header.number))

    def fetch(self, number: int) -> LogObject | None:
        """Return the object of a number, None if there is none. Raises Corrupt if it is of another store."""
        try:
            fetched = repeated(lambda: self._bucket.get(log_key(number), OBJECT_BYTES_MAX), self._limits)
        except NotFound:
            return None
        found = decode_object(fetched.data, self._where(number))
        if str(found.header.store_id) != self._store_id:
            raise Corrupt(
                f"{self._where(number)} is of store {found.header.store_id}, the manifest is of {self._store_id}",
                hint="Another store writes to the same prefix; give each its own",
            )
        return found

    def require_end(self, number: int, window: int) -> None:
        """Raise Corrupt if an object has a number of `number + window` or more: the objects before it are lost."""
        listing = self._bucket.objects(LOG_PREFIX, after=log_key(number + window - 1))
        beyond = repeated(lambda: next(iter(listing), None), self._limits)
        if beyond is not None:
            raise Corrupt(
                f"{self._where(number)} is missing, and {number_of(beyond.key)} is there: objects of the log are lost",
                hint="Restore them, for example from older versions of the bucket's objects",
            )

    def _where(self, number: int) -> str:
        return f"{log_key(number)} of {self._bucket.address}"
