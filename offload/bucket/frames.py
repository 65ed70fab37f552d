"""Stream of the entries of one block, from the fetched pieces of the block's bytes.

A frame is an entry with its length and number. A byte range is either a whole block with header and padding, or
consecutive whole frames of one block. The page docs/concepts.md explains the words block, entry, data object and
provisional stamp.

Rules
- The bytes of an entry are a view of the fetched piece, not a copy. Exception: an entry that crosses the end of a
  piece.
- Header, lengths, entry ids and padding are checked. Damage raises Corrupt. The error names the object, the offset, and
  the expected and the found value.
- Padding in place of an entry raises DataLoss, because the writer of the object left out entries.
- The caller verifies the checksums of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, DataLoss
from pyspark_ledger.ledger.segment.format import (
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    PADDING,
    find_wrong_padding,
    parse_header,
)
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps

_NEGATIVE = 0x80000000


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Entries `[first, end)` of one block, and their bytes `[offset, end_offset)` in the data object.

    The bytes may begin before entry `first`: their first frame is entry `at_entry`. If `header` is set, the bytes begin
    with the block's header. If `whole` is set, `end` is the end of the block, and the padding after it is checked. If
    the stamps in the object are provisional (`ledger.segment.provisional_stamps`), `stamps` has the real stamps from
    `at_entry` on.
    """

    data_name: str
    ledger_id: int
    offset: int
    end_offset: int
    at_entry: int
    first: int
    end: int
    header: bool
    whole: bool
    stamps: RealStamps | None = None

    @property
    def size_bytes(self) -> int:
        return self.end_offset - self.offset


class StreamedFrame(NamedTuple):
    """Entry of a stream. `offset` is the offset of the entry's frame in the object."""

    entry_id: int
    offset: int
    entry: memoryview


class _Pieces:
    """Buffer over the fetched pieces of an object. `view` is the present buffer, `base` its offset in the object."""

    def __init__(self, pieces: Iterable[Buffer], offset: int, where: str) -> None:
        self._pieces = iter(pieces)
        self._where = where
        self.view, self.base = memoryview(b""), offset

    def read_from(self, at: int, size: int) -> memoryview:
        """Return a view that starts at `at` of the current view and has at least `size` bytes.

        Raises Corrupt if the pieces have fewer bytes.
        """
        rest = self.view[at:]
        self.base += at
        parts, available = [rest], len(rest)
        while available < size:
            piece = next(self._pieces, None)
            if piece is None:
                raise Corrupt(f"{self._where} at {self.base}: {size} bytes were expected, {available} are left")
            view = memoryview(piece).cast("B")
            missing = size - available
            if available and len(view) > missing:
                # Only the entry that crosses the end is copied. The next call reads the rest of the piece.
                self._pieces = _prepend(view[missing:], self._pieces)
                view = view[:missing]
            parts.append(view)
            available += len(view)
        self.view = parts[1] if len(parts) == 2 and not parts[0] else memoryview(b"".join(parts))
        return self.view

    def rest(self, at: int) -> Iterator[memoryview]:
        """Yield all bytes from `at` on."""
        yield self.view[at:]
        for piece in self._pieces:
            yield memoryview(piece).cast("B")


def _prepend(view: memoryview, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    yield view
    yield from pieces


def stream_frames(pieces: Iterable[Buffer], byte_range: ByteRange, where: str) -> Iterator[StreamedFrame]:
    """Yield the entries `[at_entry, end)` of a range in order. `where` names the object in errors.

    Raises Corrupt for damage, DataLoss for entries that were never written.
    """
    source = _Pieces(pieces, byte_range.offset, where)
    at = _require_header(source, byte_range, where) if byte_range.header else 0
    view = source.view
    unpack, size = FRAME.unpack_from, len(view)
    for number in range(byte_range.at_entry, byte_range.end):
        if at + FRAME_BYTES > size:
            if byte_range.end_offset - source.base - at < FRAME_BYTES:
                raise _missing_entry_error(source, at, number, byte_range, where)
            view, at = source.read_from(at, FRAME_BYTES), 0
            size = len(view)
        length, entry_id = unpack(view, at)
        stop = at + FRAME_BYTES + length
        if length >= _NEGATIVE:
            raise _missing_entry_error(source, at, number, byte_range, where)
        most = byte_range.end_offset - source.base - at - FRAME_BYTES
        if entry_id != number or not 0 < length <= most:
            raise Corrupt(
                f"{where} at {source.base + at}: frame of entry {entry_id} with {length} bytes, "
                f"expected entry {number} with 1 to {most} bytes"
            )
        if stop > size:
            view = source.read_from(at, stop - at)
            at, stop, size = 0, stop - at, len(view)
        yield StreamedFrame(number, source.base + at, view[at + FRAME_BYTES : stop])
        at = stop
    if byte_range.whole:
        _require_padding(source, at, where)


def _require_header(source: _Pieces, byte_range: ByteRange, where: str) -> int:
    """Compare the header of a block with the index. Returns the offset of the first frame in the view."""
    header = parse_header(source.read_from(0, HEADER_BYTES), f"{where} at {byte_range.offset}")
    if header.first_entry != byte_range.at_entry:
        raise Corrupt(
            f"{where} at {byte_range.offset}: the header states first entry {header.first_entry}, "
            f"the index object {byte_range.at_entry}"
        )
    if header.block_bytes != byte_range.size_bytes:
        raise Corrupt(
            f"{where} at {byte_range.offset}: the header states {header.block_bytes} bytes, "
            f"the index object {byte_range.size_bytes}"
        )
    return HEADER_BYTES


def _require_padding(source: _Pieces, at: int, where: str) -> None:
    base, phase = source.base + at, 0
    for view in source.rest(at):
        wrong = find_wrong_padding(view) if not phase else _wrong_in_phase(view, phase)
        if wrong >= 0:
            found, wanted = view[wrong], PADDING[(phase + wrong) % 4]
            raise Corrupt(f"{where} at {base + wrong}: byte of the padding is {found:#04x}, expected {wanted:#04x}")
        base, phase = base + len(view), (phase + len(view)) % 4


def _wrong_in_phase(view: memoryview, phase: int) -> int:
    start = (4 - phase) % 4
    for number in range(min(start, len(view))):
        if view[number] != PADDING[phase + number]:
            return number
    wrong = find_wrong_padding(view[start:])
    return wrong if wrong < 0 else wrong + start


def _missing_entry_error(source: _Pieces, at: int, number: int, byte_range: ByteRange, where: str) -> Exception:
    """Return the error for a missing entry: DataLoss if padding follows, otherwise Corrupt."""
    offset = source.base + at
    try:
        _require_padding(source, at, where)
    except Corrupt as wrong:
        return wrong
    ledger_id = byte_range.ledger_id
    return DataLoss(
        f"{where} at {offset}: the block has padding where entry {ledger_id}:{number} should be; entries "
        f"{ledger_id}:{number} to {ledger_id}:{byte_range.end - 1} were never written to the object",
        hint="Set failOnDataLoss to false to read the other entries",
    )
