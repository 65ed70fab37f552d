"""Reader of the write-ahead log of a store in a bucket. docs/decisions/bucket-store.md describes the log.

The log consists of numbered objects, and ends at the first missing number. The *first live number* is the number of the
oldest object that is still needed. The manifest, the object that names the store's broker, contains this number. Each
log object has the *epoch* of its broker, a number that each new broker of the store raises. A *batch* is a group of
changes that becomes visible in one step. A *part* is a piece of a batch in one object.

Rules
- The reader requests several objects at once, and applies them in the order of their numbers. It requests at most as
  many objects ahead as it has found, so that a reader at the end of the log sends one request.
- While another process reads, the broker may raise the first live number and delete the objects below it. So the caller
  reads the manifest again at the end. If the first live number has changed, the caller starts there again.
- The log ends at the first missing number. This object is lost, and the reader raises Corrupt, if one of these is true.
  1. The manifest, its snapshot or a later object states that the number was acknowledged.
  2. There is an object `window` or more numbers later. A broker has at most `window` puts in flight.
- Otherwise the object may be missing after a kill, because it was never acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, NotFound
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, MANIFEST, log_key, number_of
from pyspark_ledger.ledger.wal.log_object import LogObject, WalPart, WalRange, decode_object
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.requests import RequestLimits, repeated
from pyspark_ledger.ledger.wal.scan import LogScan, Part, PayloadPlace

OBJECT_BYTES_MAX = 1024 * 1024 * 1024
_AHEAD = 8


class Batch(NamedTuple):
    """Complete batch: the range of its objects, and its parts.

    Each part has its payload, and the place of the payload in the log. The parts are an iterator that can be used once.
    """

    place: WalRange
    parts: Iterable[Part]
    places: list[PayloadPlace]


class WalReader:
    """Reader of the log, for one pass. `scan` contains the number of the next object, and the highest epoch so far."""

    def __init__(
        self, bucket: ObjectStore, store_id: str, scan: LogScan, limits: RequestLimits, former: Collection[str] = ()
    ) -> None:
        self.scan = scan
        self._bucket = bucket
        self._store_id = store_id
        self._known = {store_id, *former}
        self._limits = limits

    def batches(self) -> Iterator[Batch]:
        """Yield all batches to the end of the log."""
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="wal-get") as getters:
            ahead: deque[Future[LogObject | None]] = deque()
            first = self.scan.next
            while True:
                while len(ahead) < min(_AHEAD, 1 + self.scan.next - first):
                    ahead.append(getters.submit(self.fetch, self.scan.next + len(ahead)))
                found = ahead.popleft().result()
                if found is None:
                    for future in ahead:
                        future.cancel()
                    return
                yield from self.apply(found)

    def apply(self, found: LogObject) -> Iterator[Batch]:
        """Apply the next object, and return the batches that it completes."""
        for place, parts, places in self.scan.feed(found, self._where(found.header.number)):
            yield Batch(place, self._with_payloads(parts), places)

    def _with_payloads(self, parts: Iterable[tuple[WalPart, memoryview | PayloadPlace]]) -> Iterator[Part]:
        """Yield the parts with their payloads. If the scan has kept only the place of a payload, read it again."""
        for part, found in parts:
            yield part, self._payload(part, found) if isinstance(found, PayloadPlace) else found

    def _payload(self, part: WalPart, place: PayloadPlace) -> memoryview:
        key, length = log_key(place.number), part.length
        data = repeated(lambda: self._bucket.get_range(key, place.offset, length), self._limits)
        if crc32c(data) != part.crc32c:
            raise Corrupt(
                f"{self._where(place.number)} at {place.offset}: CRC32C {crc32c(data):#010x} of {length} bytes, "
                f"stated is {part.crc32c:#010x}"
            )
        return memoryview(data)

    def fetch(self, number: int) -> LogObject | None:
        """Return the object of a number, or None if the slot is empty.

        Raises Corrupt if the object is of another store.
        """
        try:
            fetched = repeated(lambda: self._bucket.get(log_key(number), OBJECT_BYTES_MAX), self._limits)
        except NotFound:
            return None
        found = decode_object(fetched.data, self._where(number))
        if str(found.header.store_id) not in self._known:
            raise Corrupt(
                f"{self._where(number)} is of store {found.header.store_id}, the manifest is of {self._store_id}",
                hint="Another store writes to the same prefix. Give each store its own prefix",
            )
        return found

    def require_end(self, manifest: StoreManifest) -> None:
        """Raise Corrupt if the object of the next number was lost. Then this number is not the end of the log.

        `manifest` was read before the log.
        """
        number, window = self.scan.next, manifest.window
        if manifest.stated_end > number:
            raise self._lost(number, _stating(MANIFEST, manifest.stated_end))
        for later in repeated(lambda: self._later(number, window), self._limits):
            if later >= number + window:
                raise self._lost(number, f"{log_key(later)} is there")
            found = self.fetch(later)
            if found is not None and found.header.acknowledged > number:
                raise self._lost(number, _stating(log_key(later), found.header.acknowledged))

    def _later(self, number: int, most: int) -> list[int]:
        """Return at most `most` numbers of objects after `number`."""
        listing = self._bucket.objects(LOG_PREFIX, after=log_key(number))
        return [number_of(listed.key) for listed in islice(listing, most)]

    def _lost(self, number: int, proof: str) -> Corrupt:
        return Corrupt(
            f"{self._where(number)} is missing, and {proof}: objects of the log are lost",
            hint="Restore them, for example from older versions of the bucket's objects",
        )

    def _where(self, number: int) -> str:
        return f"{log_key(number)} of {self._bucket.address}"


def _stating(key: str, end: int) -> str:
    return f"{key} states that all objects below {end} were acknowledged"
