"""Goal: input of any size becomes parts of whole rows, whose lines keep their numbers. Method: small parts, real files
and pipes.
"""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from pyspark_ledger.connector.rows import row_input
from pyspark_ledger.connector.rows.row_input import RowInput, appends
from pyspark_ledger.connector.rows.text_files import RowText, TextFormat, parse_rows
from pyspark_ledger.ledger.errors import Refused


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_input, "PART_BYTES", 20)
    monkeypatch.setattr(row_input, "_READ_BYTES", 7)


def texts(data: bytes, written: TextFormat) -> list[RowText]:
    return list(RowInput("x", written, io.BytesIO(data)).parts())


def ids(parts: list[RowText]) -> list[object]:
    return [row["id"] for part in parts for row in parse_rows(part, None).to_pylist()]


@pytest.mark.usefixtures("small_parts")
def test_parts_have_whole_rows_and_a_wrong_line_its_number() -> None:
    lines = b"".join(b'{"id": %d}\n' % number for number in range(9))
    parts = texts(lines, TextFormat.jsonl)
    assert len(parts) > 2
    assert ids(parts) == list(range(9))
    assert [part.first_line for part in parts] == [1 + len(ids(parts[:at])) for at in range(len(parts))]
    wrong = texts(lines + b'{"id": 9}\n{"id": }\n{"id": 11}', TextFormat.jsonl)
    with pytest.raises(Refused, match=r"""line 11 of x cannot be read as jsonl: .*; it is '\{"id": \}'"""):
        ids(wrong)


@pytest.mark.usefixtures("small_parts")
def test_parts_of_csv_have_the_header_and_whole_quoted_fields() -> None:
    text = b'id,item\n1,"a\n""b""\nc"\n2,"d,\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\ne"\n3,f\n'
    parts = texts(text, TextFormat.csv)
    assert len(parts) > 1
    rows = [row["item"] for part in parts for row in parse_rows(part, None).to_pylist()]
    assert rows == ['a\n"b"\nc', "d," + "\n" * 18 + "e", "f"]
    wrong = texts(text + b"4,g,h\n", TextFormat.csv)
    line = text.count(b"\n") + 1
    with pytest.raises(Refused, match=f"line {line} of x cannot be read as csv: .*; it is '4,g,h'"):
        ids(wrong)


def test_a_pipe_gives_the_rows_that_have_arrived() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0) as stream, os.fdopen(writing, "wb", 0) as pipe:
        pipe.write(b'{"id": 1}\n{"id":')
        groups = appends([RowInput("pipe", TextFormat.jsonl, stream)])
        assert ids(next(groups)) == [1], "the second row has not arrived"
        pipe.write(b" 2}\n")
        assert ids(next(groups)) == [2]
        closing = threading.Thread(target=pipe.close)
        closing.start()
        assert list(groups) == []
        closing.join()


@pytest.mark.usefixtures("small_parts")
def test_small_files_are_appended_together(tmp_path: Path) -> None:
    for name, text in (("a", b'{"id": 1}'), ("b", b'{"id": 2}'), ("c", b'{"id": 3}\n{"id": 4}\n')):
        (tmp_path / f"{name}.jsonl").write_bytes(text)
    inputs = [RowInput.open(str(tmp_path / f"{name}.jsonl"), None) for name in "abc"]
    assert [ids(group) for group in appends(inputs)] == [[1, 2], [3, 4]]
    for one in inputs:
        with one:
            assert not one.waits


def test_parquet_and_both_formats_of_arrow_are_read(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "item": ["tea", None]})
    pyarrow.parquet.write_table(rows, tmp_path / "a.parquet")
    for name, new in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with new(tmp_path / name, rows.schema) as writer:
            writer.write_table(rows)
    for name in ("a.parquet", "file.arrow", "stream.arrow"):
        with RowInput.open(str(tmp_path / name), None) as one:
            (part,) = one.parts()
        assert parse_rows(part, None).equals(rows), name
    with (
        RowInput.open(str(tmp_path / "a.parquet"), TextFormat.arrow) as wrong,
        pytest.raises(Refused, match="as arrow"),
    ):
        list(wrong.parts())
