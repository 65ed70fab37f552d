"""Goal: the demo's account cannot be right by chance. Method: each fault it must find is made, in a few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from streaming_examples import flights
from streaming_examples.acts import audit
from streaming_examples.acts.batch_files import BatchFiles


@pytest.fixture(scope="module")
def source() -> pa.Table:
    return flights.flights().slice(0, 500)


def failed(checks: list[audit.Check]) -> list[str]:
    return [check.what for check in checks if not check.held]


def test_all_rows_in_another_order_are_all_rows(source: pa.Table) -> None:
    found = pa.concat_tables([source.slice(300), source.slice(0, 300)])
    assert failed(audit.exactly_once(found, source)) == []


def test_a_missing_a_doubled_and_a_changed_row_are_found(source: pa.Table) -> None:
    same = "all 19 columns of all rows are equal"
    assert failed(audit.exactly_once(source.slice(1), source)) == ["no flight is missing", same]
    twice = pa.concat_tables([source, source.slice(7, 1)])
    assert failed(audit.exactly_once(twice, source)) == ["no flight is in the ledger twice", same]
    instead = pa.concat_tables([source.slice(1), source.slice(7, 1)])
    assert len(failed(audit.exactly_once(instead, source))) == 3, "as many rows as there should be"
    place = source.column_names.index("tailnum")
    changed = source.set_column(place, "tailnum", pa.nulls(source.num_rows, pa.string()))
    assert failed(audit.exactly_once(changed, source)) == [same]


def progress(path: Path, *batches: tuple[int, str, int]) -> Path:
    lines = [
        json.dumps({
            "id": "q", "runId": run, "batchId": batch, "stateOperators": [{"numRowsDroppedByWatermark": dropped}]
        }, separators=(",", ":"))
        for batch, run, dropped in batches
    ]  # fmt: skip
    path.write_text("\n".join([*lines, '{"id":"q","ru']), encoding="utf-8")
    return path


def batches(directory: Path, *ids: int) -> BatchFiles:
    files = BatchFiles(directory)
    for batch in ids:
        (directory / f"batch-{batch:06}.parquet").touch()
    return files


def test_dropped_rows_lost_batches_and_silence_are_found(tmp_path: Path) -> None:
    told = progress(tmp_path / "p", (0, "a", 0), (1, "a", 0), (3, "b", 0))
    assert failed(audit.nothing_dropped(told, batches(tmp_path / "1", 0, 1, 2, 3))) == []
    assert failed(audit.nothing_dropped(told, batches(tmp_path / "2", 0, 1, 3, 4))) == [
        "batches are numbered without a gap"
    ]
    assert len(failed(audit.nothing_dropped(told, batches(tmp_path / "3", 0, 1, 2, 3, 4)))) == 1, "two are silent"
    told = progress(tmp_path / "p", (0, "a", 0), (1, "a", 2))
    assert failed(audit.nothing_dropped(told, batches(tmp_path / "4", 0, 1))) == ["no row was dropped by the watermark"]


@pytest.mark.parametrize(
    ("runs", "held"),
    [
        ([(0, "a", 0), (1, "a", 0), (2, "b", 0)], True),
        ([(0, "a", 0), (1, "a", 0), (1, "b", 0)], True),  # the killed batch again
        ([(0, "a", 0), (1, "a", 0), (0, "b", 0)], False),  # from the beginning: no checkpoint
        ([(0, "a", 0), (1, "a", 0), (4, "b", 0)], False),
        ([(0, "a", 0), (1, "a", 0)], False),  # was never started again
    ],
)
def test_a_query_that_did_not_go_on_is_found(tmp_path: Path, runs: list[tuple[int, str, int]], held: bool) -> None:
    (check,) = audit.went_on(progress(tmp_path / "p", *runs))
    assert check.held is held
