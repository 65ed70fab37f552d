"""Picture of the demo: the rows written and read per second, the subscription's backlog, and the times of the kills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from streaming_examples.acts.meter import Event, Sample

_BIN_SECONDS = 1.0
_EVENT = "tab:red"


def rates(samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each interval its middle in seconds, and the rows written and acknowledged per second."""
    seconds = np.array([sample.seconds for sample in samples])
    written = np.array([sample.rows for sample in samples], float)
    read = np.array([0 if sample.backlog is None else sample.rows - sample.backlog for sample in samples], float)
    edges = np.arange(0.0, seconds[-1] + _BIN_SECONDS, _BIN_SECONDS)
    at_edges = [np.interp(edges, seconds, np.maximum.accumulate(rows)) for rows in (written, read)]
    return edges[:-1] + _BIN_SECONDS / 2, *(np.diff(rows) / _BIN_SECONDS for rows in at_edges)


def draw(samples: Sequence[Sample], events: Sequence[Event], path: Path) -> None:
    """Write the picture as PNG."""
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 5), layout="constrained")
    _rates(above, samples)
    seen = [sample for sample in samples if sample.backlog is not None]
    below.fill_between(
        [sample.seconds for sample in seen], [sample.backlog / 1e3 for sample in seen], color="tab:gray", alpha=0.6
    )
    below.set_ylabel("backlog, thousand rows")
    below.set_xlabel("seconds since the start")
    below.set_xlim(_first_row(samples) - 5.0, samples[-1].seconds)
    for number, event in enumerate(events):
        _mark(above, event, row=number % 2)
        below.axvline(event.seconds, color=_EVENT, linewidth=0.8, linestyle="--")
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _rates(axis: Axes, samples: Sequence[Sample]) -> None:
    """Draw both rates. The rate of the batch write is far above the axis, so a text states it."""
    middles, written, read = (values / scale for values, scale in zip(rates(samples), (1, 1e3, 1e3), strict=True))
    axis.step(middles, written, where="mid", label="written", color="tab:blue")
    axis.step(middles, read, where="mid", label="read and acknowledged", color="tab:orange")
    axis.set_ylabel("thousand rows per second")
    axis.legend(loc="upper right", frameon=False)
    spike = int(np.argmax(written))
    top = 1.4 * max(np.delete(written, spike).max(initial=1.0), read.max())
    if written[spike] > top:
        axis.annotate(
            f"{written[spike]:.0f} thousand in one batch",
            (middles[spike], 0.93 * top),
            xytext=(6, 0),
            textcoords="offset points",
            fontsize=8,
            color="tab:blue",
        )
        axis.set_ylim(top=top)


def _mark(axis: Axes, event: Event, *, row: int) -> None:
    """Draw a line for an event, and its name above the axis. Names of successive events are in different rows."""
    axis.axvline(event.seconds, color=_EVENT, linewidth=0.8, linestyle="--")
    axis.annotate(
        event.what,
        (event.seconds, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3 + 11 * row),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=_EVENT,
    )


def _first_row(samples: Sequence[Sample]) -> float:
    return next((sample.seconds for sample in samples if sample.rows), 0.0)
