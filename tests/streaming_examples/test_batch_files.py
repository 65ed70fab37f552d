"""Goal: a repeated micro-batch changes nothing, a later one replaces. Method: hand-made batches, no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from streaming_examples.acts.batch_files import BatchFiles


class Frame:
    """Frame of a `foreachBatch` function, with the used methods."""

    def __init__(self, **columns: list[object]) -> None:
        self._rows = pa.table(columns)

    def toArrow(self) -> pa.Table:  # noqa: N802  # Spark's name
        return self._rows


def test_the_newest_row_of_a_key_wins_whatever_is_repeated(tmp_path: Path) -> None:
    files = BatchFiles(tmp_path / "windows")
    files(Frame(day=[1, 1], origin=["JFK", "LGA"], n=[5, 6]), 0)
    files(Frame(day=[1, 2], origin=["JFK", "JFK"], n=[7, 1]), 1)
    once = files.newest(["day", "origin"]).sort_by([("day", "ascending"), ("origin", "ascending")])
    assert once["n"].to_pylist() == [7, 6, 1]

    files(Frame(day=[1, 2], origin=["JFK", "JFK"], n=[7, 1]), 1)
    again = files.newest(["day", "origin"]).sort_by([("day", "ascending"), ("origin", "ascending")])
    assert again.equals(once)
    assert files.ids() == [0, 1]


def test_a_file_that_was_being_written_is_not_seen(tmp_path: Path) -> None:
    files = BatchFiles(tmp_path)
    (tmp_path / ".batch-000000.parquet").write_bytes(b"half")
    assert files.ids() == []
