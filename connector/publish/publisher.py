"""Sealed segments into a Delta table, each exactly once.

    for each log:   published up to ──▶ next sealed segment ──▶ dead letters ──▶ rows ──▶ the broker is told
                         ▲                                         one commit      one commit
                         └── what the table's own commits say: nothing else is kept anywhere

Invariants
- One commit per segment, in order of the segments, with the log's life as `txnAppId` and the segment's id as
  `txnVersion`. A segment that is in the table already is passed over by Delta, so a publisher may be killed anywhere
  and begin again, and several may run: who loses a race looks again.
- The first segment's commit makes the table. A publish that fails leaves no table without rows.
- No segment is written before the commit of the one before it is visible: of a log, the newest segment says all.
- Dead letters of a segment are committed before its rows: whoever finds the rows finds them, too.
- A table that was made anew, a ledger that was, rows that somebody else changed, and segments that went before they
  were published are noticed before anything is written, and refused unless the user says what is meant. What somebody
  else changes while a pass runs, the pass or the next one notices: a commit says how far its publisher had looked.

As a streaming query each trigger is a pass over what was sealed since. The query's checkpoint counts triggers, and
nothing else: a query may begin with an empty checkpoint, go on with an old one, or run beside other publishers. A pass
that fails fails the query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from pyspark_ledger.connector.publish.delta_table import DeltaTable, LostRace, tagged_session
from pyspark_ledger.connector.publish.latest_table import LatestRows
from pyspark_ledger.connector.publish.request import Publishing
from pyspark_ledger.connector.publish.segment_rows import BY_DATE, computed_columns, dead_letters, table_rows
from pyspark_ledger.connector.publish.segments import (
    BucketSegments,
    PublishableSegment,
    SealedLog,
    StoreSegments,
    segment_source,
)
from pyspark_ledger.connector.publish.table_retention import delete_trimmed, require_no_deletion
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
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_log = logging.getLogger(__name__)
_RACES_MAX = 20
_LOOKS_AFTER = 10
_SKIP_INDEX = "delta.dataSkippingNumIndexedCols"
_INDEXED = "40"  # Delta's default is 32; metadata columns take 8 of them


@dataclass(frozen=True, slots=True)
class PublishedSegment:
    """One segment that a pass found not published, and is published now. `rows` -1: nobody counted them."""

    ledger: str
    segment: int
    rows: int
    size_bytes: int


class Publisher:
    """One ledger, one table. `options` are those of `format("ledger")`: store or bucket, the payload's schema."""

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
        self.table = DeltaTable(spark, table)
        self.source: StoreSegments | BucketSegments = segment_source(ledger, options or {}, self.publishing.file_bytes)
        wanted = self.publishing.dead_letters
        self.dead_letters = DeltaTable(spark, wanted) if wanted else None
        self.latest = self._latest(self.publishing) if self.publishing.latest else None
        _require_apart(self.table, self.dead_letters, self.latest.view if self.latest is not None else None)
        self._identity = ""
        self._partitions = self.publishing.partitions
        self._looked = NO_SEGMENT
        self._starts: dict[str, Position] = {}
        self._known: dict[tuple[str, str], int] = {}

    def publish(self, tell: Callable[[PublishedSegment], object] | None = None) -> list[PublishedSegment]:
        """Everything that is sealed and not in the table; answers what it found to do, oldest first.

        Each segment is told as soon as it is there.

        Where nothing was sealed since the last pass, neither Spark nor the table is asked anything.
        """
        done: list[PublishedSegment] = []
        if self.publishing.seal_after_ms is not None and isinstance(self.source, StoreSegments):
            self.source.seal(self.publishing.seal_after_ms)
        logs = self.source.logs()
        due = [log for log in logs if self._has_more(log)]
        if self.latest is not None:
            for log in due:
                self.latest.require_free(log, self.source.columns(log))
        for log in logs:
            if log in due:
                done += self._publish_log(log, tell or _quietly)
            if self.publishing.follow_retention:
                self._follow_retention(log)
        if done:
            self._optimize()
        return done

    def run(self, tell: Callable[[PublishedSegment], object], every_ms: int | None, stop: Event) -> None:
        """Publish, and do it again every so often until `stop` is set; once without `every_ms`.

        What cannot be reached for a while is tried again; any other error ends it.
        """
        while not stop.is_set():
            try:
                self.publish(tell)
            except Unavailable as error:
                if every_ms is None:
                    raise
                _log.warning("%s; trying again", error)
            if every_ms is None:
                return
            stop.wait(every_ms / 1000)

    def _has_more(self, log: SealedLog) -> bool:
        """Whether anything was sealed since this publisher has looked."""
        known = self._known.get((log.name, log.incarnation), NO_SEGMENT)
        return bool(log.segments) and log.segments[-1].ledger_id > known

    def _publish_log(self, log: SealedLog, tell: Callable[[PublishedSegment], object]) -> list[PublishedSegment]:
        done: list[PublishedSegment] = []
        up_to, raced = self._published(log), 0
        while (segment := log.next_after(up_to)) is not None:
            try:
                self.source.require_whole(log, up_to)
                self._publish_segment(log, segment)
            except LostRace as lost:
                _log.info("%s", lost)
                found = self._published(log)
                # Who loses to another publisher gets on all the same; only races for nothing are counted.
                up_to, raced = found, 0 if found > up_to else raced + 1
                if raced > _RACES_MAX:
                    raise
                continue
            up_to, raced = segment.ledger_id, 0
            _log.info("%s: segment %d is in %s", log.name, segment.ledger_id, self.table)
            done.append(PublishedSegment(log.name, segment.ledger_id, segment.rows, segment.size_bytes))
            tell(done[-1])
            if len(done) % _LOOKS_AFTER == 0:
                up_to = self._published(log)
        latest = self.latest
        if latest is not None and self._identity:
            own = self.source.columns(log)
            _until_it_wins(lambda: latest.refresh(log, up_to, own))
        self._note(log, up_to)
        self._known[log.name, log.incarnation] = up_to
        return done

    def _publish_segment(self, log: SealedLog, segment: PublishableSegment) -> None:
        letters = self.dead_letters
        said = Publication(
            "segment", log.name, log.incarnation, segment.ledger_id, str(segment.last), segment.rows, self._looked
        ).text()
        commit = app_id(log.name, log.incarnation), segment.ledger_id, said
        missing = [self.table] if not self._identity else []
        missing += [letters] if letters is not None and not letters.identity() else []
        # A table with a name takes the metadata of the commit that makes it from the session.
        session = self.spark if all(one.is_path for one in missing) else tagged_session(self.spark, said)
        frame = self.source.rows(session, log, segment, rescue=letters is not None)
        if letters is not None:
            rows = dead_letters(frame, log.incarnation)
            if letters in missing:
                letters.create(rows, *commit, [one.name for one in BY_DATE])
            else:
                letters.append(rows, *commit)
        rows = table_rows(frame, self._partitions, log.incarnation)
        if self._identity:
            self.table.append(rows, *commit)
            return
        properties = {_SKIP_INDEX: _INDEXED, **self.publishing.properties}
        self.table.create(rows, *commit, [one.name for one in self._partitions], properties)
        self._know(self.table.identity())

    def _know(self, identity: str) -> None:
        """The table is this one: partitions count when one is made."""
        if identity and identity != self._identity:
            told = self.publishing.partitions
            self._partitions = computed_columns(told, self.table.partition_columns(), self.table.frame().columns)
        elif not identity:
            self._partitions = self.publishing.partitions
        self._identity = identity

    def _published(self, log: SealedLog) -> int:
        """The newest segment of a log that is in the table, after everything that can be wrong was looked for."""
        self._require_same_table(log)
        self._looked = NO_SEGMENT
        if not self._identity:
            return NO_SEGMENT
        changes = self._changes(log)
        self._looked = max((one.version for one in changes), default=NO_SEGMENT)
        changed = find_foreign_change(changes)
        if changed is not None and not self.publishing.accept_changes:
            raise Refused(
                f"rows of {self.table} were changed by somebody else: version {changed.version}, {changed.operation}, "
                f"at {changed.when}",
                hint="If that was meant, publish once with accept_changes; else restore the version before it",
            )
        return self._up_to(log, changes)

    def _changes(self, log: SealedLog) -> list[TableChange]:
        """As much of the history as tells of this log, and of all that nobody has looked at."""
        recent = self.table.recent()
        told = find_newest_segment(recent, log.name) is not None and covers_unreviewed_commits(recent)
        return recent if told or any(one.version == 0 for one in recent) else self.table.history()

    def _up_to(self, log: SealedLog, changes: Sequence[TableChange]) -> int:
        newest = find_newest_segment(changes, log.name)
        if newest is None:
            return self.table.largest_segment(log.topic, log.incarnation)
        if newest.incarnation == log.incarnation:
            return newest.segment
        if not self.publishing.restart:
            raise Refused(
                f"{self.table} holds ledger {log.name} of another life: {newest.incarnation}, it is now "
                f"{log.incarnation}",
                hint="Publish to another table, or with restart to have both in this one",
            )
        own = [one for one in changes if (said := one.publication) and said.incarnation == log.incarnation]
        found = find_newest_segment(own, log.name)
        return NO_SEGMENT if found is None else found.segment

    def _require_same_table(self, log: SealedLog) -> None:
        found, noted = self.table.identity(), PublishedNote.of(log.properties, self.table.target)
        known = self._identity or ("" if noted is None else noted.table_id)
        if known and found != known and not self.publishing.restart:
            now = f"made again, as {found}" if found else "deleted"
            up_to = "" if noted is None else f"; segments up to {noted.segment} of {log.name} went into it"
            raise Refused(
                f"{self.table} is not the table it was: {known} was {now}{up_to}",
                hint="Publish with restart to begin with the segments that are still there",
            )
        self._know(found)

    def _note(self, log: SealedLog, up_to: int) -> None:
        """Tell the broker how far this log is published, after it is."""
        if isinstance(self.source, BucketSegments) or up_to == NO_SEGMENT:
            return
        note = PublishedNote(self._identity, up_to)
        if PublishedNote.of(log.properties, self.table.target) != note:
            request = ChangeProperties(log.name, note.properties(self.table.target))
            self.source.connection.call(lambda client: client.call("properties", request))

    def _follow_retention(self, log: SealedLog) -> None:
        """Look once where a log begins, and again when that has moved."""
        if isinstance(self.source, BucketSegments):
            raise Refused(
                "a table was to follow the retention of a ledger that is read from its bucket, with no broker to ask",
                hint="Publish through the ledger's store",
            )
        if self._starts.get(log.name) == log.start or not self.table.identity():
            return
        require_no_deletion(self.source)
        _until_it_wins(lambda: delete_trimmed(self.table, log))
        self._starts[log.name] = log.start

    def _latest(self, wanted: Publishing) -> LatestRows:
        return LatestRows(self.table, DeltaTable(self.spark, wanted.latest), wanted.key, wanted.deleted_when)

    def _optimize(self) -> None:
        if not self.publishing.optimize_after:
            return
        since = 0
        for change in self.table.history(10 * self.publishing.optimize_after):
            if change.operation.upper() == "OPTIMIZE":
                break
            said = change.publication
            since += said is not None and said.kind == "segment"
        if since >= self.publishing.optimize_after:
            _until_it_wins(lambda: self.table.run(f"OPTIMIZE {self.table.sql}"))


