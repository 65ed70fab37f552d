"""Commit of one batch to one ledger or to several, exactly once, even if a repetition of the batch brings other parts.

A *part* has the rows of one Spark task for one ledger: a staged file, or a data object in the bucket. A *manifest* is a
metadata record that lists the parts of a batch for several ledgers. A *run* is the entries of the batch in one ledger.
Its last entry, the *marker*, names query and batch.

    one ledger       open the parts ─▶ run (the commit point) ─▶ parts deleted
    several          check all ─▶ sync the staged parts ─▶ manifest (the commit point) ─▶ a run each ─▶ parts deleted

Who decides whether a batch is a repetition (`ledger.log.segments.repeated_batches`)
- The task may ask before it stages rows. The answer only saves work.
- The ledger's writer decides when it has the run. So parts are opened before the decision, and a repeated commit may
  lack its parts. An error of a part therefore reaches the writer, which raises it only for a new batch.
- A batch for several ledgers is decided with its manifest. The writers then ask only whether they have its run already.

Invariants of a batch for several ledgers
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
from contextlib import ExitStack, suppress
from functools import partial

import msgspec

from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.segments.repeated_batches import DeletedRun, judge
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun, ObjectsBehind
from pyspark_ledger.ledger.log.staging.opened_part import OpenedPart
from pyspark_ledger.ledger.message.run_marker import RunOrigin
from pyspark_ledger.ledger.metadata.manifest_records import Manifest, ManifestRecords, ManifestRun
from pyspark_ledger.ledger.protocol.commits import (
    AbortRun,
    AskNewestBatch,
    CommitRun,
    CommitRuns,
    CommittedRun,
    CommittedRuns,
    NewestBatch,
    OpenUpload,
    StagedPart,
    StagingPlace,
    UploadTarget,
)
from pyspark_ledger.ledger.store.direct_parts import DirectParts

_SYNCS = 16  # number of ledgers of one batch that are written and synced at the same time
_LOCKS = 64  # number of locks; queries that share a lock wait for each other
_SEVERAL = "its ledgers"  # in messages
_log = logging.getLogger(__name__)


class BatchCommits:
    """Commits of batches to the ledgers of one store. Any thread may call any method."""

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

    def open_part(self, query: str, batch: int) -> StagingPlace:
        """Create a staged part, the file for the rows of one attempt of a task."""
        return self._staging.place(query, batch)

    def open_upload(self, request: OpenUpload) -> UploadTarget:
        """Return the key under which a task puts its part for a ledger into the bucket of the store."""
        return self._direct.place(request)

    def commit(self, request: CommitRun) -> CommittedRun:
        """Append the parts of a batch to one ledger as one run, and wait until it is durable.

        The run is appended exactly once for each ledger, query and batch.
        """
        with ExitStack() as held:
            if any(part.object is not None for part in request.parts):
                held.enter_context(self.lock_of(request.query))  # a repeated call must not copy the objects again
            self.finish(request.query)
            ledger = self._ledger(request.ledger)
            parts = self._opened(request, held)
            committed = _result(ledger, request, parts, None, ledger.commit_run(request, parts))
            if committed.asked < 0:
                self._end(request, committed)
                self._staging.sweep_before(request.query, request.batch)
        if committed.warning:
            _log.warning("%s", committed.warning)
        return committed

    def commit_several(self, request: CommitRuns) -> CommittedRuns:
        """Commit a batch to several ledgers. For a repetition, finish the earlier commit and return its runs."""
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

    def newest_batch(self, request: AskNewestBatch) -> NewestBatch:
        """Return the newest committed batch of a query. A commit of this or an earlier batch writes nothing."""
        if request.several:
            newest = self._records.newest(request.query)
            return NewestBatch(-1 if newest is None else newest.batch if newest.done else newest.batch - 1)
        ledger = self._ledger(request.name)
        found = ledger.committed_batch(request.query) if ledger.incarnation == request.incarnation else None
        return NewestBatch(-1 if found is None else found.batch)

    def abort(self, request: AbortRun) -> None:
        """Delete staged parts, except the parts that a committed batch still needs."""
        kept = self._needed(request.query, request.parts)
        self._staging.remove([part for part in request.parts if part not in kept])

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

    def _needed(self, query: str, parts: Sequence[str]) -> set[str]:
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
                self._require_continued(request, ledger)
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

    def _require_continued(self, request: CommitRuns, ledger: ManagedLedger) -> None:
        """Raise Refused if a ledger was deleted and created again, unless option `append` accepts this."""
        deleted = self._records.deleted_run(ledger.name, request.query)
        if deleted is not None:
            verdict = judge(request, None, ledger.name, DeletedRun(*deleted, ledger.incarnation))
            if verdict.warning:
                _log.warning("%s", verdict.warning)

    def _roll_forward(self, manifest: Manifest) -> CommittedRuns:
        committed = self._commit_runs(manifest)
        self._records.finish(manifest)
        self._unfinished.discard(manifest.query)
        for run in manifest.runs:
            if run.ledger in committed:
                self._end(_run(manifest, run.ledger, run.parts), committed[run.ledger])
            else:
                self._staging.remove_parts(run.parts)
        self._staging.sweep_before(manifest.query, manifest.batch)
        return CommittedRuns(repeated=False, runs=committed)

    def _commit_runs(self, manifest: Manifest) -> dict[str, CommittedRun]:
        """Commit a run to each ledger.

        Up to `_SYNCS` commits overlap, because each waits for the sync of its own file.
        """
        committed: dict[str, CommittedRun] = {}
        for at in range(0, len(manifest.runs), _SYNCS):
            futures: list[Future[CommittedRun]] = []
            results: dict[str, Callable[[], CommittedRun]] = {}
            with ExitStack() as held:
                try:
                    for run in manifest.runs[at : at + _SYNCS]:
                        ledger = self._existing(run)
                        if ledger is not None:
                            request = _run(manifest, run.ledger, run.parts)
                            parts = self._opened(request, held, manifest.origin)
                            future = ledger.commit_run(request, parts, manifest.origin)
                            futures.append(future)
                            results[run.ledger] = partial(_result, ledger, request, parts, manifest.origin, future)
                finally:
                    wait(futures)  # also after an error, so that no run of the batch is still in flight
                committed |= {name: result() for name, result in results.items()}
        return committed

    def _opened(
        self, run: CommitRun, held: ExitStack, decided: RunOrigin | None = None
    ) -> Sequence[OpenedPart] | DirectRun | LedgerError:
        """Return the opened parts of a run, or the error that prevents their use. `held` is closed after the commit.

        `decided` is the origin of a batch that has a manifest. Such a batch protects its objects from sweeps.
        """
        try:
            if decided is None:
                held.enter_context(self._direct.withheld(run))
            direct = self._direct.open_run(run, decided=decided is not None)
            if direct is not None:
                return direct
            opened = self._staging.open_run(run)
        except LedgerError as fault:
            return fault
        held.callback(self._staging.remove_joined, run, opened)
        return opened

    def _end(self, run: CommitRun, committed: CommittedRun) -> None:
        """Delete the parts of a run that is in its ledger, and count them."""
        if not committed.repeated:
            self._direct.counter.commit(run.parts)
        self._direct.committed(run)
        self._staging.remove_parts(run.parts)

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


def _result(
    ledger: ManagedLedger,
    run: CommitRun,
    parts: Sequence[OpenedPart] | DirectRun | LedgerError,
    decided: RunOrigin | None,
    future: Future[CommittedRun],
) -> CommittedRun:
    """Return the result of a queued run. If its objects have too low ids, copy them first and queue the run again."""
    try:
        return future.result()
    except ObjectsBehind:
        assert isinstance(parts, DirectRun)  # noqa: S101 — for the type checker
        return ledger.commit_run(run, parts.copied(), decided).result()


def _run(batch: CommitRuns | Manifest, ledger: str, parts: list[StagedPart]) -> CommitRun:
    return CommitRun(ledger, batch.query, batch.batch, batch.txn_most, batch.txn_least, parts)
