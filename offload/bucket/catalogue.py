"""Catalogue of a bucket: its topics, their segments, and gaps. Pure: `offload.bucket.listing` reads the objects.

    attempt   one upload of one segment: <uuid>-ledger-<id> and its index, in any folder below the address
    segment   the valid attempt of a ledger id, which is the id of a segment
    gap       a range of entries that the topic had and the bucket does not have

Rules
- The topic of an object is stated in the object's user metadata, or else in the index object.
- Objects of one topic are grouped by Pulsar cluster and by incarnation, the id that changes when a ledger is created
  again.
- Objects of older versions of Pulsar state neither cluster nor incarnation. These older objects form a group of their
  own. Exception: if the topic has only one other group, and all its segments are later, the two groups are merged.
- An attempt is valid if its index is readable and its data object is at least as long as the index states.
- Valid attempts of one segment must agree in last entry id and length. The attempt with the most entries is read.
- A missing segment is a gap only if later segments of the topic exist. Reason: the last segments may still be uploaded.
- An index without its data object is always a gap. Reason: the index is written last, so the data object was deleted.
- The user may give Pulsar's metadata of a topic (option `offloadMetadata`), here a *record*. Then the record determines
  the segments of the topic and the valid attempt of each segment. Objects that state no topic are found only by a
  record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.names import nearest, partition_of, pulsar_path
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.offload.bucket.topic_metadata import KnownSegment, PulsarRecord
from pyspark_ledger.offload.bucket.topic_name import spelled, spellings
from pyspark_ledger.offload.format.block_index import BlockIndex

_UNSTATED = ("", "")  # cluster and incarnation of objects that state neither


@dataclass(frozen=True, slots=True)
class Attempt:
    """Upload of a segment. `fault` is the reason why the attempt is invalid. `damaged` is set if bytes are corrupt.

    `topic` is the ledger in Pulsar's spelling, or empty if no object states it. `data_bytes` is -1 if the data object
    is missing. `object_name` is the name of the data object, if this name cannot be derived from `key`. `entries` is
    the number of entries of an invalid attempt if it is known, and otherwise -1.
    """

    key: ObjectKey
    folder: str
    topic: str = ""
    cluster: str = ""
    incarnation: str = ""
    index: BlockIndex | None = None
    data_bytes: int = -1
    fault: str = ""
    damaged: bool = False
    object_name: str = ""
    entries: int = -1
    changed_ms: tuple[int, int] = (0, 0)
    """Times of the last change of data object and index object."""

    @property
    def data_name(self) -> str:
        return self.object_name or self.folder + self.key.data_name


@dataclass(frozen=True, slots=True)
class Segment:
    """Sealed segment that can be read."""

    ledger_id: int
    data_name: str
    index: BlockIndex
    changed_ms: tuple[int, int] = (0, 0)

    @property
    def identity(self) -> tuple[object, ...]:
        """Values for comparison. At least one of them changes if the data object is replaced."""
        return self.data_name, self.ledger_id, self.index.data_bytes, self.stored_entries, self.changed_ms

    @property
    def entries(self) -> int:
        """The number of entries that the segment had."""
        return self.index.entries

    @property
    def stored_entries(self) -> int:
        """The number of entries in the data object."""
        return self.index.stored_entries


class Gap(NamedTuple):
    """Entries `[first, end)` of a segment that are not in the bucket. `end` is -1 if it is unknown."""

    ledger_id: int
    first: int
    end: int
    cause: str

    def __str__(self) -> str:
        last = "the end" if self.end < 0 else f"{self.ledger_id}:{self.end - 1}"
        return f"{self.ledger_id}:{self.first} to {last} ({self.cause})"


@dataclass(frozen=True, slots=True)
class TopicSegments:
    """Topic of the bucket. `path` is its name in Pulsar's spelling. Segments and gaps are ordered by segment id."""

    path: str
    cluster: str
    incarnation: str
    segments: tuple[Segment, ...]
    gaps: tuple[Gap, ...]

    @property
    def name(self) -> str:
        return spelled(self.path)


