"""Progress report of a stream: the value that Spark copies into `sources[i].latestOffset` of its progress.

A Python source can set no other field of the progress. Spark before 4.2 does not ask a Python source for a report.
There the end offset of a batch has the report, as its member `report`. The page docs/concepts.md explains the words
incarnation, entry and block.

    {"v": 1, "store": "/data/store", "storeId": "<uuid>", "subscription": "billing", "credentials": {…},
     "batch": {"endedBy": "maxRowsPerTrigger", "id": "7f3a9c01-12"},
     "reads": {"mappedBytes": …, "sentBytes": …, "cacheHitRate": …, "memoryBytes": …, "pageCacheBytes": …, …},
     "cache": {"hits": …, "misses": …, "sizeBytes": …, …},
     "ledgers": {"public/default/persistent/orders":
        {"ledger": 3, "entry": 90, "id": "<incarnation>", "lagEntries": 2, "lagRows": 20, "lagBytes": 4096,
         "lagMs": 310, "lastPublishMs": 1763746000000}},
     "columnsAdded": 1, "columnsNotRead": ["name"],               only if columns were added (`with_added_columns`)
     "warnings": ["…"]}                                            only if the run has logged any (`RunWarnings`)

Rules
- Keys are sorted. The lag is the backlog after this batch. It was computed when the batch was planned.
- `lagMs` is the age of the oldest unread entry by the broker's clock; 0 without a backlog.
- `reads` counts the data of all readers since the last report: mapped ranges, sent blocks, and direct reads.
  `cacheHitRate` is the share of entries that were not read from storage. `memoryBytes`, `pageCacheBytes`,
  `localFileBytes` and `objectStorageBytes` are the bytes by their source (`ledger.protocol.cache.ReadSources`).
- `batch.id` is the id of the batch in logs (`connector.read.read_batches`).
- `cache` is the broker's cache of all ledgers: counters since the last report, and current sizes.
- If there are more than `LEDGERS_MAX` ledgers, the report lists only the ledgers with the largest lag. Then
  `ledgersInAll` has the sums over all ledgers. In the end offset of a batch, `otherLedgers` has the other ledgers with
  a lag: `{name: [ledger, entry, "<incarnation>", lagRows]}`.
- `dataLoss` has the lost and skipped ranges, the newest last. `dataLosses` is their number.
- Credentials are references, never secrets. The session's listener (`connector.session.commit_listener`) parses the
  report and uses the store, the subscription and the credentials to acknowledge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.read.data_loss import DataLossRange
from pyspark_ledger.connector.read.offsets import REPORT_KEY
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.protocol.cache import CacheReads
from pyspark_ledger.ledger.protocol.reads import LogStatus

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.credentials import Credentials

REPORT_VERSION = 1
BATCH_ID_KEY = "id"
WARNINGS_KEY = "warnings"
# Values of `endedBy` if no limit ended the batch.
ALL_AVAILABLE, AVAILABLE_NOW, ENDING, WAITING = (
    "all there was",
    "availableNow",
    "the end of the read",
    "minRowsPerTrigger",
)
# Values of `endedBy` of a batch that has read everything that its run reads.
NOT_LIMITED = (ALL_AVAILABLE, AVAILABLE_NOW, ENDING)
LEDGERS_MAX, LOSSES_MAX = 50, 20


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Store, subscription and credential references of a query."""

    store: str
    store_id: str
    subscription: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: str, store_id: str, subscription: str | None, credentials: Credentials | None) -> SourceIdentity:
        """Return the identity with the non-empty references of `credentials`."""
        return cls(store, store_id, subscription or "", {} if credentials is None else credentials.references())

    def to_credentials(self) -> Credentials | None:
        """Return the credentials of these references; None if there are none."""
        from pyspark_ledger.ledger.client.credentials import Credentials

        return Credentials.of_references(self.credentials) if self.credentials else None


@dataclass(frozen=True, slots=True)
class LedgerLag:
    """Unread entries of one ledger after a batch. `left` is the ledger's status from there on; None: no backlog."""

    log: LogStatus
    left: LogStatus | None
    now_ms: int

    def to_json(self) -> dict[str, Any]:
        log, left = self.log, self.left
        waited = self.now_ms - left.head_ms if left and left.rows else 0
        return {
            "entry": log.end.entry_id,
            "id": log.incarnation,
            "lagBytes": left.size_bytes if left else 0,
            "lagEntries": left.entries if left else 0,
            "lagMs": max(waited, 0),
            "lagRows": left.rows if left else 0,
            "lastPublishMs": log.last_publish_ms,
            "ledger": log.end.ledger_id,
        }

    def to_end(self) -> list[Any]:
        """Return the end of the ledger, and the unread rows before it, for `otherLedgers`."""
        log = self.log
        return [log.end.ledger_id, log.end.entry_id, log.incarnation, self.left.rows if self.left else 0]

    def order(self) -> tuple[int, str]:
        """Return the sort key: the largest lag first."""
        return -(self.left.rows if self.left else 0), self.log.name


