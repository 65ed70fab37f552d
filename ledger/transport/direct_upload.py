"""Upload of the data object of a direct segment while its entries are made.

A task uploads its rows if they are many. The broker joins the rows of several tasks if they are few, and uploads them.

    bytes of an entry ─▶ piece of about 8 MiB ─▶ part of an upload, by another thread
                                                   marker ─▶ last header ─▶ complete

The object has the bytes of a segment (`ledger.segment.format`). An object cannot be changed, so the stamps before its
entries are provisional, and readers compute the real ones (`ledger.segment.provisional_stamps`).

Rules
- The piece with the header of the open block is not sent before the block is full. Reason: if this block is the last,
  its real length must be written into the header.
- At most `_IN_FLIGHT` pieces are being sent, so that memory is bounded.
- The object exists when `close` returns. After an error the upload is aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import LedgerError, NotFound
from pyspark_ledger.ledger.message.entry import provisional_stamp
from pyspark_ledger.ledger.objects.object_store import ObjectStore, Upload, UploadedPart
from pyspark_ledger.ledger.objects.retry import retry
from pyspark_ledger.ledger.protocol.commits import PartRun, PutObject, StagedPart
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.transport.part_writer import PartCounts, PartWriter

_PIECE_BYTES = 8 * 1024 * 1024
_PIECES_OF_ONE_SIZE = 2_500  # after this number the pieces become larger, because S3 allows 10,000 parts an upload
_THREADS, _IN_FLIGHT = 2, 4


class DirectPlace(NamedTuple):
    """Place of a data object: its store, its key, and its user metadata."""

    store: ObjectStore
    key: ObjectKey
    metadata: dict[str, str]


class _Piece(NamedTuple):
    """Part `number` of the object, which begins at the offset `start`."""

    number: int
    start: int
    data: bytearray

    def contains(self, offset: int) -> bool:
        return self.start <= offset < self.start + len(self.data)


def direct_writer(place: DirectPlace, run: PartRun) -> PartWriter:
    """Begin the upload of a data object. Return its writer, which the caller aborts after an error."""
    return PartWriter(PartUpload(place), run, provisional_stamp(run.publish_ms), "a part for the bucket")


class PartUpload:
    """Upload of one data object. It copies the bytes of the entries."""

    def __init__(self, place: DirectPlace) -> None:
        self._place = place
        self._upload: Upload | None = retry(lambda: place.store.begin_upload(place.key.data_name, place.metadata))
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="direct-upload")
        self._pieces: list[_Piece] = []  # complete, and not sent yet
        self._open = _Piece(1, 0, bytearray())
        self._sending: deque[Future[UploadedPart]] = deque()
        self._sent: list[UploadedPart] = []

    def append(self, buffers: Sequence[Buffer], _size: int, final: int) -> None:
        number, start, data = self._open
        for buffer in buffers:
            data.extend(memoryview(buffer))
        if len(data) >= _piece_bytes(number):
            self._pieces.append(self._open)
            self._open = _Piece(number + 1, start + len(data), bytearray())
            pieces, self._pieces = self._pieces, [piece for piece in self._pieces if piece.contains(final)]
            self._send(piece for piece in pieces if not piece.contains(final))

    def overwrite(self, offset: int, data: bytes) -> None:
        piece = next(piece for piece in (*self._pieces, self._open) if piece.contains(offset))
        piece.data[offset - piece.start : offset - piece.start + len(data)] = data

    def rest(self) -> None:
        """Do nothing, because the bytes cannot be sent before a piece is complete."""

    def close(self, counts: PartCounts) -> StagedPart:
        """Send the rest, and complete the object."""
        pieces, self._pieces = (*self._pieces, self._open), []
        self._send(piece for piece in pieces if piece.data)
        while self._sending:
            self._sent.append(self._sending.popleft().result())
        self._complete()
        key = self._place.key
        sizes, rows = (np.array(values, dtype="<u4").tobytes() for values in (counts.sizes, counts.counts))
        described = PutObject(str(key.attempt), key.ledger_id, sizes, rows)
        return StagedPart(key.data_name, counts.entries, counts.rows, counts.length, 0, counts.block_bytes, described)

    def abort(self) -> None:
        """Abort the upload. Raises no error of the bucket, because the broker's sweep later aborts the upload too."""
        self._pool.shutdown(cancel_futures=True)
        if self._upload is not None:
            with suppress(LedgerError):
                self._place.store.abort(self._upload)

    def _send(self, pieces: Iterator[_Piece]) -> None:
        """Give pieces to the thread pool. Waits if too many are being sent. Raises the error of an earlier piece."""
        for piece in pieces:
            while len(self._sending) >= _IN_FLIGHT or (self._sending and self._sending[0].done()):
                self._sent.append(self._sending.popleft().result())
            self._sending.append(self._pool.submit(self._put, piece))

    def _put(self, piece: _Piece) -> UploadedPart:
        assert self._upload is not None  # noqa: S101 — the upload is not complete
        store, upload, view = self._place.store, self._upload, memoryview(piece.data)
        with _required(self._place):
            return retry(lambda: store.put_part(upload, piece.number, [view], len(view)))

    def _complete(self) -> None:
        upload, parts = self._upload, sorted(self._sent)
        assert upload is not None  # noqa: S101 — as above
        with _required(self._place):
            retry(lambda: self._place.store.complete(upload, parts))
        self._upload = None
        self._pool.shutdown()


@contextmanager
def _required(place: DirectPlace) -> Iterator[None]:
    """Raise NotFound with the likely reasons if the upload was deleted before its end."""
    try:
        yield
    except NotFound as gone:
        raise NotFound(
            f"the upload of {place.store.address}/{place.key.data_name} is gone before its end: {gone.message}",
            hint="A sweep after stagingRetentionSeconds or a later commit deleted it. Run the batch again",
        ) from gone


def _piece_bytes(number: int) -> int:
    """Return the minimum size of part `number` in bytes."""
    return _PIECE_BYTES << min((number - 1) // _PIECES_OF_ONE_SIZE, 3)