class Catalogue:
    """Attempts of a listing, grouped by topic."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        self.attempts = sorted(
            attempts, key=lambda attempt: (attempt.topic, attempt.cluster, attempt.key.ledger_id, attempt.data_name)
        )
        self._topics: dict[str, dict[tuple[str, str], list[Attempt]]] = defaultdict(lambda: defaultdict(list))
        for attempt in self.attempts:
            self._topics[attempt.topic][attempt.cluster, attempt.incarnation].append(attempt)

    def find(self, name: str, records: Sequence[PulsarRecord] = (), *, cluster: str = "") -> list[TopicSegments]:
        """Return the topic of this name in any spelling, or its partitions in order.

        Raises NotFound if there is no topic of this name. Raises Refused if name or cluster is ambiguous, or if
        `records` are given and none of them is of the topic.
        """
        topicless = [attempt for group in self._topics.get("", {}).values() for attempt in group] if records else []
        try:
            paths = self._paths(name)
        except NotFound:
            found = [
                _topic_by_record(claimed, record) for claimed, record in _attempts_by_record(name, topicless, records)
            ]
            if not found:
                raise
            return found
        topics = [self._topic(path, cluster) for path in paths]
        if not records:
            return [_to_topic(topic, _segments_by_listing(topic)) for topic in topics]
        chosen = [_find_record(topic, records, alone=len(topics) == 1) for topic in topics]
        return [
            _topic_by_record(topic + _attempts_of(record, topicless), record)
            for topic, record in zip(topics, chosen, strict=True)
        ]

    @property
    def topicless_faults(self) -> list[str]:
        """The faults of damaged segments that state no topic. Such a segment may belong to any topic."""
        groups = self._topics.get("", {}).values()
        return [
            f"ledger {attempt.key.ledger_id}: {attempt.fault}"
            for group in groups
            for attempt in group
            if attempt.damaged
        ]

    def _paths(self, name: str) -> list[str]:
        plain_names = {path: spelled(path) for path in self._topics if path}
        paths = {path: path for path in plain_names}  # a user may also give the path itself
        for wanted in spellings(name):
            found = _paths_of(wanted, plain_names) or _paths_of(wanted, paths)
            if found:
                return found
        near = nearest(spellings(name)[0], plain_names.values())
        hint = f"Did you mean {near!r}?" if near else "Read without a name to list the topics"
        faults = self.topicless_faults
        more = f"; {len(faults)} unreadable segments state no topic: {faults[0]}" if faults else ""
        raise NotFound(f"no object is of topic {name!r}; there are {len(plain_names)} topics{more}", hint=hint)

    def _topic(self, path: str, cluster: str) -> list[Attempt]:
        groups = _merge_unstated_cluster(self._topics[path])
        found = {group: attempts for group, attempts in groups.items() if cluster in ("", group[0])}
        if len(found) != 1:
            found_text = "; ".join(
                f"cluster {name!r} incarnation {incarnation!r}" for name, incarnation in sorted(groups)
            )
            wanted = f"cluster {cluster!r}" if cluster else "one cluster"
            raise Refused(
                f"topic {spelled(path)} exists {len(groups)} times: {found_text}; {wanted} was expected",
                hint="Name the cluster with offloadCluster, or give an address that contains the topic only once",
            )
        return next(iter(found.values()))


def _paths_of(wanted: str, names: Mapping[str, str]) -> list[str]:
    """Return the path of the topic with this name, or the paths of its partitions in order.

    `names` maps paths to names. Raises Refused if the name is ambiguous.
    """
    exact = [path for path, name in names.items() if name == wanted]
    parts = [(partition_of(name), path) for path, name in names.items()]
    partitions = [path for part, path in sorted((part, path) for part, path in parts if part and part[0] == wanted)]
    if exact and partitions:
        raise Refused(
            f"{wanted!r} is a topic without partitions and also has {len(partitions)} partitions here, such as "
            f"{partitions[0]}",
            hint="Name one partition",
        )
    if len(exact) > 1:
        raise Refused(f"{wanted!r} is the name of {' and '.join(map(repr, exact))}", hint="Give one of these names")
    return exact or partitions


def _merge_unstated_cluster(groups: Mapping[tuple[str, str], list[Attempt]]) -> dict[tuple[str, str], list[Attempt]]:
    """Merge the attempts that state no cluster and incarnation into the only other group.

    Changes nothing if there are several other groups. Also changes nothing if any segment of the other group is earlier
    than one of the segments of these attempts.
    """
    named = {group: attempts for group, attempts in groups.items() if group != _UNSTATED}
    older = groups.get(_UNSTATED, [])
    if not older or len(named) != 1:
        return dict(groups)
    ((group, newer),) = named.items()
    if max(attempt.key.ledger_id for attempt in older) > min(attempt.key.ledger_id for attempt in newer):
        return dict(groups)
    return {group: newer + older}


def _attempts_by_record(
    name: str, topicless: Sequence[Attempt], records: Sequence[PulsarRecord]
) -> Iterator[tuple[list[Attempt], PulsarRecord]]:
    """Yield each record of this topic or its partitions, with the uploads (attempts) of its segments.

    `topicless` are the attempts whose objects state no topic.
    """
    wanted = spellings(name)[0]
    for record in records:
        # If the only record states no topic, it counts as the record of the wanted topic.
        ledger = spellings(record.topic)[0] if record.topic else wanted if len(records) == 1 else ""
        part = partition_of(ledger) if ledger else None
        attempts = _attempts_of(record, topicless)
        if attempts and (ledger == wanted or (part and part[0] == wanted)):
            yield [replace(attempt, topic=pulsar_path(ledger)) for attempt in attempts], record


def _attempts_of(record: PulsarRecord, attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts of a record's segments."""
    ledger_ids = {segment.ledger_id for segment in record.segments}
    return [attempt for attempt in attempts if attempt.key.ledger_id in ledger_ids]


def _by_ledger(attempts: Iterable[Attempt]) -> dict[int, list[Attempt]]:
    grouped: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        grouped[attempt.key.ledger_id].append(attempt)
    return grouped