def _quietly(_: PublishedSegment) -> None:
    """Nobody wants to be told."""


def _until_it_wins(commit: Callable[[], object]) -> None:
    """A commit that may be made again when another was faster."""
    for left in reversed(range(_RACES_MAX)):
        try:
            commit()
        except LostRace as lost:
            if not left:
                raise
            _log.info("%s", lost)
        else:
            return


def _require_apart(*tables: DeltaTable | None) -> None:
    """Refuse one table for two things: dead letters and rows of a segment are one transaction to Delta, passed over."""
    targets = [one.target for one in tables if one is not None]
    for target in targets:
        if targets.count(target) > 1:
            raise Refused(
                f"{target} is named for two of: the table, dead_letters, latest", hint="Give each a table of its own"
            )


_CLOCK = "rate-micro-batch"  # a batch at every trigger, and one under `availableNow`


class _Pass:
    """What a trigger does. It travels as what the user said; the publisher is made where it runs, at the first one."""

    def __init__(self, ledger: str, table: str, options: Mapping[str, str], publishing: Publishing) -> None:
        self._said = ledger, table, options, publishing
        self._publisher: Publisher | None = None

    def __call__(self, clock: DataFrame, _number: int) -> None:
        if self._publisher is None:
            self._publisher = Publisher(clock.sparkSession, *self._said)
        self._publisher.publish()


def publishing_query(
    spark: SparkSession, ledger: str, table: str, options: Mapping[str, str], publishing: Publishing
) -> DataStreamWriter:
    """A query that is not started yet: its trigger, checkpoint and name are for the caller to say."""
    Publisher(spark, ledger, table, options, publishing)  # what it refuses it refuses now
    clock = spark.readStream.format(_CLOCK).option("rowsPerBatch", 1).load()
    return clock.writeStream.foreachBatch(_Pass(ledger, table, options, publishing))
