"""Index objects of direct segments: put after the commit, and again after a crash.

A *direct segment* is a segment whose data object (its bytes) a Spark task put into the bucket, before the commit of the
batch. Two *index objects* state where the entries are in the data object. The *entry index* has the offset of each
entry. The *block index* has the offset of each block, a part of the object with whole entries. The commit lists the
segment in the metadata, with the mark that its index objects are missing.

    commit (in the log) ─▶ entry index and block index of each segment, in order ─▶ one transaction deletes the marks

Rules
- A reader without access to the metadata finds a segment by its block index. It must not find a segment before the
  earlier segments of the ledger. So block indexes are put in the order of the segments. They wait for the automatic
  offloads of earlier segments, and the offloads of later segments wait for them.
- When a broker starts, it puts the objects of all marked segments.
- A put may be repeated. It then replaces the object.
- If a put fails or an earlier segment is not offloaded, the ledger stays in the queue, and the next round tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pyspark_ledger.ledger.errors import Fenced, LedgerError, NotFound
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader
from pyspark_ledger.ledger.tiering.recorded_segment import extra_metadata

_log = logging.getLogger(__name__)


class DirectIndexes:
    """Queue of the ledgers with direct segments that lack index objects. Any thread may call any method."""

    def __init__(
        self, metadata: Metadata, ledger: Callable[[str], ManagedLedger], offloader: Callable[[], LedgerOffloader]
    ) -> None:
        self._metadata = metadata
        self._ledger = ledger
        self._offloader = offloader
        self.order = threading.Lock()
        """Held while index objects are put, and while the objects of removed segments are deleted."""
        self._waiting: dict[str, None] = {}
        self._changing = threading.Lock()

    def add(self, name: str) -> None:
        """Add a ledger to the queue."""
        with self._changing:
            self._waiting[name] = None

    def add_marked(self) -> None:
        """Add the ledgers whose records have the mark. Called at the broker's start."""
        for name, _, attempt in self._metadata.segments.attempts():
            if attempt.lacks_indexes:
                self.add(name)

    def put_waiting(self) -> None:
        """Put the missing index objects of all ledgers in the queue. An error of the bucket is logged."""
        with self._changing:
            names = list(self._waiting)
        for name in names:
            try:
                self.put(name)
            except LedgerError as error:
                _log.warning("%s: index objects of its newest segments cannot be put yet: %s", name, error)

    def put(self, name: str) -> int:
        """Put the missing index objects of a ledger, if there are any. Return the number of segments that lacked them.

        Raises Unavailable if a retry may succeed. Then the ledger stays in the queue.
        """
        with self.order:
            with self._changing:
                self._waiting.pop(name, None)  # before the work: a commit during the work adds the ledger again
            try:
                log = self._ledger(name)
                done = self._put(log) if log.lacks_indexes else 0
                if log.lacks_indexes:
                    self.add(name)
            except (Fenced, NotFound) as gone:
                _log.info("%s: no index object is put: %s", name, gone)
                return 0
            except LedgerError:
                self.add(name)
                raise
            return done

    def _put(self, log: ManagedLedger) -> int:
        done: list[int] = []
        try:
            for segment, attempt in log.lacking_indexes():
                self._offloader().put_indexes(segment, attempt, extra_metadata(self._metadata, log.name))
                done.append(segment.ledger_id)
        finally:
            if done:
                log.complete_indexes(done)
        return len(done)
