"""Goal: what the demo's windows are held against is right itself, and sees a wrong row. Method: hand-made rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from streaming_examples.acts import daily_windows
from streaming_examples.flights import FLIGHTS, WEATHER


def at(hour: int, day: int = 1) -> datetime:
    return datetime(2013, 1, day, hour, tzinfo=UTC)


def flight(**given: object) -> dict[str, object]:
    return {"origin": "JFK", "minute": 0, "dep_delay": 0, "time_hour": at(5), **given}


@pytest.fixture
def windows() -> pa.Table:
    flights = [
        flight(dep_delay=10),
        flight(dep_delay=None),
        flight(dep_delay=20, time_hour=at(6)),
        flight(time_hour=at(23), minute=59),
        flight(time_hour=at(0, day=2)),
        flight(origin="LGA", time_hour=at(7)),
    ]
    weather = [
        {"origin": "JFK", "time_hour": at(5), "wind_speed": 4.0},
        {"origin": "JFK", "time_hour": at(6), "wind_speed": 10.0},
    ]
    return daily_windows.expected(pa.Table.from_pylist(flights, FLIGHTS), pa.Table.from_pylist(weather, WEATHER))


def test_a_day_counts_every_flight_and_means_leave_out_what_is_unknown(windows: pa.Table) -> None:
    assert windows.to_pylist() == [
        {"day": at(0), "origin": "JFK", "flights": 4, "delay": 10.0, "wind": 6.0},
        {"day": at(0), "origin": "LGA", "flights": 1, "delay": 0.0, "wind": None},
        {"day": at(0, day=2), "origin": "JFK", "flights": 1, "delay": 0.0, "wind": None},
    ]


def test_the_same_windows_do_not_differ(windows: pa.Table) -> None:
    assert daily_windows.differences(windows, windows) == []


@pytest.mark.parametrize(
    ("column", "values"),
    [("flights", [4, 2, 1]), ("delay", [10.5, 0.0, 0.0]), ("wind", [6.001, None, None]), ("wind", [6.0, 1.0, None])],
)
def test_one_wrong_value_is_seen(windows: pa.Table, column: str, values: list[float]) -> None:
    at_column = windows.column_names.index(column)
    wrong = windows.set_column(at_column, column, pa.array(values, windows[column].type))
    (said,) = daily_windows.differences(wrong, windows)
    assert column in said


def test_a_missing_window_is_seen(windows: pa.Table) -> None:
    assert daily_windows.differences(windows.slice(1), windows) == ["2 windows instead of 3"]