def reads_between(before: CacheReads | None, now: CacheReads) -> dict[str, Any]:
    """Return the field `reads`: the difference of two counts of a broker. A restarted broker counts from 0 again."""
    if before is None or now.mapped_bytes < before.mapped_bytes or now.misses < before.misses:
        before = CacheReads()
    hits, misses = now.hits - before.hits, now.misses - before.misses
    served = now.hit_bytes - before.hit_bytes + now.miss_bytes - before.miss_bytes
    mapped = now.mapped_bytes - before.mapped_bytes
    direct = now.direct_bytes - before.direct_bytes
    return {
        "cacheHitRate": round(hits / (hits + misses), 4) if hits + misses else None,
        "directBytes": direct,
        "localFileBytes": now.file_miss_bytes - before.file_miss_bytes,
        "mappedBytes": mapped,
        "memoryBytes": now.memory_hit_bytes - before.memory_hit_bytes,
        "objectStorageBytes": now.object_miss_bytes - before.object_miss_bytes,
        "pageCacheBytes": now.page_cache_hit_bytes - before.page_cache_hit_bytes,
        "sentBytes": served - mapped - direct,
    }


def cache_between(before: CacheReads | None, now: CacheReads) -> dict[str, Any]:
    """Return the field `cache`: the differences of two counts of a broker, and the sizes at `now`."""
    if before is None or now.misses < before.misses or now.inserted < before.inserted:
        before = CacheReads()
    return {
        "evicted": now.evicted - before.evicted,
        "evictionMs": round((now.eviction_nanos - before.eviction_nanos) / 1e6, 3),
        "evictions": now.evictions - before.evictions,
        "expectedReads": now.expected_reads,
        "hitBytes": now.hit_bytes - before.hit_bytes,
        "hits": now.hits - before.hits,
        "inflightReadBytes": now.inflight_read_bytes,
        "inserted": now.inserted - before.inserted,
        "limitBytes": now.limit_bytes,
        "lingeringBytes": now.lingering_bytes,
        "localFileBytes": now.local_file_bytes,
        "localFileLimitBytes": now.local_file_limit_bytes,
        "missBytes": now.miss_bytes - before.miss_bytes,
        "misses": now.misses - before.misses,
        "nonEvictableBytes": now.non_evictable_bytes,
        "requeues": max(now.requeues - before.requeues, 0),  # after a change of the cache policy, the count is 0 again
        "sizeBytes": now.size_bytes,
    }


def stream_report(
    identity: SourceIdentity,
    ledgers: Sequence[LedgerLag],
    ended_by: str,
    reads: Mapping[str, Any],
    cache: Mapping[str, Any],
    losses: Sequence[DataLossRange],
    *,
    complete: bool,
) -> dict[str, Any]:
    """Return the report of one trigger. With `complete`, it has the end of each ledger with a lag."""
    value: dict[str, Any] = {"batch": {"endedBy": ended_by}, "cache": dict(cache)}
    if identity.credentials:
        value["credentials"] = dict(identity.credentials)
    if losses:
        value["dataLoss"] = [loss.to_json() for loss in losses[-LOSSES_MAX:]]
        value["dataLosses"] = len(losses)
    by_lag = sorted(ledgers, key=LedgerLag.order)
    listed, others = by_lag[:LEDGERS_MAX], by_lag[LEDGERS_MAX:]
    value["ledgers"] = {lag.log.name: lag.to_json() for lag in sorted(listed, key=lambda lag: lag.log.name)}
    if len(ledgers) > LEDGERS_MAX:
        value["ledgersInAll"] = _sums(ledgers)
    if complete and others:
        value["otherLedgers"] = {lag.log.name: lag.to_end() for lag in others if lag.left and lag.left.rows}
    value["reads"] = dict(reads)
    value["store"], value["storeId"] = identity.store, identity.store_id
    if identity.subscription:
        value["subscription"] = identity.subscription
    value["v"] = REPORT_VERSION
    return value


def _sums(ledgers: Sequence[LedgerLag]) -> dict[str, int]:
    left = [lag.left for lag in ledgers if lag.left]
    return {
        "lagBytes": sum(log.size_bytes for log in left),
        "lagEntries": sum(log.entries for log in left),
        "lagRows": sum(log.rows for log in left),
        "ledgers": len(ledgers),
    }


def source_report(source: Mapping[str, Any]) -> Any:
    """Return the report of one source of a progress event. None if the source is not a ledger.

    The report is the source's `latestOffset`, or a member of its `endOffset`.
    """
    for name in ("latestOffset", "endOffset"):
        value = parse_report(source.get(name))
        report = value.get(REPORT_KEY, value) if isinstance(value, Mapping) else None
        if parse_source_identity(report) is not None:
            return report
    return None


def parse_report(report: Any) -> Any:
    """Return a report, which may be JSON text, as a value. Returns None for other text, which other sources report."""
    if not isinstance(report, str):
        return report
    try:
        return json.loads(report)
    except JSON_FAULTS:
        return None


def parse_source_identity(value: object) -> SourceIdentity | None:
    """Return the identity in a report; None if `value` is not a report of a ledger's stream."""
    if not isinstance(value, Mapping) or value.get("v") != REPORT_VERSION or "storeId" not in value:
        return None
    credentials = value.get("credentials", {})
    try:
        identity = SourceIdentity(
            str(value["store"]),
            str(value["storeId"]),
            str(value.get("subscription", "")),
            {str(part): str(name) for part, name in credentials.items()},
        )
        identity.to_credentials()
    except (KeyError, AttributeError, TypeError, LedgerError):
        return None
    return identity
