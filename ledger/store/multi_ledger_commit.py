"""Commit of one batch to several ledgers: exactly once, even if a repeated run routes its rows differently.

    check all ─▶ sync the staged parts ─▶ manifest (the commit point) ─▶ a run per ledger ─▶ done ─▶ parts deleted

Invariants
- Every refusal happens before the manifest. After it, this broker or the next one at its start rolls the batch forward,
  from the manifest and never from a repeated run.
- Each ledger gets its run once: the marker of (query, batch) identifies a run. Its rows become readable in one step,
  in one ledger after the other.
- Batches of a query are committed one at a time, in the order of their numbers. A batch that is not above the newest
  one is a repetition: nothing of it is written.
- A ledger that was deleted after the commit point gets nothing. Any other obstacle is an error, and the manifest stays
  until it can be finished.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.staging import OpenedPart, StagingArea
from pyspark_ledger.ledger.metadata.manifest_records import Manifest, ManifestRecords, ManifestRun
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommitRuns, CommittedRun, CommittedRuns, StagedPart

_SYNCS = 16  # ledgers of one batch that are written and synced at once
_TURNS = 64  # locks; queries that share a lock wait for each other
_log = logging.getLogger(__name__)


class ManifestCommits:
    """Commits of batches to several ledgers of one store. Any thread may call any method."""

    def __init__(
        self,
        records: ManifestRecords,
        staging: StagingArea,
        ledger: Callable[[str], ManagedLedger],
        clock: Callable[[], int],
    ) -> None:
        self._records = records
        self._staging = staging
        self._ledger = ledger
        self._clock = clock
        self._turns = [threading.RLock() for _ in range(_TURNS)]
        self._unfinished = {manifest.query for manifest in records.pending()}

    def commit(self, request: CommitRuns) -> CommittedRuns:
        """Commit a batch. One that was committed before is finished, or answered by its first manifest."""
        with self._turn(request.query):
            self.finish(request.query)
            newest = self._records.newest(request.query)
            if newest is not None and request.batch <= newest.batch:
                self._staging.remove(self._others(request, newest))
                return self._answer(newest if newest.batch == request.batch else None)
            manifest = self._checked(request)
            self._staging.sync([part for run in manifest.runs for part in run.parts])
            self._unfinished.add(request.query)
            self._records.put(manifest)
            return self._roll_forward(manifest)

    def newest(self, query: str) -> int:
        """Return the newest batch of a query that is in all of its ledgers; -1 if there is none."""
        found = self._records.newest(query)
        if found is None:
            return -1
        return found.batch if found.done else found.batch - 1

    def finish(self, query: str) -> None:
        """Roll the query's newest batch forward if it is committed and not in all of its ledgers yet."""
        if query not in self._unfinished:
            return
        with self._turn(query):
            newest = self._records.newest(query)
            if newest is not None and not newest.done:
                self._roll_forward(newest)
            self._unfinished.discard(query)

    def finish_all(self) -> bool:
        """Finish the commits of a dead broker, before the store serves. Return False if one has to wait."""
        for query in sorted(self._unfinished):
            try:
                self.finish(query)
            except (LedgerError, OSError) as error:
                _log.error("a batch of query %s is committed and cannot be finished yet: %s", query, error)
        return not self._unfinished

    def forget_before(self, cutoff_ms: int) -> None:
        """Delete finished batches of queries with a single batch, which cannot be repeated any more."""
        self._records.forget_before(cutoff_ms)

    def keeps(self, query: str, parts: Sequence[str]) -> set[str]:
        newest = self._records.newest(query) if query in self._unfinished else None
        if newest is None or newest.done:
            return set()
        return {part.part for run in newest.runs for part in run.parts}.intersection(parts)

    def _turn(self, query: str) -> threading.RLock:
        return self._turns[zlib.crc32(query.encode()) % _TURNS]

    def _checked(self, request: CommitRuns) -> Manifest:
        """Check every ledger, part and entry, and return the manifest."""
        runs: dict[str, ManifestRun] = {}
        for wanted in request.runs:
            ledger = self._ledger(wanted.ledger)
            if ledger.name in runs:
                raise Refused(
                    f"ledger {ledger.name!r} is named twice", hint="Name each ledger once, with all its parts"
                )
            ledger.require_run(_run(request, ledger.name, wanted.parts), self._opened(wanted.parts))
            runs[ledger.name] = ManifestRun(ledger.name, ledger.incarnation, wanted.parts)
        if not runs:
            raise Refused(f"batch {request.batch} of query {request.query!r} names no ledger")
        return Manifest(
            request.query,
            request.batch,
            request.txn_most,
            request.txn_least,
            list(runs.values()),
            once=request.once,
            committed_ms=self._clock(),
        )

    def _roll_forward(self, manifest: Manifest) -> CommittedRuns:
        committed = self._commit_runs(manifest)
        self._records.finish(manifest)
        self._unfinished.discard(manifest.query)
        self._staging.remove([part.part for run in manifest.runs for part in run.parts])
        self._staging.sweep_before(manifest.query, manifest.batch)
        return CommittedRuns(repeated=False, runs=committed)

    def _commit_runs(self, manifest: Manifest) -> dict[str, CommittedRun]:
        """Commit a run to each ledger, several at once, because each waits for its own sync."""
        committed: dict[str, CommittedRun] = {}
        for at in range(0, len(manifest.runs), _SYNCS):
            going: dict[str, Future[CommittedRun]] = {}
            try:
                for run in manifest.runs[at : at + _SYNCS]:
                    ledger = self._existing(run)
                    if ledger is not None:
                        going[run.ledger] = self._commit_run(manifest, run, ledger)
            finally:
                wait(going.values())  # also after a failure: no part of this batch continues after its error
            committed |= {name: future.result() for name, future in going.items()}
        return committed

    def _commit_run(self, manifest: Manifest, run: ManifestRun, ledger: ManagedLedger) -> Future[CommittedRun]:
        earlier = ledger.committed_batch(manifest.query)
        if earlier is not None and manifest.batch <= earlier.batch:
            there: Future[CommittedRun] = Future()
            there.set_result(CommittedRun(True, earlier.first, earlier.end, earlier.entries, earlier.rows))
            return there
        return ledger.commit_run(_run(manifest, run.ledger, run.parts), self._opened(run.parts))

    def _existing(self, run: ManifestRun) -> ManagedLedger | None:
        """Return the ledger of a run; None if it was deleted, also if there is another of its name."""
        try:
            ledger = self._ledger(run.ledger)
        except NotFound:
            ledger = None
        if ledger is None or ledger.incarnation != run.incarnation:
            _log.warning("ledger %s was deleted: the run of a committed batch for it is dropped", run.ledger)
            return None
        return ledger

    def _answer(self, manifest: Manifest | None) -> CommittedRuns:
        """Return the runs of an existing batch, as far as the ledgers still have them."""
        runs: dict[str, CommittedRun] = {}
        for run in () if manifest is None else manifest.runs:
            ledger = self._existing(run)
            batch = None if ledger is None else ledger.committed_batch(manifest.query)  # type: ignore[union-attr]
            if batch is not None:
                runs[run.ledger] = CommittedRun(True, batch.first, batch.end, batch.entries, batch.rows)
        return CommittedRuns(repeated=True, runs=runs)

    def _others(self, request: CommitRuns, newest: Manifest) -> list[str]:
        first = {part.part for run in newest.runs for part in run.parts}
        return [part.part for run in request.runs for part in run.parts if newest.done or part.part not in first]

    def _opened(self, parts: Sequence[StagedPart]) -> list[OpenedPart]:
        return [self._staging.open(part) for part in parts]


def _run(batch: CommitRuns | Manifest, ledger: str, parts: list[StagedPart]) -> CommitRun:
    return CommitRun(ledger, batch.query, batch.batch, batch.txn_most, batch.txn_least, parts)
