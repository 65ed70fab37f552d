"""Flights of a day by airport, with the wind there, computed in two ways: by a Spark query, and by pyarrow alone.

The definition: a day is the UTC day of the scheduled departure. If the weather of a flight's hour is missing, its wind
is unknown. Means leave out unknown values. The pyarrow version verifies the Spark version, so it uses nothing of Spark.
Spark may sum wind speeds in any order, so the means of wind agree within `WIND_TOLERANCE`. All other values agree
exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK = "1 day"
WIND_TOLERANCE = 1e-9  # relative
COLUMNS = ["day", "origin", "flights", "delay", "wind"]
KEY = [("day", "ascending"), ("origin", "ascending")]


def windowed(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Return the query: `flights` may be a stream, `weather` is a table."""
    from pyspark.sql import functions as f

    wind = weather.select("origin", "time_hour", "wind_speed")
    scheduled = f.timestamp_add("MINUTE", f.col("minute"), f.col("time_hour"))
    return (
        flights.withColumn("scheduled", scheduled)
        .withWatermark("scheduled", WATERMARK)
        .join(wind, ["origin", "time_hour"], "left")
        .groupBy(f.window("scheduled", "1 day"), "origin")
        .agg(
            f.count("*").alias("flights"),
            f.avg("dep_delay").alias("delay"),
            f.avg("wind_speed").alias("wind"),
        )
        .select(f.col("window.start").alias("day"), "origin", "flights", "delay", "wind")
    )


def expected(flights: pa.Table, weather: pa.Table) -> pa.Table:
    """Compute the same from whole tables, without Spark: `COLUMNS`, in the order of `KEY`."""
    scheduled = pc.add(
        flights["time_hour"], pc.multiply(flights["minute"], 60_000_000).cast(pa.int64()).cast(pa.duration("us"))
    )
    rows = flights.select(["origin", "time_hour", "dep_delay"]).append_column(
        "day", pc.floor_temporal(scheduled, unit="day")
    )
    joined = rows.join(
        weather.select(["origin", "time_hour", "wind_speed"]), ["origin", "time_hour"], join_type="left outer"
    )
    grouped = joined.group_by(["day", "origin"]).aggregate(
        [([], "count_all"), ("dep_delay", "mean"), ("wind_speed", "mean")]
    )
    return (
        grouped.select(["day", "origin", "count_all", "dep_delay_mean", "wind_speed_mean"])
        .rename_columns(COLUMNS)
        .sort_by(KEY)
    )


def differences(ours: pa.Table, theirs: pa.Table) -> list[str]:
    """Describe the differences between two tables of windows in the order of `KEY`; empty if they agree."""
    if ours.num_rows != theirs.num_rows:
        return [f"{ours.num_rows} windows instead of {theirs.num_rows}"]
    found = [
        f"column {name} differs"
        for name in ("day", "origin", "flights", "delay")
        if not ours[name].cast(theirs[name].type).equals(theirs[name])
    ]
    # NaN stands for an unknown wind, which both must not know.
    winds = [table["wind"].fill_null(float("nan")).to_numpy() for table in (ours, theirs)]
    if not np.allclose(*winds, rtol=WIND_TOLERANCE, atol=0.0, equal_nan=True):
        found.append(f"column wind differs by more than {WIND_TOLERANCE} of its value")
    return found
