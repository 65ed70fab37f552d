"""Pulsar's record of a topic's segments, parsed from a file that a user gives.

The page docs/concepts.md explains the words segment and attempt. The file is of one of three kinds:

    internal statistics            JSON of `pulsar-admin topics stats-internal TOPIC`
    … of a partitioned topic       JSON of `pulsar-admin topics partitioned-stats-internal TOPIC`, for all partitions
    metadata record                the raw value of /managed-ledgers/… in Pulsar's metadata store, plain or compressed

Rules
- This file, and not the listing of the bucket, determines which segments a topic has. If a segment was uploaded several
  times, a metadata record also determines the valid upload.
- The segments of a metadata record have no order. The parser orders them by segment id.
- The last segment is open and was never offloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.metadata.offload_records import of_halves
from pyspark_ledger.ledger.metadata.pulsar_value import parse_ledger_info
from pyspark_ledger.ledger.segment.object_names import ObjectKey

_JSON = b"{"


class KnownSegment(NamedTuple):
    """Segment of a topic. `attempt` is the valid offload attempt, or None if the file does not state it."""

    ledger_id: int
    entries: int
    offloaded: bool
    attempt: ObjectKey | None


class PulsarRecord(NamedTuple):
    """Segments of one topic, oldest first. `topic` is `persistent://…`, or empty if the file does not state it."""

    topic: str
    segments: tuple[KnownSegment, ...]


class _Ledger(msgspec.Struct):
    ledgerId: int  # noqa: N815 — names of Pulsar's JSON
    entries: int = 0
    offloaded: bool = False


class _Stats(msgspec.Struct):
    ledgers: list[_Ledger] | None = None
    partitions: dict[str, _Stats] | None = None


_STATS = msgspec.json.Decoder(_Stats)


def parse_records(data: bytes, where: str) -> list[PulsarRecord]:
    """Parse the topics of a file. Each topic has at least one segment. Raises Corrupt naming `where`."""
    found = _parse(data, where)
    if not found or not all(record.segments for record in found):
        raise Corrupt(f"{where} of {len(data)} bytes lists no ledger, but every topic of Pulsar has a ledger")
    return found


def _parse(data: bytes, where: str) -> list[PulsarRecord]:
    if not data.lstrip().startswith(_JSON):
        return [_of_value(data, where)]
    try:
        stats = _STATS.decode(data)
    except JSON_FAULTS as wrong:
        raise Corrupt(f"{where} is no JSON of internal statistics: {json_fault(wrong)}") from wrong
    if stats.ledgers is None and stats.partitions is None:
        raise Corrupt(
            f"{where} is JSON with neither 'ledgers' nor 'partitions', internal statistics have one of the two"
        )
    parts: Mapping[str, _Stats] = {"": stats} if stats.ledgers is not None else stats.partitions or {}
    return [_of_stats(topic, part) for topic, part in parts.items()]


def _of_stats(topic: str, stats: _Stats) -> PulsarRecord:
    listed = stats.ledgers or []
    segments = (KnownSegment(segment.ledgerId, segment.entries, segment.offloaded, None) for segment in listed)
    return PulsarRecord(topic, tuple(sorted(segments, key=lambda segment: segment.ledger_id)))


def _of_value(data: bytes, where: str) -> PulsarRecord:
    segments = []
    for info in parse_ledger_info(data, where).ledgerInfo:
        context = info.offloadContext
        done = info.HasField("offloadContext") and context.complete
        attempt = ObjectKey(of_halves(context.uidMsb, context.uidLsb), info.ledgerId) if done else None
        segments.append(KnownSegment(info.ledgerId, info.entries, done, attempt))
    return PulsarRecord("", tuple(sorted(segments, key=lambda segment: segment.ledger_id)))
