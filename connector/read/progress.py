"""What a stream says of itself at every trigger: the value that Spark puts, as it is, into `sources[i].latestOffset`
of its progress. It is the only place of a progress that a Python source can write to.

    {"v": 1, "store": "/data/store", "storeId": "<uuid>", "subscription": "billing", "credentials": {…},
     "batch": {"endedBy": "maxRowsPerTrigger"},
     "reads": {"mappedBytes": …, "sentBytes": …, "cacheHitRate": …, "memoryBytes": …, "pageCacheBytes": …, …},
     "cache": {"hits": …, "misses": …, "sizeBytes": …, …},
     "ledgers": {"public/default/persistent/orders":
        {"ledger": 3, "entry": 90, "id": "<incarnation>", "lagEntries": 2, "lagRows": 20, "lagBytes": 4096,
         "lagMs": 310, "lastPublishMs": 1763746000000}},
     "columnsAdded": 1, "columnsNotRead": ["name"]}               where a ledger has got columns (`added_columns`)

Rules
- Keys stand in one order. Lag is what this batch leaves behind, as the log stood when the batch was planned.
- `lagMs` is how long the oldest entry that is left has waited, by the broker's clock; 0 when nothing is left.
- `reads` counts what the broker handed out to anybody since the last report: places that were mapped, blocks that were
  sent. `cacheHitRate` is of both: entries that were not read from storage. The same bytes by where they came from are
  `memoryBytes`, `pageCacheBytes`, `localFileBytes` and `objectStorageBytes` (`ledger.protocol.cache.ReadSources`).
- `cache` is the broker's, over all its ledgers: what was counted since the last report, and what it is now.
- Of many ledgers the report names those that lag most, and `ledgersInAll` sums up all. What was lost and skipped is in
  `dataLoss`, the newest last; `dataLosses` counts.
- Credentials are references, never what they name. A report is read back by the session's listener
  (`connector.session.commit_listener`), so what it says of store and subscription is what an acknowledgement needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.read.data_loss import DataLossRange
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.protocol.cache import CacheReads
from pyspark_ledger.ledger.protocol.reads import LogStatus

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.credentials import Credentials

REPORT_VERSION = 1
# Why a batch ends where it ends, when no limit did it.
ALL_THERE_WAS, AVAILABLE_NOW, ENDING, WAITING = (
    "all there was",
    "availableNow",
    "the end of the read",
    "minRowsPerTrigger",
)
LEDGERS_MAX, LOSSES_MAX = 50, 20


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """What a query reads from, and in whose name."""

    store: str
    store_id: str
    subscription: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: str, store_id: str, subscription: str | None, credentials: Credentials | None) -> SourceIdentity:
        """The origin; of credentials the references that were given."""
        parts = ("ca", "certificate", "key", "token")
        given = {} if credentials is None else {part: getattr(credentials, part) for part in parts}
        return cls(store, store_id, subscription or "", {part: name for part, name in given.items() if name})

    def to_credentials(self) -> Credentials | None:
        """The credentials again; None when there were none."""
        from pyspark_ledger.ledger.client.credentials import Credentials

        return Credentials(**self.credentials) if self.credentials else None


@dataclass(frozen=True, slots=True)
class LedgerLag:
    """How far one ledger is ahead of a batch. `left` is what a reading from the batch's end has left, if anything."""

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

    def order(self) -> tuple[int, str]:
        """Those that lag most come first."""
        return -(self.left.rows if self.left else 0), self.log.name


def reads_between(before: CacheReads | None, now: CacheReads) -> dict[str, Any]:
    """What the broker handed out between two counts of it; one that was started anew counts from nothing."""
    if before is None or now.mapped_bytes < before.mapped_bytes or now.misses < before.misses:
        before = CacheReads()
    hits, misses = now.hits - before.hits, now.misses - before.misses
    handed_out = now.hit_bytes - before.hit_bytes + now.miss_bytes - before.miss_bytes
    mapped = now.mapped_bytes - before.mapped_bytes
    return {
        "cacheHitRate": round(hits / (hits + misses), 4) if hits + misses else None,
        "localFileBytes": now.file_miss_bytes - before.file_miss_bytes,
        "mappedBytes": mapped,
        "memoryBytes": now.memory_hit_bytes - before.memory_hit_bytes,
        "objectStorageBytes": now.object_miss_bytes - before.object_miss_bytes,
        "pageCacheBytes": now.page_cache_hit_bytes - before.page_cache_hit_bytes,
        "sentBytes": handed_out - mapped,
    }


def cache_between(before: CacheReads | None, now: CacheReads) -> dict[str, Any]:
    """What the broker's cache did between two counts of it, and what it is at the second."""
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
        "requeues": max(now.requeues - before.requeues, 0),  # another policy counts from nothing
        "sizeBytes": now.size_bytes,
    }


def stream_report(
    origin: SourceIdentity,
    ledgers: Sequence[LedgerLag],
    ended_by: str,
    reads: Mapping[str, Any],
    cache: Mapping[str, Any],
    losses: Sequence[DataLossRange] = (),
) -> dict[str, Any]:
    """The value that goes into the progress."""
    value: dict[str, Any] = {"batch": {"endedBy": ended_by}, "cache": dict(cache)}
    if origin.credentials:
        value["credentials"] = dict(origin.credentials)
    if losses:
        value["dataLoss"] = [loss.to_json() for loss in losses[-LOSSES_MAX:]]
        value["dataLosses"] = len(losses)
    named = sorted(ledgers, key=LedgerLag.order)[:LEDGERS_MAX]
    value["ledgers"] = {lag.log.name: lag.to_json() for lag in sorted(named, key=lambda lag: lag.log.name)}
    if len(ledgers) > LEDGERS_MAX:
        value["ledgersInAll"] = _sums(ledgers)
    value["reads"] = dict(reads)
    value["store"], value["storeId"] = origin.store, origin.store_id
    if origin.subscription:
        value["subscription"] = origin.subscription
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


def parse_report(report: Any) -> Any:
    """Return the value of a report that may be JSON text; None for text that is no JSON, as other sources have it."""
    if not isinstance(report, str):
        return report
    try:
        return json.loads(report)
    except JSON_FAULTS:
        return None


def parse_source_identity(value: object) -> SourceIdentity | None:
    """The origin that a report states; None for anything that is no report of a ledger's stream."""
    if not isinstance(value, Mapping) or value.get("v") != REPORT_VERSION or "storeId" not in value:
        return None
    credentials = value.get("credentials", {})
    try:
        origin = SourceIdentity(
            str(value["store"]),
            str(value["storeId"]),
            str(value.get("subscription", "")),
            {str(part): str(name) for part, name in credentials.items()},
        )
        origin.to_credentials()
    except (KeyError, AttributeError, TypeError, LedgerError):
        return None
    return origin
