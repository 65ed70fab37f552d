"""Prefetch requests: the driver sends the ranges of the next batch to the broker before the tasks read them.

Several queries may read the same old entries. Then the broker can let the query in front wait for the next query, so
that both share one read of object storage. In this case the broker's reply has a waiting time. The driver waits before
it starts the tasks, because waiting tasks would occupy cores of executors. The setting
`managedLedgerCachePacingPercent` limits the waiting time. The option `pacing` = `false` switches the waiting off.

Rules
- If a prefetch request fails, the error is logged, and the batch continues.
- If a query has few unread bytes (`WORTH_BYTES`), it sends no request. Reason: so few bytes are in memory, or are read
  quickly.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.reads import PrefetchRange, PrefetchReply, PrefetchRequest

WORTH_BYTES = 1024 * 1024  # minimum of a request's unread bytes. A ledger with less than 1/16 of it is left out
_log = logging.getLogger(__name__)


class PrefetchClient:
    """Sender of the prefetch requests of one query."""

    def __init__(self, connection: DriverConnection, reader: str, *, paced: bool, mapping: bool, direct: bool) -> None:
        self._connection = connection
        self._reader = reader
        self._paced = paced
        self._mapping = mapping
        self._direct = direct

    def prefetch(self, ranges: Mapping[str, tuple[PositionRange, int]]) -> None:
        """Request the ranges of the next batch by ledger, each with the ledger's number of unread bytes.

        If the broker's reply has a waiting time, waits and repeats the request.
        """
        requested = [
            PrefetchRange(name, range_, left)
            for name, (range_, left) in ranges.items()
            if range_ and left >= WORTH_BYTES // 16
        ]
        if sum(prefetch.left_bytes for prefetch in requested) < WORTH_BYTES:
            return
        try:
            mapping = self._mapping and bool(self._connection.client.same_host_token())
            request = PrefetchRequest(self._reader, requested, self._paced, mapping, self._direct)
            while wait_ms := self._send(request).wait_ms:
                pause(wait_ms)
        except LedgerError as error:
            _log.info("a prefetch request failed: %s", error)

    def _send(self, request: PrefetchRequest) -> PrefetchReply:
        return self._connection.ask(request)
