"""Commit of one batch to several ledgers, exactly once, even if a repetition of the batch brings other parts.

A *staged part* is a file with the rows of one Spark task for one ledger. A *manifest* is a metadata record that lists
the parts of a batch. A *run* is the entries of the batch in one ledger. Its last entry, the *marker*, names query and
batch.

    check all ─▶ sync the staged parts ─▶ manifest (the commit point) ─▶ a run per ledger ─▶ done ─▶ parts deleted

Invariants
- A batch can be refused only before its manifest is written. Once the manifest is written, the batch is committed: the
  runs are written from the manifest's parts. If the broker dies, the next broker writes the missing runs at its start.
- Each ledger gets its run once, because the marker identifies query and batch. The rows of a run become readable in one
  step, but not in all ledgers at the same moment.
- The batches of a query are committed one at a time, in the order of their numbers. If the number of a batch is not
  above the query's newest number, the batch is a repetition, and writes nothing.
- A ledger that was deleted after the commit point gets no run. Any other failure is an error, and the manifest stays
  until the batch can be finished.
"""

from __future__ import annotations

import logging
import threading
import uuid
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress

import msgspec

from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.segments.repeated_batches import DeletedRun, Verdict, judge, unwritten
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.message.run_marker import RunOrigin, is_written
from pyspark_ledger.ledger.metadata.manifest_records import Manifest, ManifestRecords, ManifestRun
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommitRuns, CommittedRun, CommittedRuns, StagedPart
from pyspark_ledger.ledger.store.direct_parts import DirectParts

_SYNCS = 16  # number of ledgers of one batch that are written and synced at the same time
_LOCKS = 64  # number of locks; queries that share a lock wait for each other
_SEVERAL = "its ledgers"  # in messages
_log = logging.getLogger(__name__)


