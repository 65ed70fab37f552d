"""Publication of sealed segments to a Delta table, each exactly once.

    for each log:   last published ──▶ next sealed segment ──▶ dead letters ──▶ rows ──▶ report to the broker
                         ▲                                      one commit      one commit
                         └── read from the table's commits; no other state is kept

A *log* is a ledger without partitions, or one partition. A *pass* publishes all segments that are sealed and not in the
table yet. *Dead letters* are payloads that cannot be decoded.

Invariants
- Each segment is one commit, in the order of segments. The commit's `txnAppId` identifies the log's incarnation, an id
  that changes when a ledger is created again. Its `txnVersion` is the segment's id. Delta skips a segment that the
  table already has.
- So a publisher may be killed at any point and restarted, and several publishers may run at once. If a commit conflicts
  with another commit, the publisher reads the table's state again.
- The first segment's commit creates the table. So a failed publication does not create an empty table.
- A segment is written only when the commit of the previous segment is visible. So if a segment of a log is published,
  all earlier segments are published, too.
- Dead letters of a segment are committed before its rows.
- Unless the user allows it, the publisher refuses to write after any of these events:
  - The table or the ledger was deleted and created again.
  - Another program changed rows of the table (a *foreign change*).
  - Retention deleted an unpublished segment.
- A publisher *reviews* commits: it looks for foreign changes. Each of its commits states the last reviewed version. So
  if another program changes rows during a pass, this pass or the next pass finds the change.

A publisher can also run as a streaming query. Then each trigger is one pass. The query's checkpoint only counts
triggers. So a query may start with an empty checkpoint, continue with an old checkpoint, or run beside other
publishers. A failed pass fails the query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from pyspark_ledger.connector.publish.delta_table import DeltaTable, LostRace, second_session, tagged_session
from pyspark_ledger.connector.publish.latest_table import LatestRows
from pyspark_ledger.connector.publish.progress import PassProgress
from pyspark_ledger.connector.publish.reports import PublishReports
from pyspark_ledger.connector.publish.request import Publishing
from pyspark_ledger.connector.publish.segment_rows import (
    BY_DATE,
    computed_columns,
    dead_letters,
    require_types_of_table,
    table_rows,
)
from pyspark_ledger.connector.publish.segments import (
    BucketSegments,
    PublishableSegment,
    SealedLog,
    StoreSegments,
    segment_source,
)
from pyspark_ledger.connector.publish.table_retention import delete_trimmed, require_no_deletion
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.display.progress_bar import SILENT, ProgressBar
from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import ChangeProperties, PublishedNote
from pyspark_ledger.offload.table.commit_metadata import (
    NO_SEGMENT,
    Publication,
    TableChange,
    app_id,
    covers_unreviewed_commits,
    find_foreign_change,
    find_newest_segment,
    require_same_store,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


_log = logging.getLogger(__name__)
_RACES_MAX = 20
_REFRESH_EVERY = 10
_SKIP_INDEX = "delta.dataSkippingNumIndexedCols"
_INDEXED = "40"  # the number of columns with statistics: Delta's default of 32, and 8 metadata columns


@dataclass(frozen=True, slots=True)
class PublishedSegment:
    """Segment whose rows were added to the table. `rows` is -1 if rows were not counted."""

    ledger: str
    segment: int
    rows: int
    size_bytes: int


class Publisher:
    """Publisher of one ledger to one table. `options` are options of `format("ledger")`, such as store or bucket."""

    def __init__(
        self,
        spark: SparkSession,
        ledger: str,
        table: str,
        options: Mapping[str, str] | None = None,
        publishing: Publishing | None = None,
    ) -> None:
        self.spark = spark
        self.publishing = publishing or Publishing()
        if self.publishing.latest or self.publishing.follow_retention:
            with second_session(spark):  # so that Refused is raised before a segment is published
                pass
        self.table = DeltaTable(spark, table)
        self.source: StoreSegments | BucketSegments = segment_source(ledger, options or {}, self.publishing.file_bytes)
        self._reports = PublishReports(self.source)
        wanted = self.publishing.dead_letters
        self.dead_letters = DeltaTable(spark, wanted) if wanted else None
        view, key, deleted_when = self.publishing.latest, self.publishing.key, self.publishing.deleted_when
        self.latest = LatestRows(self.table, DeltaTable(spark, view), key, deleted_when) if view else None
        _require_apart(self.table, self.dead_letters, self.latest.view if self.latest is not None else None)
        self._table_id = ""
        self._compared: StructType | None = None
        self._partitions = self.publishing.partitions
        self._reviewed_version = NO_SEGMENT
        self._starts: dict[str, Position] = {}
        self._published_up_to: dict[tuple[str, str], int] = {}

    def publish(
        self, on_published: Callable[[PublishedSegment], object] | None = None, bar: ProgressBar = SILENT
    ) -> list[PublishedSegment]:
        """Publish all sealed segments that are not in the table. Return these segments, oldest first.

        `on_published` is called after the commit of each segment. `bar` shows the bytes of the published segments. If
        no segment was sealed since the last pass, this method uses neither Spark nor the table.
        """
        new_segments: list[PublishedSegment] = []
        if self.publishing.seal_after_ms is not None and isinstance(self.source, StoreSegments):
            self.source.seal(self.publishing.seal_after_ms)
        logs = self.source.logs()
        due = [log for log in logs if self._has_unpublished(log)]
        if self.latest is not None:
            for log in due:
                self.latest.require_free(log, self.source.columns(log))
        progress = PassProgress(bar, due)
        for log in logs:
            try:
                if log in due:
                    new_segments += self._publish_log(log, on_published or _ignore, progress)
                if self.publishing.follow_retention:
                    self._follow_retention(log)
            except Exception:
                self._reports.failed(log.name)
                raise
        if new_segments:
            self._optimize()
        return new_segments

    def run(
        self,
        on_published: Callable[[PublishedSegment], object],
        every_ms: int | None,
        stop: Event,
        bar: ProgressBar = SILENT,
    ) -> None:
        """Publish every `every_ms` until `stop` is set, or once if `every_ms` is None.

        Unavailable is logged and retried at the next pass. Any other error is raised.
        """
        while not stop.is_set():
            try:
                self.publish(on_published, bar)
            except Unavailable as error:
                if every_ms is None:
                    raise
                _log.warning("%s; trying again", error)
            if every_ms is None:
                return
            stop.wait(every_ms / 1000)

    def _has_unpublished(self, log: SealedLog) -> bool:
        """Return whether the log has sealed segments after the last published segment that this publisher knows."""
        last_segment = self._published_up_to.get((log.name, log.incarnation), NO_SEGMENT)
        return bool(log.segments) and log.segments[-1].ledger_id > last_segment

    def _publish_log(
        self, log: SealedLog, on_published: Callable[[PublishedSegment], object], progress: PassProgress
    ) -> list[PublishedSegment]:
        new_segments: list[PublishedSegment] = []
        up_to, lost_races = self._last_published(log), 0
        progress.show(log, up_to)
        while (segment := log.next_after(up_to)) is not None:
            try:
                started_ms = monotonic_ms()
                self.source.require_whole(log, up_to)
                self._publish_segment(log, segment)
            except LostRace as lost:
                _log.info("%s", lost)
                newest = self._last_published(log)
                # Count successive conflicts. The count starts again at 0 if another publisher has committed a segment.
                up_to, lost_races = newest, 0 if newest > up_to else lost_races + 1
                if lost_races > _RACES_MAX:
                    raise
                continue
            up_to, lost_races = segment.ledger_id, 0
            _log.info("%s: segment %d is in %s", log.name, segment.ledger_id, self.table)
            self._reports.published(log.name, segment, monotonic_ms() - started_ms)
            new_segments.append(PublishedSegment(log.name, segment.ledger_id, segment.rows, segment.size_bytes))
            on_published(new_segments[-1])
            progress.show(log, up_to)
            if len(new_segments) % _REFRESH_EVERY == 0:
                up_to = self._last_published(log)
        latest = self.latest
        if latest is not None and self._table_id:
            log_columns = self.source.columns(log)
            _retry_races(lambda: latest.refresh(log, up_to, log_columns))
        self._report_to_broker(log, up_to)
        self._published_up_to[log.name, log.incarnation] = up_to
        return new_segments

    def _publish_segment(self, log: SealedLog, segment: PublishableSegment) -> None:
        letters = self.dead_letters
        metadata = Publication(
            "segment",
            log.name,
            log.incarnation,
            segment.ledger_id,
            str(segment.last),
            segment.rows,
            self._reviewed_version,
            self.source.store_id,
        ).text()
        commit = app_id(log.name, log.incarnation), segment.ledger_id, metadata
        missing = [self.table] if not self._table_id else []
        missing += [letters] if letters is not None and not letters.identity() else []
        # For a table with a name, Delta takes the user metadata of the first commit from the session.
        needs_session = not all(table.is_path for table in missing)
        with tagged_session(self.spark, metadata) if needs_session else nullcontext(self.spark) as session:
            frame = self.source.rows(session, log, segment, rescue=letters is not None)
            self._commit_segment(log, frame, commit, missing)

    def _commit_segment(
        self, log: SealedLog, frame: DataFrame, commit: tuple[str, int, str], missing: Sequence[DeltaTable]
    ) -> None:
        """Commit the dead letters of a segment, then its rows. Creates the `missing` tables."""
        letters = self.dead_letters
        if letters is not None:
            rows = dead_letters(frame, log.incarnation)
            if letters in missing:
                letters.create(rows, *commit, [column.name for column in BY_DATE])
            else:
                letters.append(rows, *commit)
        rows = table_rows(frame, self._partitions, log.incarnation)
        if self._table_id:
            if rows.schema != self._compared:
                require_types_of_table(self.table.frame().schema, rows.schema, str(self.table))
                self._compared = rows.schema
            self.table.append(rows, *commit)
            return
        properties = {_SKIP_INDEX: _INDEXED, **self.publishing.properties}
        self.table.create(rows, *commit, [column.name for column in self._partitions], properties)
        self._table_id = self.table.created_identity()

    def _set_table_id(self, identity: str) -> None:
        """Store the table's id and the partition columns to write. An empty id means that there is no table."""
        if identity and identity != self._table_id:
            self._compared = None
            wanted = self.publishing.partitions
            self._partitions = computed_columns(wanted, self.table.partition_columns(), self.table.frame().columns)
        elif not identity:
            self._partitions = self.publishing.partitions
        self._table_id = identity

    def _last_published(self, log: SealedLog) -> int:
        """Check the table for foreign changes, and return the newest published segment of a log. Raises Refused."""
        self._require_same_table(log)
        self._reviewed_version = NO_SEGMENT
        if not self._table_id:
            return NO_SEGMENT
        changes = self._load_changes(log)
        self._reviewed_version = max((change.version for change in changes), default=NO_SEGMENT)
        changed = find_foreign_change(changes)
        if changed is not None and not self.publishing.accept_changes:
            raise Refused(
                f"rows of {self.table} were changed by another program: version {changed.version}, "
                f"{changed.operation}, at {changed.when}",
                hint="If the change is intended, publish once with accept_changes. Otherwise restore the version "
                "before the change",
            )
        return self._last_segment_in(log, changes)

    def _load_changes(self, log: SealedLog) -> list[TableChange]:
        """Return the newest commits. They include this log's newest segment and all unreviewed commits."""
        recent = self.table.recent()
        reaches_log = find_newest_segment(recent, log.name) is not None and covers_unreviewed_commits(recent)
        return recent if reaches_log or any(change.version == 0 for change in recent) else self.table.history()

    def _last_segment_in(self, log: SealedLog, changes: Sequence[TableChange]) -> int:
        newest = find_newest_segment(changes, log.name)
        if newest is None:
            return self.table.largest_segment(log.topic, log.incarnation)
        if newest.incarnation == log.incarnation:
            if not self.publishing.accept_changes:
                require_same_store(newest, self.source.store_id, str(self.table))
            return newest.segment
        if not self.publishing.restart:
            raise Refused(
                f"{self.table} contains ledger {log.name} of another incarnation: {newest.incarnation}, the ledger's "
                f"is {log.incarnation}",
                hint="Publish to another table. To have both incarnations in this table, publish with restart",
            )
        same_incarnation = [
            change for change in changes if (metadata := change.publication) and metadata.incarnation == log.incarnation
        ]
        found = find_newest_segment(same_incarnation, log.name)
        return NO_SEGMENT if found is None else found.segment

    def _require_same_table(self, log: SealedLog) -> None:
        identity, note = self.table.identity(), PublishedNote.of(log.properties, self.table.target)
        table_id = self._table_id or ("" if note is None else note.table_id)
        if table_id and identity != table_id and not self.publishing.restart:
            change = f"replaced by table {identity}" if identity else "deleted"
            up_to = "" if note is None else f"; it had the segments of {log.name} up to {note.segment}"
            raise Refused(
                f"{self.table} is not the same table any more: table {table_id} was {change}{up_to}",
                hint="Publish with restart to begin with the segments that still exist",
            )
        self._set_table_id(identity)

    def _report_to_broker(self, log: SealedLog, up_to: int) -> None:
        """Record the last published segment in the log's properties. Does nothing for a bucket, which has no broker."""
        if isinstance(self.source, BucketSegments) or up_to == NO_SEGMENT:
            return
        note = PublishedNote(self._table_id, up_to)
        if PublishedNote.of(log.properties, self.table.target) != note:
            request = ChangeProperties(log.name, note.properties(self.table.target))
            self.source.connection.ask(request)

    def _follow_retention(self, log: SealedLog) -> None:
        """Delete the rows of trimmed segments if the log's start changed since the last call. Raises Refused."""
        if isinstance(self.source, BucketSegments):
            raise Refused(
                "follow_retention needs a broker, but the ledger is read from a bucket without a broker",
                hint="Publish through the ledger's store",
            )
        if self._starts.get(log.name) == log.start or not self.table.identity():
            return
        require_no_deletion(self.source)
        _retry_races(lambda: delete_trimmed(self.table, log))
        self._starts[log.name] = log.start

    def _optimize(self) -> None:
        if not self.publishing.optimize_after:
            return
        since = 0
        for change in self.table.history(10 * self.publishing.optimize_after):
            if change.operation.upper() == "OPTIMIZE":
                break
            metadata = change.publication
            since += metadata is not None and metadata.kind == "segment"
        if since >= self.publishing.optimize_after:
            _retry_races(self.table.optimize)


