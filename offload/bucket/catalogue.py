"""What a bucket holds, made of its objects alone: topics, their sealed ledgers, and what is missing. Pure.

    attempt   one upload of one ledger: <uuid>-ledger-<id> and its index, in any folder below the address
    segment   the attempt that counts for a ledger
    gap       entries that the topic had and the bucket has not, by range

Rules
- A topic is what the user metadata of an object says, else the custom metadata in its index. Objects of one topic are
  kept apart by cluster and, where they state it, by the incarnation of the managed ledger. Older Pulsars state neither:
  their objects belong to the one cluster that has the later ledgers.
- An attempt counts when its index is there, can be read, and its data object is as long as the index says. Attempts of
  one ledger that count must agree in last entry id and length; the one that holds most entries is read.
- What an attempt lacks is a gap only where the topic goes on behind it: what comes last may still be on its way. Not so
  where an index has lost its data: the index is put last.
- Pulsar's own record, where it is given, says which ledgers there are and which attempt is the one. Objects that tell
  no topic at all are found by it, and by nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.names import nearest, partition_of, pulsar_path
from pyspark_ledger.offload.bucket.topic_metadata import KnownSegment, PulsarRecord
from pyspark_ledger.offload.bucket.topic_name import spelled, spellings
from pyspark_ledger.offload.format.block_index import BlockIndex
from pyspark_ledger.offload.format.object_names import ObjectKey

_UNSTATED = ("", "")  # no cluster, no incarnation


@dataclass(frozen=True, slots=True)
class Attempt:
    """One upload as it was found. `fault` says why it does not count; `damaged`: because bytes disagree.

    `topic` is the managed ledger in Pulsar's spelling, empty where nothing tells it; `data_bytes` is -1 without an
    object. `object_name` is the key of the data object where it is not the one that `key` makes, `entries` how many a
    ledger has that cannot be read.
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

    @property
    def data_name(self) -> str:
        return self.object_name or self.folder + self.key.data_name


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed ledger that can be read: `held` of its `entries`."""

    ledger_id: int
    data_name: str
    index: BlockIndex

    @property
    def entries(self) -> int:
        """Entries that the ledger had."""
        return self.index.entries

    @property
    def stored_entries(self) -> int:
        """Entries that are in the object."""
        return self.index.stored_entries


class Gap(NamedTuple):
    """Entries `[first, end)` of a ledger that are not in the bucket; an `end` of -1 is not known."""

    ledger_id: int
    first: int
    end: int
    cause: str

    def __str__(self) -> str:
        last = "the end" if self.end < 0 else f"{self.ledger_id}:{self.end - 1}"
        return f"{self.ledger_id}:{self.first} to {last} ({self.cause})"


@dataclass(frozen=True, slots=True)
class TopicLedgers:
    """A topic of the bucket. `path` is its name in Pulsar's spelling; ledgers rise."""

    path: str
    cluster: str
    incarnation: str
    segments: tuple[Segment, ...]
    gaps: tuple[Gap, ...]

    @property
    def name(self) -> str:
        return spelled(self.path)