class ManifestCommits:
    """Commits of batches to several ledgers of one store. Any thread may call any method."""

    def __init__(
        self,
        records: ManifestRecords,
        staging: StagingArea,
        direct: DirectParts,
        ledger: Callable[[str], ManagedLedger],
        clock: Callable[[], int],
    ) -> None:
        self._records = records
        self._staging = staging
        self._direct = direct
        self._ledger = ledger
        self._clock = clock
        self._locks = [threading.RLock() for _ in range(_LOCKS)]
        self._unfinished = {manifest.query for manifest in records.pending()}

    def commit(self, request: CommitRuns) -> CommittedRuns:
        """Commit a batch. For a repetition, finish the earlier commit and return its runs."""
        with self.lock_of(request.query):
            self.finish(request.query)
            newest = self._records.newest(request.query)
            verdict = judge(request, newest, _SEVERAL)
            if verdict.warning:
                _log.warning("%s", verdict.warning)
            if verdict.asked >= 0:
                return CommittedRuns(False, {}, verdict.asked)
            if newest is not None and verdict.origin is None:
                self._staging.remove_parts(self._others(request, newest))
                if newest.done:
                    self._delete_unlisted(request)
                return self._answer(newest if newest.batch == request.batch else None, verdict.warning)
            with self._direct.withheld(*(_run(request, run.ledger, run.parts) for run in request.runs)):
                manifest = self._checked(request, verdict.origin or RunOrigin())
                self._staging.sync([part for run in manifest.runs for part in run.parts])
                self._unfinished.add(request.query)
                self._records.put(manifest)
            return msgspec.structs.replace(self._roll_forward(manifest), warning=verdict.warning)

    def deleted_run(self, ledger: ManagedLedger, query: str) -> DeletedRun | None:
        """Return the newest batch of a query in the deleted ledger whose name `ledger` has now."""
        found = self._records.deleted_run(ledger.name, query)
        return None if found is None else DeletedRun(*found, ledger.incarnation)

    def newest(self, query: str) -> int:
        """Return the newest batch of a query whose runs are in all of the batch's ledgers, or -1."""
        found = self._records.newest(query)
        if found is None:
            return -1
        return found.batch if found.done else found.batch - 1

    def finish(self, query: str) -> None:
        """Write the missing runs of the query's newest batch, if the batch has a manifest."""
        if query not in self._unfinished:
            return
        with self.lock_of(query):
            newest = self._records.newest(query)
            if newest is not None and not newest.done:
                self._roll_forward(newest)
            self._unfinished.discard(query)

    def finish_all(self) -> bool:
        """Finish the commits that an earlier broker has begun. Return False if a commit cannot be finished yet.

        Called before the store accepts requests.
        """
        for query in sorted(self._unfinished):
            try:
                self.finish(query)
            except (LedgerError, OSError) as error:
                _log.error("a batch of query %s is committed and cannot be finished yet: %s", query, error)
        return not self._unfinished

    def forget_before(self, cutoff_ms: int) -> None:
        """Delete the manifests of finished batch writes (writes without a stream) from before `cutoff_ms`.

        Such a write cannot be repeated, because its staged parts are deleted at the same age.
        """
        self._records.forget_before(cutoff_ms)

    def keeps(self, query: str, parts: Sequence[str]) -> set[str]:
        """Return the parts in `parts` that an unfinished batch of the query still needs."""
        newest = self._records.newest(query) if query in self._unfinished else None
        if newest is None or newest.done:
            return set()
        return {part.part for run in newest.runs for part in run.parts}.intersection(parts)

    def needed_objects(self) -> set[uuid.UUID]:
        """Return the attempts (ids of uploads) of the objects in the bucket that unfinished batches still need."""
        pending = self._records.pending() if self._unfinished else []
        parts = [part for manifest in pending for run in manifest.runs for part in run.parts]
        return {uuid.UUID(part.object.attempt) for part in parts if part.object is not None}

    def lock_of(self, query: str) -> threading.RLock:
        """Return the lock under which the batches of a query are committed. Some queries share a lock."""
        return self._locks[zlib.crc32(query.encode()) % _LOCKS]

    def _checked(self, request: CommitRuns, origin: RunOrigin) -> Manifest:
        """Check every ledger, part and entry, and return the manifest."""
        runs: dict[str, ManifestRun] = {}
        for requested in request.runs:
            ledger = self._ledger(requested.ledger)
            if ledger.name in runs:
                raise Refused(
                    f"ledger {ledger.name!r} is named twice",
                    hint="Name each ledger once, with all its parts",
                )
            if ledger.committed_batch(request.query) is None:
                verdict = judge(request, None, ledger.name, self.deleted_run(ledger, request.query))
                if verdict.warning:
                    _log.warning("%s", verdict.warning)
            opened = [self._staging.open(part) for part in requested.parts if part.object is None]
            run = _run(request, ledger.name, requested.parts)
            ledger.require_run(run, opened)
            self._direct.check(run)
            runs[ledger.name] = ManifestRun(ledger.name, ledger.incarnation, requested.parts)
        if not runs and not request.origin.named:
            raise Refused(f"batch {request.batch} of query {request.query!r} names no ledger")
        return Manifest(
            request.query,
            request.batch,
            request.txn_most,
            request.txn_least,
            list(runs.values()),
            once=request.once,
            committed_ms=self._clock(),
            origin=origin,
        )

    def _roll_forward(self, manifest: Manifest) -> CommittedRuns:
        committed = self._commit_runs(manifest)
        self._records.finish(manifest)
        self._unfinished.discard(manifest.query)
        for run in manifest.runs:
            self._staging.remove_parts(run.parts)
            if run.ledger in committed:
                if not committed[run.ledger].repeated:
                    self._direct.counter.commit(run.parts)
                self._direct.committed(_run(manifest, run.ledger, run.parts))
        self._staging.sweep_before(manifest.query, manifest.batch)
        return CommittedRuns(repeated=False, runs=committed)

    def _commit_runs(self, manifest: Manifest) -> dict[str, CommittedRun]:
        """Commit a run to each ledger.

        Up to `_SYNCS` commits overlap, because each waits for the sync of its own file.
        """
        committed: dict[str, CommittedRun] = {}
        for at in range(0, len(manifest.runs), _SYNCS):
            futures: dict[str, Future[CommittedRun]] = {}
            try:
                for run in manifest.runs[at : at + _SYNCS]:
                    ledger = self._existing(run)
                    if ledger is not None:
                        futures[run.ledger] = self._commit_run(manifest, run, ledger)
            finally:
                wait(futures.values())  # also after an error, so that no run of the batch is still in flight
            committed |= {name: future.result() for name, future in futures.items()}
        return committed

    def _commit_run(self, manifest: Manifest, run: ManifestRun, ledger: ManagedLedger) -> Future[CommittedRun]:
        earlier = ledger.committed_batch(manifest.query)
        if is_written(manifest.batch, manifest.origin, earlier):
            existing: Future[CommittedRun] = Future()
            existing.set_result(unwritten(Verdict(), earlier))
            return existing
        request = _run(manifest, run.ledger, run.parts)
        direct = self._direct.open_run(request, decided=True)
        if direct is not None:
            return ledger.commit_direct(request, direct, manifest.origin)
        opened = self._staging.open_run(request)
        future = ledger.commit_run(request, opened, manifest.origin)
        future.add_done_callback(lambda _: self._staging.remove_joined(request, opened))
        return future

    def _existing(self, run: ManifestRun) -> ManagedLedger | None:
        """Return the ledger of a run. Returns None if it was deleted, even if a new ledger has the same name."""
        try:
            ledger = self._ledger(run.ledger)
        except NotFound:
            ledger = None
        if ledger is None or ledger.incarnation != run.incarnation:
            _log.warning("ledger %s was deleted: its run of a committed batch is dropped", run.ledger)
            return None
        return ledger

    def _answer(self, manifest: Manifest | None, warning: str) -> CommittedRuns:
        """Return the runs of a batch that was committed before. Omits ledgers that were deleted."""
        runs: dict[str, CommittedRun] = {}
        for run in () if manifest is None else manifest.runs:
            ledger = self._existing(run)
            batch = None if ledger is None else ledger.committed_batch(manifest.query)  # type: ignore[union-attr]
            if batch is not None:
                runs[run.ledger] = CommittedRun(True, batch.first, batch.end, batch.entries, batch.rows)
        return CommittedRuns(repeated=True, runs=runs, warning=warning)

    def _delete_unlisted(self, request: CommitRuns) -> None:
        """Delete the data objects of a repeated request that are no segments."""
        for run in request.runs:
            with suppress(NotFound):  # the ledger was deleted after the commit
                self._direct.committed(_run(request, run.ledger, run.parts))

    def _others(self, request: CommitRuns, newest: Manifest) -> list[StagedPart]:
        """Return the parts of a repeated request that the newest batch does not need, and that can be deleted."""
        first = {part.part for run in newest.runs for part in run.parts}
        return [part for run in request.runs for part in run.parts if newest.done or part.part not in first]


def _run(batch: CommitRuns | Manifest, ledger: str, parts: list[StagedPart]) -> CommitRun:
    return CommitRun(ledger, batch.query, batch.batch, batch.txn_most, batch.txn_least, parts)
