"""The entries of one block, out of the pieces in which its bytes arrive.

    span    bytes [offset, end_offset) of a data object: a whole block with header and padding, or whole frames of one

Rules
- An entry is a view of the piece that it came in; only one that straddles two pieces is put together anew.
- What accounts for every byte is compared: header, lengths, consecutive ids, padding. Damage is Corrupt, naming object,
  offset and both values. Padding where an entry should be is DataLoss: whoever wrote the object left entries out.
- The checksum of an entry is its reader's to verify.
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

_NEGATIVE = 0x80000000


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Entries `[first, end)` of one block, and where they are. `at_entry` is the entry whose frame comes first.

    `whole`: the span is the block, from its header to its padding, and `end` is behind its last entry.
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

    @property
    def size_bytes(self) -> int:
        return self.end_offset - self.offset


class StreamedFrame(NamedTuple):
    """One entry; `offset` is that of its frame in the object."""

    entry_id: int
    offset: int
    entry: memoryview


class _Pieces:
    """Bytes as they come. `view[at:]` is what is there, `base + at` its offset in the object."""

    def __init__(self, pieces: Iterable[Buffer], offset: int, where: str) -> None:
        self._pieces = iter(pieces)
        self._where = where
        self.view, self.base = memoryview(b""), offset

    def more(self, at: int, size: int) -> memoryview:
        """At least `size` bytes from `at` on, which is 0 afterwards; raises Corrupt when the object ends before."""
        rest = self.view[at:]
        self.base += at
        parts, held = [rest], len(rest)
        while held < size:
            piece = next(self._pieces, None)
            if piece is None:
                raise Corrupt(f"{self._where} at {self.base}: {size} bytes were expected, {held} are left")
            view = memoryview(piece).cast("B")
            missing = size - held
            if held and len(view) > missing:
                # Only what straddles is put together; the rest of the piece stays as it is, for the next call.
                self._pieces = _before(view[missing:], self._pieces)
                view = view[:missing]
            parts.append(view)
            held += len(view)
        self.view = parts[1] if len(parts) == 2 and not parts[0] else memoryview(b"".join(parts))
        return self.view

    def rest(self, at: int) -> Iterator[memoryview]:
        """Everything from `at` on."""
        yield self.view[at:]
        for piece in self._pieces:
            yield memoryview(piece).cast("B")


def _before(view: memoryview, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    yield view
    yield from pieces


def stream_frames(pieces: Iterable[Buffer], span: ByteRange, where: str) -> Iterator[StreamedFrame]:
    """The entries of a span from `at_entry` to before `end`, in order; `where` names the object in errors."""
    source = _Pieces(pieces, span.offset, where)
    at = _require_header(source, span, where) if span.header else 0
    view = source.view
    unpack, size = FRAME.unpack_from, len(view)
    for number in range(span.at_entry, span.end):
        if at + FRAME_BYTES > size:
            if span.end_offset - source.base - at < FRAME_BYTES:
                raise _left_out(source, at, number, span, where)
            view, at = source.more(at, FRAME_BYTES), 0
            size = len(view)
        length, entry_id = unpack(view, at)
        stop = at + FRAME_BYTES + length
        if length >= _NEGATIVE:
            raise _left_out(source, at, number, span, where)
        most = span.end_offset - source.base - at - FRAME_BYTES
        if entry_id != number or not 0 < length <= most:
            raise Corrupt(
                f"{where} at {source.base + at}: frame of entry {entry_id} with {length} bytes, "
                f"expected entry {number} with 1 to {most} bytes"
            )
        if stop > size:
            view = source.more(at, stop - at)
            at, stop, size = 0, stop - at, len(view)
        yield StreamedFrame(number, source.base + at, view[at + FRAME_BYTES : stop])
        at = stop
    if span.whole:
        _require_padding(source, at, where)


def _require_header(source: _Pieces, span: ByteRange, where: str) -> int:
    """Compare the header of a block with the index; where its first frame is in the view."""
    header = parse_header(source.more(0, HEADER_BYTES), f"{where} at {span.offset}")
    if header.first_entry != span.at_entry:
        raise Corrupt(
            f"{where} at {span.offset}: block states first entry {header.first_entry}, its index {span.at_entry}"
        )
    if header.block_bytes != span.size_bytes:
        raise Corrupt(f"{where} at {span.offset}: block states {header.block_bytes} bytes, its index {span.size_bytes}")
    return HEADER_BYTES


def _require_padding(source: _Pieces, at: int, where: str) -> None:
    base, phase = source.base + at, 0
    for view in source.rest(at):
        turned = find_wrong_padding(view) if not phase else _wrong_in_phase(view, phase)
        if turned >= 0:
            found, wanted = view[turned], PADDING[(phase + turned) % 4]
            raise Corrupt(f"{where} at {base + turned}: byte of the padding is {found:#04x}, expected {wanted:#04x}")
        base, phase = base + len(view), (phase + len(view)) % 4


def _wrong_in_phase(view: memoryview, phase: int) -> int:
    begin = (4 - phase) % 4
    for number in range(min(begin, len(view))):
        if view[number] != PADDING[phase + number]:
            return number
    wrong = find_wrong_padding(view[begin:])
    return wrong if wrong < 0 else wrong + begin


def _left_out(source: _Pieces, at: int, number: int, span: ByteRange, where: str) -> Exception:
    """The error for padding in the place of an entry; what is no padding either is damage."""
    offset = source.base + at
    try:
        _require_padding(source, at, where)
    except Corrupt as wrong:
        return wrong
    return DataLoss(
        f"{where} at {offset}: the block has padding where entry {span.ledger_id}:{number} should be; entries "
        f"{span.ledger_id}:{number} to {span.ledger_id}:{span.end - 1} were never written to the object",
        hint="Set failOnDataLoss to false to read what is there",
    )
