"""Decision about a batch of a query: is the batch new, a repetition, or the batch of another history?

Every commit calls `judge`: a commit to one ledger or to several, of staged parts or of data objects. The decision
compares the batch with the *newest* committed batch of its query. Both have a number and an *origin*, which is the
evidence of what the batch has read (`ledger.message.run_marker`).

    number         decision
    above newest   new, if the checkpoint's offsets of the newest batch are equal to the recorded ones, or unknown
    newest         a repetition, if the origins are equal, or if an earlier version recorded no origin
    below newest   refused: the checkpoint is from the past, or it is a copy

Rules
- Equal offsets prove a repetition, also if its rows differ. Reason: a query can give other rows when Spark repeats it.
- If the offsets are unknown, sums of the rows decide. If the sums are unknown, the number of rows decides.
- `skip` turns a refused batch that is not above the newest into a repetition. `append` stores a refused batch, and
  raises the query's *numbering*. Batches are ordered by numbering, then by number. So this batch is then the newest.
- A write with a name (`txnAppId`) has no origin. A version that is not above the newest is a repetition, as in Delta.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RecordedBatch, RunOrigin, is_written
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommitRuns, CommittedRun

BOTH_WAYS = (
    "Restore the checkpoint's newest state, or use a new checkpoint. Option 'repeatedBatches' is a way out: 'skip' "
    "stores none of these rows, 'append' stores them all, also rows that are stored already"
)
APPEND = (
    "Use a new checkpoint, or option 'repeatedBatches' with the value 'append', which stores these rows, also rows "
    "that are stored already"
)


_FIRST = 1  # numbering of a query; 0 in runs of earlier versions


class DeletedRun(NamedTuple):
    """Newest batch of a query in a deleted ledger, and the incarnations of this ledger and of its successor."""

    batch: int
    incarnation: str
    successor: str


class Verdict(NamedTuple):
    """Decision about a batch. `origin` is the evidence to record with a new batch, and None for any other batch.

    `asked` is the number of a batch whose offsets the driver must send before the decision, or -1. `warning` is set if
    an option has changed the decision.
    """

    origin: RunOrigin | None = None
    asked: int = -1
    warning: str = ""


def judge(
    request: CommitRun | CommitRuns, newest: RecordedBatch | None, target: str, deleted: DeletedRun | None = None
) -> Verdict:
    """Decide about a batch for `target`, the name of the ledger or of several ledgers.

    Raises Refused for a batch of another history, and for a new batch of which a task has skipped its rows. `deleted`
    is set if the query has no batch in the ledger, but in an earlier ledger of the same name.
    """
    given, batch = request.origin, request.batch
    if newest is None:
        warning = "" if deleted is None or given.named else _continued(request, target, deleted)
        return _new(request, target, 0, warning)
    if batch > newest.batch:
        return _next(request, newest, target)
    if given.named or (batch == newest.batch and _is_same(request, newest)):
        return Verdict()
    found = _lower(request, newest, target) if batch < newest.batch else _other(request, newest, target)
    if given.repeated == "skip":
        return Verdict(warning=f"{found}: its rows are skipped, because option 'repeatedBatches' is 'skip'")
    return _new(request, target, max(newest.origin.numbering, _FIRST) + 1, _by_append(request, found, BOTH_WAYS))


def _next(request: CommitRun | CommitRuns, newest: RecordedBatch, target: str) -> Verdict:
    """Decide about a batch above the newest one. It must start where the newest batch ended."""
    given, recorded = request.origin, newest.origin
    known = given.offsets.get(newest.batch)
    if given.named or not recorded.offsets or not given.offsets or known in ("", recorded.offsets):
        return _new(request, target, recorded.numbering)
    if known is None:
        return Verdict(asked=newest.batch)
    return _new(request, target, recorded.numbering, _by_append(request, _gap(request, newest, target), APPEND))


def judge_queued(
    request: CommitRun,
    decided: RunOrigin | None,
    newest: CommittedBatch | None,
    target: str,
    deleted: DeletedRun | None = None,
) -> Verdict:
    """Decide about a batch in the write stage. `decided` is the origin of a batch that was judged before."""
    if decided is None:
        return judge(request, newest, target, deleted)
    return Verdict() if is_written(request.batch, decided, newest) else Verdict(decided)


def unwritten(verdict: Verdict, newest: CommittedBatch | None) -> CommittedRun:
    """Return the answer to a commit that appends nothing: the newest run, or the number of the offsets to send."""
    if newest is None or verdict.asked >= 0:
        return CommittedRun(False, EARLIEST, EARLIEST, 0, 0, verdict.asked, verdict.warning)
    return CommittedRun(True, newest.first, newest.end, newest.entries, newest.rows, verdict.asked, verdict.warning)


def _new(request: CommitRun | CommitRuns, target: str, numbering: int, warning: str = "") -> Verdict:
    given = request.origin
    if not given.staged:
        raise Refused(
            f"batch {request.batch} of {target} was in the log when its tasks began, and is not in the log any more",
            hint="The ledger was deleted during the write. Write again",
        )
    origin = RunOrigin(given.offsets.get(request.batch, ""), given.sums, max(numbering, _FIRST))
    return Verdict(origin, warning=warning)


def _is_same(request: CommitRun | CommitRuns, newest: RecordedBatch) -> bool:
    """Return whether a batch with the newest number is a repetition of the newest batch."""
    given, recorded = request.origin, newest.origin
    offsets = given.offsets.get(request.batch, "")
    if offsets and recorded.offsets:
        return offsets == recorded.offsets
    if not recorded.numbering:
        return True  # an earlier version has recorded no origin
    if given.sums and recorded.sums:
        return given.sums == recorded.sums
    return given.staged and request.rows == newest.rows


def _by_append(request: CommitRun | CommitRuns, found: str, hint: str) -> str:
    """Return the warning about a batch that option `append` stores. Raises Refused without this option."""
    if request.origin.repeated != "append":
        raise Refused(found, hint=hint)
    return f"{found}: its rows are appended, because option 'repeatedBatches' is 'append'"


def _lower(request: CommitRun | CommitRuns, newest: RecordedBatch, target: str) -> str:
    return (
        f"batch {request.batch} of query {request.query!r} is below batch {newest.batch}, the newest of the query in "
        f"{target}: the checkpoint is from the past, or it is a copy"
    )


def _other(request: CommitRun | CommitRuns, newest: RecordedBatch, target: str) -> str:
    ours, recorded = _evidence(request, newest)
    return (
        f"batch {request.batch} of query {request.query!r} is in {target} with {recorded}, and now has {ours}: the "
        "checkpoint is from the past, or it is a copy"
    )


def _gap(request: CommitRun | CommitRuns, newest: RecordedBatch, target: str) -> str:
    return (
        f"batch {request.batch} of query {request.query!r} follows a batch {newest.batch} with offsets "
        f"{request.origin.offsets[newest.batch]}, but batch {newest.batch} in {target} has offsets "
        f"{newest.origin.offsets}: two copies of one checkpoint are at work"
    )


def _evidence(request: CommitRun | CommitRuns, newest: RecordedBatch) -> tuple[str, str]:
    given, recorded = request.origin, newest.origin
    offsets = given.offsets.get(request.batch, "")
    if offsets and recorded.offsets:
        return f"offsets {offsets}", f"offsets {recorded.offsets}"
    if given.sums and recorded.sums:
        return f"{request.rows} rows with sums {given.sums}", f"{newest.rows} rows with sums {recorded.sums}"
    return f"{request.rows} rows" if given.staged else "rows that no task has read", f"{newest.rows} rows"


def _continued(request: CommitRun | CommitRuns, target: str, deleted: DeletedRun) -> str:
    """Return the warning about a ledger that was created again. Raises Refused without option `append`."""
    found = (
        f"query {request.query!r} wrote its batches up to {deleted.batch} to incarnation {deleted.incarnation} of "
        f"{target}. This ledger was deleted, and created again as incarnation {deleted.successor}"
    )
    return _by_append(request, found, APPEND)
