"""Input of rows, read in parts of bounded size: files, and standard input that may never end.

Rules
- A part has whole rows. Parts together have at most `PART_BYTES` before they are appended. So memory is bounded.
- A part of a pipe or terminal ends at the latest `_WAIT_MS` after its first byte. So rows that arrive slowly are
  appended soon.
- Small files are appended together, all or none.
- Each part of a CSV file begins with the header of the file.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, Self

import pyarrow as pa

from pyspark_ledger.connector.rows.text_files import RowText, TextFormat, format_of, row_ends
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.errors import NotFound, Refused

PART_BYTES = 16 * 1024 * 1024
_ROW_BYTES_MAX = 128 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_WAIT_MS = 200
_ARROW_FILE = b"ARROW1"
_STANDARD = "standard input"
_TEXTS = (TextFormat.csv, TextFormat.jsonl)


@dataclass(frozen=True, slots=True)
class RowInput:
    """Open file or standard input. `where` names it in errors."""

    where: str
    written: TextFormat
    stream: IO[bytes]

    @classmethod
    def open(cls, path: str, written: TextFormat | None) -> RowInput:
        """Open a file, or `-`, the standard input. Without `written`, the file's name states its format.

        Raises NotFound if the file cannot be read, and Refused if its format is unknown.
        """
        if path == "-":
            buffered = sys.stdin.buffer
            kind = written or TextFormat.jsonl
            # A read without Python's buffer returns what has arrived.
            return cls(_STANDARD, kind, getattr(buffered, "raw", buffered) if kind in _TEXTS else buffered)
        kind = written or format_of(path)
        try:
            return cls(path, kind, Path(path).open("rb", buffering=0 if kind in _TEXTS else -1))
        except OSError as wrong:
            raise NotFound(f"{wrong.filename} cannot be read: {wrong.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.where != _STANDARD:
            self.stream.close()

    def parts(self) -> Iterator[RowText]:
        """Yield the rows in parts. Raises Refused if they are not in the stated format."""
        if self.written in _TEXTS:
            yield from self._texts()
            return
        try:
            for batch in _batches(self.stream, self.written):
                yield RowText(self.where, self.written, pa.Table.from_batches([batch]))
        except (pa.ArrowException, OSError) as wrong:
            raise Refused(f"{self.where} cannot be read as {self.written.value}: {wrong}") from None

    @property
    def waits(self) -> bool:
        """Whether the next bytes may arrive late: from a pipe, a socket or a terminal."""
        with suppress(UnsupportedOperation):
            return not stat.S_ISREG(os.fstat(self.stream.fileno()).st_mode)
        return False

    def _texts(self) -> Iterator[RowText]:
        header, line, held, until = b"", 1, bytearray(), 0
        while True:
            due = bool(held) and (len(held) >= PART_BYTES or (self.waits and not self._is_ready(until)))
            cut = self._rows_end(held, header) if due else 0
            if cut:
                yield RowText(self.where, self.written, header + held[:cut], line - header.count(b"\n"))
                if self.written is TextFormat.csv:
                    header = header or bytes(held[: self._header_end(held)])
                line += held.count(b"\n", 0, cut)
                del held[:cut]
                until = monotonic_ms() + _WAIT_MS
            if len(held) > _ROW_BYTES_MAX:
                raise Refused(f"line {line} of {self.where} has more than {_ROW_BYTES_MAX} bytes")
            data = self.stream.read(_READ_BYTES)
            if not data:
                break
            until = until if held else monotonic_ms() + _WAIT_MS
            held += data
        if held or (line == 1 and self.written is TextFormat.csv):
            yield RowText(self.where, self.written, header + held, line - header.count(b"\n"))

    def _rows_end(self, held: bytearray, header: bytes) -> int:
        """Return the end of the last whole row in `held`, 0 if there is none. The header of a CSV file is no row."""
        ends = row_ends(held, self.written)
        headers = self.written is TextFormat.csv and not header
        return int(ends[-1]) if len(ends) > headers else 0

    def _header_end(self, held: bytearray) -> int:
        return int(row_ends(held, self.written)[0])

    def _is_ready(self, until_ms: int) -> bool:
        """Wait until bytes or the end of the input arrive. Return False when the time is over."""
        seconds = max(until_ms - monotonic_ms(), 0) / 1000
        return bool(seconds and select.select([self.stream], [], [], seconds)[0])


def _batches(stream: IO[bytes], written: TextFormat) -> Iterator[pa.RecordBatch]:
    if written is TextFormat.parquet:
        if not stream.seekable():
            raise Refused(
                "Parquet cannot be read from a pipe, because its columns are listed at its end",
                hint="Write it to a file, and name the file",
            )
        from pyarrow.parquet import ParquetFile  # imported here, because each command would pay for it

        yield from ParquetFile(stream).iter_batches()
        return
    seekable = stream.seekable()
    is_file = seekable and stream.read(len(_ARROW_FILE)) == _ARROW_FILE
    if seekable:
        stream.seek(0)
    if not is_file:
        yield from pa.ipc.open_stream(stream)
        return
    with pa.ipc.open_file(stream) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def appends(inputs: Iterable[RowInput]) -> Iterator[list[RowText]]:
    """Yield the parts to append together, all or none."""
    together, size = list[RowText](), 0
    for one in inputs:
        for part in one.parts():
            if together and size + part.size > PART_BYTES:
                yield together
                together, size = [], 0
            together.append(part)
            size += part.size
            if one.waits:
                yield together
                together, size = [], 0
    if together:
        yield together
