"""Measurements of a running query: rows, lag and cache, from Spark's progress and from the broker.

Rules
- The *lag* is the number of rows that the query has not read yet.
- Spark reports the lag after each batch. Between batches, this module asks the broker for the lag. It starts no broker.
  If this process cannot reach the broker, it uses the lag of the last batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_ledger.connector.read.offsets import StreamOffset
from pyspark_ledger.connector.read.progress import SourceIdentity, parse_report, parse_source_identity, source_report
from pyspark_ledger.connector.session.metrics import ledgers_of
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.protocol.reads import AskLogStatuses, ReadProgress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LEDGERS_MAX = 200
_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class QueryLag:
    """Unread rows of all ledgers of a query, and the age of the oldest unread row."""

    rows: int
    waited_ms: int


@dataclass(frozen=True, slots=True)
class QuerySample:
    """Measurement at a time. `batch` is -1 before the first batch. `lag` and `hit_rate` are None if unknown."""

    at_ms: int
    batch: int = -1
    rows_per_s: float = 0.0
    lag: QueryLag | None = None
    hit_rate: float | None = None


def query_title(query: StreamingQuery) -> str:
    """Return the name of a query, or its id."""
    return str(query.name or query.id)


class Batches:
    """Iterator over the finished batches of one execution of a query. It returns each batch once."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last = (-1, "")
        self.last: dict[str, Any] | None = None

    def new(self) -> list[dict[str, Any]]:
        """Return the progress of the batches that finished since the last call; Spark keeps the last 100."""
        last = _json(self._query.lastProgress)
        if last is None or _key(last) <= self._last:
            return []
        found = [last]
        if last["batchId"] != self._last[0] + 1:
            found = [value for progress in self._query.recentProgress if (value := _json(progress)) is not None]
            found = [batch for batch in found if _key(batch) > self._last]
        self._last, self.last = _key(last), last
        return found


def _json(progress: Any) -> dict[str, Any] | None:
    """Return a progress as JSON values. The members of Spark's class differ between releases, its text does not."""
    if progress is None:
        return None
    text = getattr(progress, "json", None)
    value: dict[str, Any] = json.loads(text) if isinstance(text, str) else dict(progress)
    return value


def _key(progress: Mapping[str, Any]) -> tuple[int, str]:
    return int(progress["batchId"]), str(progress["timestamp"])


def batch_rows(batches: Iterable[Mapping[str, Any]]) -> int:
    """Return the rows that batches have read, of sources of any format."""
    return sum(int(source.get("numInputRows", 0)) for batch in batches for source in batch.get("sources", []))


def reported_lag(progress: Mapping[str, Any]) -> QueryLag | None:
    """Return the lag after a batch, which Spark's progress has. None if the query reads no ledger."""
    ledgers = ledgers_of(progress)
    if not ledgers:
        return None
    return QueryLag(sum(ledger.lag_rows for ledger in ledgers), max(ledger.waited_ms for ledger in ledgers))


def hit_rate(progress: Mapping[str, Any]) -> float | None:
    """Return the share of entries that the cache served to the batch; None if no entry was read."""
    rates = [ledger.cache_hit_rate for ledger in ledgers_of(progress) if ledger.cache_hit_rate is not None]
    return min(rates, default=None)


class LiveLag:
    """Reader of the lag between two batches, from the brokers of the query's stores."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], Client] = {}  # by place and id: a copy has the id of its original

    def of(self, progress: Mapping[str, Any]) -> QueryLag | None:
        """Return the lag behind the batch of a progress; None if unknown. Never raises LedgerError."""
        lags = []
        for source in progress.get("sources", []):
            origin = parse_source_identity(source_report(source))
            if origin is None:
                continue
            try:
                lags.append(self._of_source(origin, source))
            except LedgerError as error:
                if isinstance(error, Unavailable):
                    self._clients.pop((origin.store, origin.store_id), None)
                return None
        if not lags or None in lags:
            return None
        known = [lag for lag in lags if lag is not None]
        return QueryLag(sum(lag.rows for lag in known), max(lag.waited_ms for lag in known))

    def _of_source(self, origin: SourceIdentity, source: Mapping[str, Any]) -> QueryLag | None:
        end = StreamOffset.from_json(parse_report(source.get("endOffset")) or {})
        if not end.ledgers or len(end.ledgers) > _LEDGERS_MAX:
            return None
        reads = {
            name: ReadProgress(offset.position, offset.incarnation, cursor=origin.subscription)
            for name, offset in end.ledgers.items()
        }
        client = self._client(origin)
        if client.store_id != origin.store_id:
            return None  # on this host, the path belongs to another store
        request = AskLogStatuses(list(reads), reads)
        found = client.ask(request, deadline_ms=0, attempt_seconds=_SECONDS)
        waits = [found.now_ms - log.head_ms for log in found.logs if log.rows]
        return QueryLag(sum(log.rows for log in found.logs), max([0, *waits]))

    def _client(self, origin: SourceIdentity) -> Client:
        key = origin.store, origin.store_id
        if key not in self._clients:
            credentials = origin.to_credentials()
            made = connect_store(origin.store, start=False, deadline_ms=500, credentials=credentials)
            self._clients[key] = made
        return self._clients[key]

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            with suppress(LedgerError):
                client.close()
        self._clients.clear()