class Catalogue:
    """The attempts that a listing found, by topic."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        self.attempts = sorted(attempts, key=lambda one: (one.topic, one.cluster, one.key.ledger_id, one.data_name))
        self._topics: dict[str, dict[tuple[str, str], list[Attempt]]] = defaultdict(lambda: defaultdict(list))
        for attempt in self.attempts:
            self._topics[attempt.topic][attempt.cluster, attempt.incarnation].append(attempt)

    def find(self, name: str, records: Sequence[PulsarRecord] = (), *, cluster: str = "") -> list[TopicLedgers]:
        """The topic of that name, in any spelling, or its partitions in order; raises NotFound or Refused."""
        nameless = [one for group in self._topics.get("", {}).values() for one in group] if records else []
        try:
            paths = self._paths(name)
        except NotFound:
            found = [_recorded(claimed, record) for claimed, record in _claimed(name, nameless, records)]
            if not found:
                raise
            return found
        topics = [self._topic(path, cluster) for path in paths]
        if not records:
            return [_resolved(topic, _by_listing(topic)) for topic in topics]
        chosen = [_record_of(topic, records, alone=len(topics) == 1) for topic in topics]
        return [_recorded(topic + _of(record, nameless), record) for topic, record in zip(topics, chosen, strict=True)]

    @property
    def topicless_faults(self) -> list[str]:
        """Why ledgers cannot be read that tell no topic either: any of them may be of any topic."""
        groups = self._topics.get("", {}).values()
        return [f"ledger {one.key.ledger_id}: {one.fault}" for group in groups for one in group if one.damaged]

    def _paths(self, name: str) -> list[str]:
        written = {path: spelled(path) for path in self._topics if path}
        encoded = {path: path for path in written}
        for wanted in spellings(name):
            found = _paths_of(wanted, written) or _paths_of(wanted, encoded)
            if found:
                return found
        near = nearest(spellings(name)[0], written.values())
        hint = f"Did you mean {near!r}?" if near else "Read without a name to see what there is"
        faults = self.topicless_faults
        more = f"; {len(faults)} that cannot be read tell none: {faults[0]}" if faults else ""
        raise NotFound(f"no object is of topic {name!r}; there are {len(written)} topics{more}", hint=hint)

    def _topic(self, path: str, cluster: str) -> list[Attempt]:
        groups = _with_older(self._topics[path])
        found = {group: attempts for group, attempts in groups.items() if cluster in ("", group[0])}
        if len(found) != 1:
            said = "; ".join(f"cluster {one!r} incarnation {other!r}" for one, other in sorted(groups))
            wanted = f"cluster {cluster!r}" if cluster else "one cluster"
            raise Refused(
                f"topic {spelled(path)} is there {len(groups)} times: {said}; {wanted} was expected",
                hint="Name the cluster, or give an address with one of them only",
            )
        return next(iter(found.values()))


def _paths_of(wanted: str, said: Mapping[str, str]) -> list[str]:
    """The paths of the topic of this name, or of its partitions in order; `said` is what each path is called."""
    exact = [path for path, one in said.items() if one == wanted]
    parts = [(partition_of(one), path) for path, one in said.items()]
    partitions = [path for part, path in sorted((part, path) for part, path in parts if part and part[0] == wanted)]
    if exact and partitions:
        raise Refused(
            f"{wanted!r} is a topic of its own and has {len(partitions)} partitions here, {partitions[0]} the first",
            hint="Name the partition that is meant",
        )
    if len(exact) > 1:
        raise Refused(f"{wanted!r} is called {' and '.join(map(repr, exact))} here", hint="Name it as it is called")
    return exact or partitions


def _with_older(groups: Mapping[tuple[str, str], list[Attempt]]) -> dict[tuple[str, str], list[Attempt]]:
    """The groups; what states no cluster is of the only one that does, if no ledger of that came before it."""
    named = {group: attempts for group, attempts in groups.items() if group != _UNSTATED}
    older = groups.get(_UNSTATED, [])
    if not older or len(named) != 1:
        return dict(groups)
    ((group, newer),) = named.items()
    if max(one.key.ledger_id for one in older) > min(one.key.ledger_id for one in newer):
        return dict(groups)
    return {group: newer + older}


def _claimed(
    name: str, nameless: Sequence[Attempt], records: Sequence[PulsarRecord]
) -> Iterator[tuple[list[Attempt], PulsarRecord]]:
    """The attempts without a topic that records of this name, or of its partitions, have; with the record of each."""
    wanted = spellings(name)[0]
    for record in records:
        called = spellings(record.topic)[0] if record.topic else wanted if len(records) == 1 else ""
        part = partition_of(called) if called else None
        attempts = _of(record, nameless)
        if attempts and (called == wanted or (part and part[0] == wanted)):
            yield [replace(one, topic=pulsar_path(called)) for one in attempts], record


def _of(record: PulsarRecord, attempts: Iterable[Attempt]) -> list[Attempt]:
    """Those of the attempts that are of a record's ledgers."""
    known = {ledger.ledger_id for ledger in record.ledgers}
    return [one for one in attempts if one.key.ledger_id in known]


def _by_ledger(attempts: Iterable[Attempt]) -> dict[int, list[Attempt]]:
    grouped: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        grouped[attempt.key.ledger_id].append(attempt)
    return grouped


