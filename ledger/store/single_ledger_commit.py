"""Commit of one batch to one ledger, exactly once. `ledger.store.multi_ledger_commit` commits to several ledgers.

The batch is judged twice (`ledger.log.segments.repeated_batches`). This module judges it before it opens the parts.
The ledger's writer judges it again when the run is written, because another driver may have committed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.segments.repeated_batches import judge, unwritten
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.protocol.commits import AbortRun, AskNewestBatch, CommitRun, CommittedRun, NewestBatch
from pyspark_ledger.ledger.store.direct_parts import DirectParts
from pyspark_ledger.ledger.store.multi_ledger_commit import ManifestCommits

_log = logging.getLogger(__name__)


class RunCommits:
    """Commits of batches to single ledgers of one store. Any thread may call any method."""

    def __init__(
        self,
        staging: StagingArea,
        direct: DirectParts,
        commits: ManifestCommits,
        ledger: Callable[[str], ManagedLedger],
    ) -> None:
        self._staging = staging
        self._direct = direct
        self._commits = commits
        self._ledger = ledger

    def commit(self, request: CommitRun) -> CommittedRun:
        """Append staged parts as one run (contiguous entries of one batch), and wait until it is durable.

        The run is appended exactly once for each ledger, query and batch.
        """
        if all(part.object is None for part in request.parts):
            return self._commit(request)
        with self._commits.lock_of(request.query):  # a repeated call must not copy the objects again
            return self._commit(request)

    def _commit(self, request: CommitRun) -> CommittedRun:
        ledger = self._ledger(request.ledger)
        self._commits.finish(request.query)
        earlier = ledger.committed_batch(request.query)
        deleted = self._commits.deleted_run(ledger, request.query) if earlier is None else None
        verdict = judge(request, earlier, ledger.name, deleted)
        if verdict.warning:
            _log.warning("%s", verdict.warning)
        if verdict.origin is None:
            if verdict.asked < 0:
                self._staging.remove_parts(request.parts)  # the log has their rows already
                self._direct.committed(request)
            return unwritten(verdict, earlier)
        try:
            with self._direct.withheld(request):
                return msgspec.structs.replace(self._commit_new(ledger, request), warning=verdict.warning)
        except NotFound:
            if ledger.committed_batch(request.query) == earlier:
                raise
            return self._commit(request)  # another call has committed the same batch, and deleted the parts

    def _commit_new(self, ledger: ManagedLedger, request: CommitRun) -> CommittedRun:
        direct = self._direct.open_run(request)
        parts = [] if direct is not None else self._staging.open_run(request)
        try:
            future = ledger.commit_run(request, parts) if direct is None else ledger.commit_direct(request, direct)
            committed = future.result()
        finally:
            self._staging.remove_joined(request, parts)
        if committed.asked >= 0:
            return committed  # another driver of the query has committed a batch meanwhile
        if not committed.repeated:
            self._direct.counter.commit(request.parts)
        self._direct.committed(request)
        self._staging.remove_parts(request.parts)
        self._staging.sweep_before(request.query, request.batch)
        return committed

    def newest_batch(self, request: AskNewestBatch) -> NewestBatch:
        """Return the newest committed batch of a query. A commit of this or an earlier batch writes nothing."""
        if request.several:
            return NewestBatch(self._commits.newest(request.query))
        ledger = self._ledger(request.name)
        found = ledger.committed_batch(request.query) if ledger.incarnation == request.incarnation else None
        return NewestBatch(-1 if found is None else found.batch)

    def abort(self, request: AbortRun) -> None:
        """Delete staged parts, except the parts that a committed batch still needs."""
        kept = self._commits.keeps(request.query, request.parts)
        self._staging.remove([part for part in request.parts if part not in kept])
