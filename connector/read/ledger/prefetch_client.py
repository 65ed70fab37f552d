"""What a query reads next, said to the broker before its tasks ask: it is read ahead meanwhile.

A query that runs away from others close behind it is answered to wait, so that one read of object storage serves them
all. The driver waits and not the tasks: those would hold the cores that the others need. The broker bounds the delay
(`managedLedgerCachePacingPercent`), and option `pacing` turns it off.

Rules: a hint is a courtesy. What goes wrong with one is noted, and the batch is what it would have been. What little is
left at the tail, or of one of many ledgers, is in memory anyway or read quickly, and not worth a call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.reads import PrefetchRange, PrefetchReply, PrefetchRequest

WORTH_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)


class PrefetchClient:
    """The hints of one query."""

    def __init__(self, connection: DriverConnection, reader: str, *, paced: bool, mapping: bool) -> None:
        self._connection = connection
        self._reader = reader
        self._paced = paced
        self._mapping = mapping

    def prefetch(self, ranges: Mapping[str, tuple[PositionRange, int]]) -> None:
        """The ranges of the next batch, by ledger, each with the bytes that are left of it and behind it; waits."""
        requested = [
            PrefetchRange(name, range_, left)
            for name, (range_, left) in ranges.items()
            if range_ and left >= WORTH_BYTES // 16
        ]
        if sum(one.left_bytes for one in requested) < WORTH_BYTES:
            return
        try:
            mapping = self._mapping and bool(self._connection.client.same_host_token())
            request = PrefetchRequest(self._reader, requested, self._paced, mapping)
            while wait_ms := self._send(request).wait_ms:
                pause(wait_ms)
        except LedgerError as error:
            _log.info("the broker was not told what is read next: %s", error)

    def _send(self, request: PrefetchRequest) -> PrefetchReply:
        reply: PrefetchReply = self._connection.call(lambda client: client.call("cache.hint", request))
        return reply
