"""Upload of the data object of a direct segment while its entries are made.

A task uploads its rows if they are many. The broker joins the rows of several tasks if they are few, and uploads them.

    entry ─▶ frame with a provisional stamp ─▶ piece of about 8 MiB ─▶ part of an upload, by another thread
                                                                        marker ─▶ last header ─▶ complete

The object has the bytes of a segment (`ledger.segment.format`). An object cannot be changed, so the stamps before its
entries are provisional, and readers compute the real ones (`ledger.segment.provisional_stamps`).

Rules
- The upload begins when the pieces have `upload_from` bytes. Until then they are in memory, and `entries` returns them.
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
from pyspark_ledger.ledger.protocol.commits import PartRun, PutObject, StagedPart
from pyspark_ledger.ledger.segment.format import HEADER_BYTES
from pyspark_ledger.ledger.transport.segment_layout import SegmentLayout, marker_of
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.storage.object_store import ObjectStore, Upload, UploadedPart
from pyspark_ledger.offload.upload import retry

_PIECE_BYTES = 8 * 1024 * 1024
_PIECES_OF_ONE_SIZE = 2_500  # after this number the pieces become larger, because S3 allows 10,000 parts an upload
_THREADS, _IN_FLIGHT = 2, 4


class DirectPlace(NamedTuple):
    """Place of a data object: its store, its key, and its user metadata."""

    store: ObjectStore
    key: ObjectKey
    metadata: dict[str, str]


class _Piece(NamedTuple):
    """Part `number` of the object."""

    number: int
    data: bytearray


class DirectUpload:
    """Writer of one data object. The caller begins the upload when it `is_due`, and aborts it after an error."""

    def __init__(self, run: PartRun, upload_from: int) -> None:
        self._run = run
        self._upload_from = upload_from
        self._layout = SegmentLayout(run.block_bytes, provisional_stamp(run.publish_ms), "a part for the bucket")
        self._lengths: list[int] = []
        self._rows: list[int] = []
        self._starts: list[tuple[int, int]] = []  # piece and offset of each entry, until the upload begins
        self._pieces: list[_Piece] = []  # complete, and not sent yet
        self._open = _Piece(1, bytearray())
        self._header = 1, 0  # piece and offset of the open block's header
        self._place: DirectPlace | None = None
        self._upload: Upload | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._sending: deque[Future[UploadedPart]] = deque()
        self._sent: list[UploadedPart] = []

    @property
    def is_begun(self) -> bool:
        """Whether the upload has begun."""
        return self._place is not None

    @property
    def is_due(self) -> bool:
        """Whether the upload must begin."""
        return self._place is None and self._layout.length >= self._upload_from

    def write(self, entry: Sequence[Buffer], rows: int) -> None:
        """Add an entry with `rows` rows. Its bytes are copied."""
        self._lengths.append(sum(memoryview(buffer).nbytes for buffer in entry))
        self._rows.append(rows)
        self._append(entry)

    def entries(self) -> Iterator[tuple[memoryview, int]]:
        """Yield the entries, each with its number of rows. Called only before the upload has begun."""
        pieces = {piece.number: memoryview(piece.data) for piece in (*self._pieces, self._open)}
        for (number, start), length, rows in zip(self._starts, self._lengths, self._rows, strict=True):
            yield pieces[number][start : start + length], rows

    def begin(self, place: DirectPlace) -> None:
        """Begin the upload, and send the complete pieces. After an error the entries are still in memory."""
        self._upload = retry(lambda: place.store.begin_upload(place.key.data_name, place.metadata))
        self._place, self._starts = place, []
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="direct-upload")
        self._release()

    def abort(self) -> None:
        """Abort the upload. Raises no error of the bucket, because the broker's sweep later aborts the upload too."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._place is not None and self._upload is not None:
            with suppress(LedgerError):
                self._place.store.abort(self._upload)

    def close(self) -> StagedPart:
        """Send the rest with the marker, and complete the object. Return its description."""
        assert self._place is not None  # noqa: S101 — `begin` was called
        entries, rows = len(self._lengths), sum(self._rows)
        marker = marker_of(self._run, entries, rows)
        self.write([marker], 0)
        number, offset = self._header
        self._pieces.append(self._open)
        for piece in self._pieces:
            if piece.number == number:
                piece.data[offset : offset + HEADER_BYTES] = self._layout.last_header()
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            if piece.data:
                self._send(piece)
        while self._sending:
            self._sent.append(self._sending.popleft().result())
        self._complete(self._place)
        key = self._place.key
        lengths, counts = (np.array(values, dtype="<u4").tobytes() for values in (self._lengths, self._rows))
        described = PutObject(str(key.attempt), key.ledger_id, lengths, counts)
        block_bytes = self._run.block_bytes
        return StagedPart(key.data_name, entries, rows, self._layout.length, 0, block_bytes, described)

    def _append(self, entry: Sequence[Buffer]) -> None:
        before, start, entry_bytes = self._layout.length, self._layout.block_start, self._lengths[-1]
        buffers = self._layout.add(entry, entry_bytes)
        at = len(self._open.data)
        if not before or self._layout.block_start != start:
            self._header = self._open.number, at + self._layout.block_start - before
        for buffer in buffers:
            self._open.data.extend(memoryview(buffer))
        if self._place is None:
            self._starts.append((self._open.number, len(self._open.data) - entry_bytes))
        if len(self._open.data) >= _piece_bytes(self._open.number):
            self._pieces.append(self._open)
            self._open = _Piece(self._open.number + 1, bytearray())
            if self._place is not None:
                self._release()

    def _release(self) -> None:
        """Send the complete pieces, except the piece with the header of the open block."""
        kept = [piece for piece in self._pieces if piece.number == self._header[0]]
        pieces, self._pieces = self._pieces, kept
        for piece in pieces:
            if piece.number != self._header[0]:
                self._send(piece)

    def _send(self, piece: _Piece) -> None:
        """Give a piece to the thread pool. Waits if too many are being sent. Raises the error of an earlier piece."""
        while len(self._sending) >= _IN_FLIGHT or (self._sending and self._sending[0].done()):
            self._sent.append(self._sending.popleft().result())
        assert self._pool is not None  # noqa: S101 — the upload has begun
        self._sending.append(self._pool.submit(self._put, piece))

    def _put(self, piece: _Piece) -> UploadedPart:
        assert self._place is not None  # noqa: S101 — as above
        assert self._upload is not None  # noqa: S101 — as above
        store, upload, view = self._place.store, self._upload, memoryview(piece.data)
        with _required(self._place):
            return retry(lambda: store.put_part(upload, piece.number, [view], len(view)))

    def _complete(self, place: DirectPlace) -> None:
        upload = self._upload
        assert upload is not None  # noqa: S101 — as above
        parts = sorted(self._sent)
        with _required(place):
            retry(lambda: place.store.complete(upload, parts))
        self._upload = None
        if self._pool is not None:
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
