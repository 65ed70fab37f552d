"""Samples of a broker's metrics over the last ten minutes, for the status page.

Rules
- A thread takes a sample every `SECONDS` if the page was requested in the last `_LOOKED_SECONDS`. So a page that nobody
  watches costs nothing.
- A rate is the difference of a counter between two samples, divided by the time between them. A ledger that is not in
  the earlier sample has no rate.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import pairwise

import msgspec

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics, LatencyHistogram, LedgerMetrics

SECONDS = 5
KEPT = 10 * 60 // SECONDS
_LOOKED_SECONDS = 60
_RATE_SAMPLES = 12


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """Counters of one ledger: rows and bytes appended, and bytes read."""

    rows: int
    in_bytes: int
    out_bytes: int


class Point(msgspec.Struct, frozen=True):
    """Rates between two samples, in rows and bytes a second, and the 99th percentile of syncs in seconds."""

    at_ms: int
    in_rows: float
    in_bytes: float
    out_bytes: float
    sync_p99: float


class Sample(msgspec.Struct, frozen=True):
    """Metrics of one moment, with the counters of each listed ledger and their sums over all ledgers."""

    metrics: BrokerMetrics
    ledgers: dict[str, Traffic]
    total: Traffic


class History:
    """Samples of the last ten minutes. Any thread may call any method."""

    def __init__(self, collect: Callable[[], BrokerMetrics], monotonic_ms: Clock) -> None:
        self._collect = collect
        self._clock = monotonic_ms
        self._changed = threading.Condition()
        self._samples = deque[Sample](maxlen=KEPT + 1)
        self._count = 0
        self._looked_ms = -(10**12)
        self._stopped = False
        threading.Thread(target=self._run, name="history", daemon=True).start()

    def newest(self) -> Sample:
        """Return the newest sample, of at most `SECONDS` ago."""
        with self._changed:
            idle = self._clock() - self._looked_ms > _LOOKED_SECONDS * 1000
            self._looked_ms = self._clock()
            self._changed.notify_all()
            if self._samples and not idle:
                return self._samples[-1]
        return self._sample()

    def wait(self, seconds: float) -> bool:
        """Wait for the next sample. Return False if there was none within `seconds`."""
        with self._changed:
            self._looked_ms = self._clock()
            before = self._count
            return self._changed.wait_for(lambda: self._count > before, seconds)

    def points(self) -> list[Point]:
        """Return the rates of the last ten minutes, oldest first. A time without samples is one point."""
        with self._changed:
            samples = list(self._samples)
        return [_point(before, now) for before, now in pairwise(samples)]

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """Return rows in, bytes in and bytes out a second of each ledger, over the last minute."""
        with self._changed:
            samples = list(self._samples)[-_RATE_SAMPLES - 1 :]
        if len(samples) < 2:
            return {}
        before, now = samples[0], samples[-1]
        seconds = _seconds(before, now)
        return {
            name: _rates(before.ledgers[name], traffic, seconds)
            for name, traffic in now.ledgers.items()
            if name in before.ledgers
        }

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._is_watched())
                self._changed.wait_for(lambda: self._stopped, SECONDS)
                if self._stopped:
                    return
            self._sample()

    def _is_watched(self) -> bool:
        return self._clock() - self._looked_ms <= _LOOKED_SECONDS * 1000

    def _sample(self) -> Sample:
        sample = sample_of(self._collect())
        with self._changed:
            self._samples.append(sample)
            self._count += 1
            while sample.metrics.now_ms - self._samples[0].metrics.now_ms > KEPT * SECONDS * 1000:
                self._samples.popleft()
            self._changed.notify_all()
        return sample


def sample_of(metrics: BrokerMetrics) -> Sample:
    """Return the sample of a broker's metrics."""
    ledgers = {ledger.name: _traffic(ledger) for ledger in metrics.ledgers}
    counters = [*ledgers.values(), _traffic(metrics.others)]
    total = Traffic(*(sum(column) for column in zip(*map(msgspec.structs.astuple, counters), strict=True)))
    return Sample(msgspec.structs.replace(metrics, requests={}), ledgers, total)


def _traffic(ledger: LedgerMetrics) -> Traffic:
    reads = ledger.reads
    out = reads.memory_hit_bytes + reads.page_cache_hit_bytes + reads.object_miss_bytes + reads.file_miss_bytes
    return Traffic(ledger.appended.rows, ledger.appended.size_bytes, out)


def _seconds(before: Sample, now: Sample) -> float:
    return max(now.metrics.now_ms - before.metrics.now_ms, 1) / 1000


def _rates(before: Traffic, now: Traffic, seconds: float) -> tuple[float, float, float]:
    """Return the rates between two samples. A ledger that was opened again in between counts from 0."""
    rows, in_bytes, out_bytes = (
        max(after - earlier, 0) / seconds
        for earlier, after in zip(msgspec.structs.astuple(before), msgspec.structs.astuple(now), strict=True)
    )
    return rows, in_bytes, out_bytes


def _point(before: Sample, now: Sample) -> Point:
    rates = _rates(before.total, now.total, _seconds(before, now))
    syncs = difference(before.metrics.sync_latency, now.metrics.sync_latency)
    p99 = syncs.quantile(0.99)
    return Point(now.metrics.now_ms, *rates, min(p99, syncs.bounds[-1]))


def difference(before: LatencyHistogram, now: LatencyHistogram) -> LatencyHistogram:
    """Return the histogram of the durations that were added between two samples."""
    counts = [after - earlier for earlier, after in zip(before.counts, now.counts, strict=True)]
    return LatencyHistogram(now.bounds, counts, now.total - before.total)
