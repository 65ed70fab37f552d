"""Metrics of a broker as text for Prometheus.

    # HELP ledger_in_messages Rows appended
    # TYPE ledger_in_messages counter
    ledger_in_messages_total{ledger="public/default/persistent/orders"} 7

Rules
- A metric (*family*) without a value still has its head in the text.
- The text is OpenMetrics 1.0 or Prometheus' format 0.0.4. They differ in the head of a counter and in the last line.
- This module writes the text itself. Reason: the writer of Prometheus' Python library takes four times as long as the
  rest of a request.

Sources: https://prometheus.io/docs/specs/om/open_metrics_spec/,
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from pyspark_ledger.ledger.broker.telemetry.families import Family, Table, tables
from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics, LatencyHistogram

_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": "", "histogram": ""}


def exposition(metrics: BrokerMetrics, *, openmetrics: bool) -> bytes:
    """Return the text of a broker's metrics."""
    lines = [line for table in tables(metrics) for line in _lines(table, openmetrics=openmetrics)]
    return "\n".join([*lines, *(["# EOF"] if openmetrics else []), ""]).encode()


def _lines(table: Table, *, openmetrics: bool) -> Iterator[str]:
    """Yield the lines of each family, one family after the other."""
    names = table.families[0].labels
    rows = [(_labels(names, labels), labels, values) for labels, values in table.rows]
    for at, family in enumerate(table.families):
        yield from _head(family, openmetrics=openmetrics)
        name = family.name + _SUFFIXES[family.kind]
        for text, labels, values in rows:
            value = values[at]
            if isinstance(value, LatencyHistogram):
                yield from _histogram(name, names, labels, value)
            elif value is not None:
                yield f"{name}{text} {value}"


def _head(family: Family[Any], *, openmetrics: bool) -> list[str]:
    name, shown = family.name, family.kind
    if not openmetrics:
        name += _SUFFIXES[family.kind]
        shown = "gauge" if shown == "info" else shown
    return [f"# HELP {name} {family.meaning}", f"# TYPE {name} {shown}"]


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the text of labels. Backslashes, quotes and line feeds of values are escaped."""
    if not names:
        return ""
    escaped = (value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for value in values)
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True)) + "}"


def _histogram(name: str, names: Sequence[str], labels: Sequence[str], latency: LatencyHistogram) -> Iterator[str]:
    bounds = [*map(repr, latency.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(latency.counts), strict=True):
        yield f"{name}_bucket{_labels((*names, 'le'), (*labels, bound))} {count}"
    text = _labels(names, labels)
    yield f"{name}_count{text} {latency.count}"
    yield f"{name}_sum{text} {latency.total}"
