"""Counters of the calls that a broker serves: their durations by action, and their errors by code."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.metrics.counters import Counters
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.protocol.actions import REQUESTS
from pyspark_ledger.ledger.protocol.metrics import LatencyHistogram


class CallMetrics:
    """Durations and errors of the calls to one broker, at all its addresses. Any thread may call any method."""

    def __init__(self) -> None:
        self.errors = Counters()
        self._latencies = {name: Latencies() for name in REQUESTS}

    def timed(self, action: str) -> AbstractContextManager[None]:
        """Return a context that measures the duration of a call, also of a failed call."""
        return self._latencies[action].timed()

    def count_error(self, error: BaseException) -> None:
        """Count an error by its code. An unexpected error has the code of `LedgerError`."""
        self.errors.add(error.code if isinstance(error, LedgerError) else LedgerError.code)

    def durations(self) -> dict[str, LatencyHistogram]:
        """Return the durations of the actions that were called."""
        states = {name: latencies.state() for name, latencies in self._latencies.items()}
        return {name: state for name, state in states.items() if state.count}