def _by_listing(attempts: Sequence[Attempt]) -> list[Segment | Gap]:
    """What the objects show, without gaps at the end that were only begun."""
    found = [_chosen(ledger_id, listed) for ledger_id, listed in sorted(_by_ledger(attempts).items())]
    while found and isinstance(found[-1], Gap) and found[-1].end < 0:
        found.pop()
    return found


def _resolved(attempts: Sequence[Attempt], found: Iterable[Segment | Gap]) -> TopicLedgers:
    segments, gaps = [], []
    for one in found:
        if isinstance(one, Gap):
            gaps.append(one)
            continue
        segments.append(one)
        if one.stored_entries < one.entries:
            cause = f"Pulsar's offloader stopped in {one.data_name} and reported success"
            gaps.append(Gap(one.ledger_id, one.stored_entries, one.entries, cause))
    first = attempts[0]
    return TopicLedgers(first.topic, first.cluster, first.incarnation, tuple(segments), tuple(gaps))


def _chosen(ledger_id: int, attempts: Sequence[Attempt]) -> Segment | Gap:
    """The segment of a ledger; a gap when nothing was completed. Damage is an error: no other attempt makes it good."""
    counting = [attempt for attempt in attempts if not attempt.fault and attempt.index is not None]
    if not counting:
        damaged = [attempt for attempt in attempts if attempt.damaged]
        if damaged:
            raise Corrupt(f"ledger {ledger_id}: {damaged[0].fault}")
        known = max(attempt.entries for attempt in attempts)
        return Gap(ledger_id, 0, known, "; ".join(attempt.fault for attempt in attempts))
    segments = [Segment(ledger_id, one.data_name, one.index) for one in counting if one.index is not None]
    said = {(one.index.metadata.lastEntryId, one.index.metadata.length) for one in segments}
    if len(said) > 1:
        names = ", ".join(segment.data_name for segment in segments)
        raise Refused(
            f"ledger {ledger_id} was offloaded {len(segments)} times and last entry id and length differ: "
            f"{sorted(said)} ({names})",
            hint="These are different ledgers: give an address with one of them only",
        )
    return max(segments, key=lambda segment: segment.stored_entries)


def _recorded(attempts: Sequence[Attempt], record: PulsarRecord) -> TopicLedgers:
    """A topic as Pulsar's own record has it."""
    listed, found = _by_ledger(attempts), []
    offloaded = [number for number, known in enumerate(record.ledgers) if known.offloaded]
    for number, known in enumerate(record.ledgers):
        if known.offloaded:
            found.append(_known(known, listed.get(known.ledger_id, [])))
        elif offloaded and number < offloaded[-1]:
            cause = "Pulsar has not offloaded it; it is in BookKeeper"
            found.append(Gap(known.ledger_id, 0, known.entries, cause))
    return _resolved(attempts, found)


def _known(known: KnownSegment, attempts: Sequence[Attempt]) -> Segment | Gap:
    meant = [one for one in attempts if known.attempt is None or one.key == known.attempt]
    if not meant:
        name = known.attempt.data_name if known.attempt else f"…-ledger-{known.ledger_id}"
        return Gap(known.ledger_id, 0, known.entries, f"Pulsar offloaded it, object {name} is not here")
    found = _chosen(known.ledger_id, meant)
    if isinstance(found, Gap):
        return found._replace(end=known.entries)
    if found.entries != known.entries:
        raise Corrupt(
            f"ledger {known.ledger_id}: {found.data_name} states {found.entries} entries, Pulsar {known.entries}"
        )
    return found


def _record_of(attempts: Sequence[Attempt], records: Sequence[PulsarRecord], *, alone: bool) -> PulsarRecord:
    path, there = attempts[0].topic, {attempt.key.ledger_id for attempt in attempts}
    for record in records:
        if record.topic:
            if spellings(record.topic)[0] == spelled(path):
                return record
        elif there & {known.ledger_id for known in record.ledgers} or (alone and len(records) == 1):
            return record
    raise Refused(
        f"none of {len(records)} records of Pulsar is of topic {spelled(path)}, whose objects are of ledgers "
        f"{sorted(there)[:10]}",
        hint="Give the internal statistics or the metadata record of this topic, one for each partition",
    )


def without_index(attempt: Attempt) -> Attempt:
    """An attempt whose data object stands alone: a crash came before its index."""
    return replace(attempt, fault=f"{attempt.data_name} has no index object: the upload was not completed")
