"""Messages about staged parts and runs. `ledger.protocol.actions` has the rules of all messages.

A task of a query writes its rows to a *staged part*, a file that no reader sees. A commit appends the parts of a batch
to a ledger as one *run*, which has entries with a common transaction id. Its last entry, the *marker*, closes the run
(`ledger.message.run_marker`). A *stamp* precedes each entry in a file: the broker's time and the row number. A *block*
is a part of a segment file with whole entries.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.protocol.request import WRITE, Empty, Request
from pyspark_ledger.ledger.settings.setting import Int64, Uint64

RepeatedBatches = Literal["refuse", "skip", "append"]


class StagingPlace(msgspec.Struct, frozen=True):
    """Name of a staged part, and the path of its file. The broker has created the file; the client writes to it.

    A part of at least `segment_from` bytes in segment layout can become a segment. -1: no part can.
    """

    part: str
    path: str
    segment_from: int = -1


class OpenStaging(Request[StagingPlace], frozen=True, action="stage.open", right=WRITE, ledgers=()):
    """Request for a new file for a staged part. `token` proves that the client is on the broker's host."""

    query: Name
    batch: Int64
    token: Name


class PartRun(msgspec.Struct, frozen=True):
    """Values for the marker of a part in segment layout: the batch, the run's id, the time of the marker.

    `block_bytes` is the block size of the part's ledger.
    """

    query: Name
    batch: Int64
    txn_most: Uint64
    txn_least: Uint64
    block_bytes: Int64
    publish_ms: Int64


class BucketAccess(msgspec.Struct, frozen=True):
    """Address of a bucket, and the options of S3 access, without credentials and without a source of credentials."""

    address: Name
    endpoint: Name = ""
    region: Name = ""
    path_style: bool | None = None
    encryption: Name = ""
    kms_key: Name = ""
    bucket_owner: Name = ""


class UploadTarget(msgspec.Struct, frozen=True):
    """Place of a task's data object. Without `access` the store takes no data objects from tasks.

    The key has the id of an attempt, and the id of the segment that the object becomes. `metadata` are the user
    metadata of the object.
    """

    access: BucketAccess | None = None
    attempt: Name = ""
    ledger_id: Int64 = -1
    metadata: dict[str, str] = {}


class OpenUpload(Request[UploadTarget], frozen=True, action="stage.upload", right=WRITE, ledgers=("ledger",)):
    """Request for the S3 key under which a task puts its part for a ledger into the store's bucket.

    `task` is the number of the task in its batch. The parts of a batch become segments in the order of their tasks.
    """

    query: Name
    batch: Int64
    ledger: Name
    task: Int64


class PutObject(msgspec.Struct, frozen=True):
    """Data object that a task has put into the bucket.

    `lengths` and `rows` have a number for each entry, and for the marker at the end: unsigned, 32 bits, little-endian.
    A length includes neither frame nor stamp.
    """

    attempt: Name
    ledger_id: Int64
    lengths: bytes
    rows: bytes


class StagedPart(msgspec.Struct, frozen=True):
    """Description of a staged part by its writer. `length` is the size of the file or of the object.

    A part has one of two layouts: the layout of a segment file, or *frames*, entries with their length and id only.
    `block_bytes` is the block size of a part in segment layout, and 0 for a part in frames. `crc32c` covers all bytes
    of a part in frames. `ledger.transport.part_writer` defines it for the other layout. A part in the store's bucket
    has an `object`, and no checksum.
    """

    part: Name
    entries: Int64
    rows: Int64
    length: Int64
    crc32c: Int64
    block_bytes: Int64 = 0
    object: PutObject | None = None


class BatchOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evidence of what a batch has read. `ledger.log.segments.repeated_batches` decides whether it is a repetition.

    `offsets` are digests of the sources' offsets in Spark's checkpoint, by the number of the batch; "" for a batch
    whose offsets the driver cannot read. `sums` are sums over the rows, if the tasks have computed them. `repeated` is
    the way out that the user has chosen. `staged` is False if a task has skipped its rows as a repetition. A `named`
    write is a repetition if its number is not above the newest number.
    """

    offsets: dict[int, Name] = {}
    sums: Name = ""
    repeated: RepeatedBatches = "refuse"
    staged: bool = True
    named: bool = False


class LedgerParts(msgspec.Struct, frozen=True):
    """Staged parts of one ledger, in order."""

    ledger: Name
    parts: list[StagedPart]


class CommittedRun(msgspec.Struct, frozen=True):
    """Run in the log, from position `first` up to `end`. `repeated`: an earlier call appended the run.

    If `asked` is not -1, nothing was appended: the request must be repeated with the offsets of batch `asked`.
    `warning` is set if option `repeatedBatches` skipped or appended a batch that is refused otherwise.
    """

    repeated: bool
    first: Position
    end: Position
    entries: int
    rows: int
    asked: int = -1
    warning: str = ""


class CommitRun(Request[CommittedRun], frozen=True, action="run.commit", ledgers=("ledger",)):
    """Request to append the staged parts as one run, exactly once per ledger, query and batch number.

    A repetition appends nothing. A run without parts is recorded in the metadata, without an entry.

    `txn_most` and `txn_least` are the halves of the run's transaction id, which all its entries have. `once`: the query
    commits no other batch. The broker then forgets the query after the retention time of staged parts.
    """

    ledger: Name
    query: Name
    batch: Int64
    txn_most: Uint64
    txn_least: Uint64
    parts: list[StagedPart]
    once: bool = False
    origin: BatchOrigin = BatchOrigin()

    def __post_init__(self) -> None:
        """Raise ValueError for a wrong field, which a decoder reports."""
        if max(self.txn_most, self.txn_least) >= 2**64:
            raise ValueError("each half of a run's id has 64 bits")

    @property
    def rows(self) -> int:
        """The number of rows in all parts."""
        return sum(part.rows for part in self.parts)


class CommittedRuns(msgspec.Struct, frozen=True):
    """Runs of a batch, by the canonical names of their ledgers. `repeated`: an earlier call appended the runs.

    `runs` is empty for a batch before the newest batch of its query. Reason: the broker records the ledgers of the
    newest batch only. `asked` and `warning` are those of `CommittedRun`.
    """

    repeated: bool
    runs: dict[str, CommittedRun]
    asked: int = -1
    warning: str = ""


class CommitRuns(Request[CommittedRuns], frozen=True, action="runs.commit", ledgers=("runs.ledger",)):
    """Request to commit a batch of a query to several ledgers, exactly once.

    The first request determines which rows go to which ledger. A repeated request does not change this. `once`: the
    query commits no other batch, as in `CommitRun`.
    """

    query: Name
    batch: Int64
    txn_most: Uint64
    txn_least: Uint64
    runs: list[LedgerParts]
    once: bool = False
    origin: BatchOrigin = BatchOrigin()

    def __post_init__(self) -> None:
        """Raise ValueError for a wrong field, which a decoder reports."""
        if max(self.txn_most, self.txn_least) >= 2**64:
            raise ValueError("each half of a run's id has 64 bits")

    @property
    def rows(self) -> int:
        """The number of rows in all parts of all ledgers."""
        return sum(part.rows for run in self.runs for part in run.parts)


class NewestBatch(msgspec.Struct, frozen=True):
    """Newest batch that all its ledgers contain; -1: there is no such batch."""

    batch: int


class AskNewestBatch(
    Request[NewestBatch], frozen=True, action="run.newest", right=WRITE, ledgers=("name",), changes=False
):
    """Request for the newest batch that a query has committed to one ledger. `incarnation` identifies the ledger.

    With `several` the request is for the newest batch that the query has committed to several ledgers.
    """

    name: Name
    query: Name
    incarnation: Name = ""
    several: bool = False

    def named_ledgers(self) -> set[str]:
        """Return the ledger. A request without a name is about a number of the query, and about no ledger's data."""
        return super().named_ledgers() - {""}


class AbortRun(Request[Empty], frozen=True, action="run.abort", ledgers=()):
    """Request to delete staged parts. The broker ignores missing parts."""

    query: Name
    batch: Int64
    parts: list[Name]