def _segments_by_listing(attempts: Sequence[Attempt]) -> list[Segment | Gap]:
    """Return the segments and gaps that the listed objects show. Unfinished uploads at the end are left out."""
    found = [_choose_segment(ledger_id, listed) for ledger_id, listed in sorted(_by_ledger(attempts).items())]
    while found and isinstance(found[-1], Gap) and found[-1].end < 0:
        found.pop()
    return found


def _to_topic(attempts: Sequence[Attempt], found: Iterable[Segment | Gap]) -> TopicSegments:
    segments, gaps = [], []
    for item in found:
        if isinstance(item, Gap):
            gaps.append(item)
            continue
        segments.append(item)
        if item.stored_entries < item.entries:
            cause = f"Pulsar's offloader stopped in {item.data_name} and reported success"
            gaps.append(Gap(item.ledger_id, item.stored_entries, item.entries, cause))
    first = attempts[0]
    return TopicSegments(first.topic, first.cluster, first.incarnation, tuple(segments), tuple(gaps))


def _choose_segment(ledger_id: int, attempts: Sequence[Attempt]) -> Segment | Gap:
    """Return the segment of a ledger id, or a gap if no attempt is valid.

    Raises Corrupt if no attempt is valid and an attempt is damaged, Refused if valid attempts disagree.
    """
    valid = [attempt for attempt in attempts if not attempt.fault and attempt.index is not None]
    if not valid:
        damaged = [attempt for attempt in attempts if attempt.damaged]
        if damaged:
            raise Corrupt(f"ledger {ledger_id}: {damaged[0].fault}")
        entries = max(attempt.entries for attempt in attempts)
        return Gap(ledger_id, 0, entries, "; ".join(attempt.fault for attempt in attempts))
    segments = [
        Segment(ledger_id, attempt.data_name, attempt.index, attempt.changed_ms)
        for attempt in valid
        if attempt.index is not None
    ]
    totals = {(segment.index.metadata.lastEntryId, segment.index.metadata.length) for segment in segments}
    if len(totals) > 1:
        names = ", ".join(segment.data_name for segment in segments)
        raise Refused(
            f"ledger {ledger_id} was offloaded {len(segments)} times and last entry id and length differ: "
            f"{sorted(totals)} ({names})",
            hint="These are different ledgers, or the ledger before and after a restore of its store. After a restore, "
            "delete the objects of the lost history: ledger offload NAME --sweep. Otherwise give an address that has "
            "only one of them",
        )
    return max(segments, key=lambda segment: segment.stored_entries)


def _topic_by_record(attempts: Sequence[Attempt], record: PulsarRecord) -> TopicSegments:
    """Return a topic with the segments and attempts that Pulsar's record lists."""
    listed, found = _by_ledger(attempts), []
    offloaded = [number for number, recorded in enumerate(record.segments) if recorded.offloaded]
    for number, recorded in enumerate(record.segments):
        if recorded.offloaded:
            found.append(_segment_by_record(recorded, listed.get(recorded.ledger_id, [])))
        elif offloaded and number < offloaded[-1]:
            cause = "Pulsar has not offloaded the ledger, which is in BookKeeper"
            found.append(Gap(recorded.ledger_id, 0, recorded.entries, cause))
    return _to_topic(attempts, found)


def _segment_by_record(recorded: KnownSegment, attempts: Sequence[Attempt]) -> Segment | Gap:
    candidates = [attempt for attempt in attempts if recorded.attempt is None or attempt.key == recorded.attempt]
    if not candidates:
        name = recorded.attempt.data_name if recorded.attempt else f"…-ledger-{recorded.ledger_id}"
        return Gap(recorded.ledger_id, 0, recorded.entries, f"Pulsar offloaded the ledger, object {name} is missing")
    found = _choose_segment(recorded.ledger_id, candidates)
    if isinstance(found, Gap):
        return found._replace(end=recorded.entries)
    if found.entries != recorded.entries:
        raise Corrupt(
            f"ledger {recorded.ledger_id}: {found.data_name} states {found.entries} entries, Pulsar {recorded.entries}"
        )
    return found


def _find_record(attempts: Sequence[Attempt], records: Sequence[PulsarRecord], *, alone: bool) -> PulsarRecord:
    path, ledger_ids = attempts[0].topic, {attempt.key.ledger_id for attempt in attempts}
    for record in records:
        if record.topic:
            if spellings(record.topic)[0] == spelled(path):
                return record
        elif ledger_ids & {recorded.ledger_id for recorded in record.segments} or (alone and len(records) == 1):
            return record
    raise Refused(
        f"none of {len(records)} records of Pulsar is of topic {spelled(path)}, whose objects are of ledgers "
        f"{sorted(ledger_ids)[:10]}",
        hint="Give the JSON of `pulsar-admin topics stats-internal` or the metadata record of this topic, one for each "
        "partition",
    )


def without_index(attempt: Attempt) -> Attempt:
    """Return the attempt with the fault that its data object has no index object."""
    return replace(attempt, fault=f"{attempt.data_name} has no index object: the upload was not completed")
