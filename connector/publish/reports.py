"""Reports of a publisher to the log's broker, which counts them for its metrics.

A segment is one file of a ledger; a sealed segment never changes.

Rules
- A report never fails or delays a publication: it is sent once, and an error is logged.
- A ledger that is read from a bucket has no broker, so nothing is reported.
"""

from __future__ import annotations

import logging

from pyspark_ledger.connector.publish.segments import BucketSegments, PublishableSegment, StoreSegments
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.protocol.metrics import ReportPublished

_DEADLINE_MS = 0
_ANSWER_SECONDS = 5.0
_log = logging.getLogger(__name__)


class PublishReports:
    """Sender of the reports about one ledger. It sends nothing for a topic in a bucket."""

    def __init__(self, source: StoreSegments | BucketSegments) -> None:
        self._source = source

    def published(self, log: str, segment: PublishableSegment, milliseconds: int) -> None:
        """Report a segment after its commit."""
        self._send(ReportPublished(log, segment.rows, segment.size_bytes, milliseconds))

    def failed(self, log: str) -> None:
        """Report that a publication of the log's new segments raised an error."""
        self._send(ReportPublished(log, failed=True))

    def _send(self, report: ReportPublished) -> None:
        if isinstance(self._source, BucketSegments):
            return
        try:
            self._source.connection.client.ask(report, deadline_ms=_DEADLINE_MS, attempt_seconds=_ANSWER_SECONDS)
        except LedgerError as error:  # an older broker refuses the report
            _log.info("the broker does not count a publication of %s: %s", report.name, error)