def _ignore(_: PublishedSegment) -> None:
    """Do nothing with the published segment."""


def _retry_races(commit: Callable[[], object]) -> None:
    """Run a repeatable commit. Calls `commit` up to 20 times while it raises LostRace."""
    for retries in reversed(range(_RACES_MAX)):
        try:
            commit()
        except LostRace as lost:
            if not retries:
                raise
            _log.info("%s", lost)
        else:
            return


def _require_apart(*tables: DeltaTable | None) -> None:
    """Raise Refused if one table is named twice.

    Reason: the commits of a segment's dead letters and of its rows have the same `txnAppId` and `txnVersion`. In one
    table, Delta would skip the second of them.
    """
    targets = [table.target for table in tables if table is not None]
    for target in targets:
        if targets.count(target) > 1:
            raise Refused(
                f"{target} is named for two of: the table, dead_letters, latest", hint="Name three different tables"
            )


_CLOCK = "rate-micro-batch"  # a source of Spark with one batch for each trigger; with `availableNow`, one batch in all


class _Pass:
    """Function that Spark calls for each trigger. The first call in a process creates a publisher.

    Spark pickles the function. So the object has only the arguments of the publisher, not the publisher.
    """

    def __init__(self, ledger: str, table: str, options: Mapping[str, str], publishing: Publishing) -> None:
        self._arguments = ledger, table, options, publishing
        self._publisher: Publisher | None = None

    def __call__(self, clock: DataFrame, _number: int) -> None:
        if self._publisher is None:
            self._publisher = Publisher(clock.sparkSession, *self._arguments)
        self._publisher.publish()


def publishing_query(
    spark: SparkSession, ledger: str, table: str, options: Mapping[str, str], publishing: Publishing
) -> DataStreamWriter:
    """Return a query writer that is not started. The caller sets trigger, checkpoint and name."""
    Publisher(spark, ledger, table, options, publishing)  # so that Refused is raised before the query starts
    clock = spark.readStream.format(_CLOCK).option("rowsPerBatch", 1).load()
    return clock.writeStream.foreachBatch(_Pass(ledger, table, options, publishing))
