"""Goal: every metric is the number of an act whose size is known. Method: a real broker, asked by a client."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.protocol.ledgers import ChangeProperties, PublishedNote
from pyspark_ledger.ledger.protocol.metrics import (
    AskMetrics,
    BrokerMetrics,
    LatencyHistogram,
    LedgerMetrics,
    PublishCounts,
    ReportPublished,
)
from tests.rigs.broker_thread import served
from tests.rigs.broker_thread import served_store as store
from tests.rigs.deadline import wait_until

__all__ = ["store"]


def metrics_of(store: LedgerStore, ledgers: int = 1000, cursors: int = 100) -> BrokerMetrics:
    return store.client.ask(AskMetrics(ledgers, cursors))


def rows(count: int) -> list[dict[str, int]]:
    return [{"id": number} for number in range(count)]


def of(metrics: BrokerMetrics, name: str) -> LedgerMetrics:
    (found,) = (ledger for ledger in metrics.ledgers if ledger.name.endswith(f"/{name}"))
    return found


def test_appends_and_backlogs_are_counted(store: LedgerStore) -> None:
    orders = store.create("orders")
    orders.append(rows(3))
    orders.append(rows(1))
    cursor = orders.cursor("billing")
    found = of(metrics_of(store), "orders")
    assert found.appended.rows == found.rows == 4
    assert found.appended.appends >= 2
    assert 0 < found.appended.size_bytes < found.size_bytes  # the log adds a stamp to each entry
    (billing,) = found.cursors
    assert (billing.name, billing.backlog_rows, billing.holes, billing.leased) == ("billing", 4, 0, False)
    assert billing.oldest_ms > 0
    cursor.acknowledge(cursor.read()[1])
    (billing,) = of(metrics_of(store), "orders").cursors
    assert (billing.backlog_rows, billing.oldest_ms) == (0, 0)


def test_every_synced_append_has_a_latency(store: LedgerStore) -> None:
    orders = store.create("orders")
    for _ in range(5):
        orders.append(rows(1))
    # An append is counted after its producer has the answer.
    wait_until(lambda: metrics_of(store).append_latency.count == 5, "the last append is counted")
    metrics = metrics_of(store)
    assert metrics.sync_latency.count >= 5
    assert metrics.append_latency.total >= metrics.sync_latency.total / 2 > 0


def test_latencies_of_a_ledger_are_its_own(store: LedgerStore) -> None:
    for name, appends in (("a", 3), ("b", 2), ("c", 0)):
        ledger = store.create(name)
        for _ in range(appends):
            ledger.append(rows(1))
    metrics = metrics_of(store)
    counts = {name: of(metrics, name).sync_latency for name in "abc"}
    assert counts["c"] is None, "nothing was appended"
    assert [latency.count for latency in counts.values() if latency] == [3, 2]
    assert not metrics.has_others
    of_all = counts["a"].plus(counts["b"])
    assert (of_all.counts, of_all.total) == (metrics.sync_latency.counts, pytest.approx(metrics.sync_latency.total))
    summed = metrics_of(store, ledgers=1)
    assert summed.others.sync_latency is not None
    (listed,) = summed.ledgers
    assert listed.sync_latency is not None
    assert listed.sync_latency.plus(summed.others.sync_latency).count == 5


def test_a_lag_covers_what_is_acknowledged_beyond_a_hole(store: LedgerStore) -> None:
    orders = store.create("orders")
    for _ in range(4):
        orders.append(rows(2))
    cursor = orders.cursor("billing")
    (segment,) = orders.describe().segments
    cursor.acknowledge_rows([(segment.ledger_id, 1), (segment.ledger_id, 3)])
    (billing,) = of(metrics_of(store), "orders").cursors
    assert (billing.backlog_rows, billing.lag_rows, billing.holes) == (4, 8, 2)
    assert billing.lag_bytes > billing.backlog_bytes > 0
    assert billing.lag_ms >= 0


def test_cursors_beyond_the_limit_are_summed_and_the_listed_ones_stay(store: LedgerStore) -> None:
    orders = store.create("orders")
    orders.append(rows(3))
    for name in ("b", "c", "others"):
        orders.cursor(name)
    found = of(metrics_of(store, cursors=1), "orders")
    assert ([cursor.name for cursor in found.cursors], found.other_cursors) == (["b"], found.other_cursors)
    assert found.other_cursors is not None
    assert (found.other_cursors.backlog_rows, found.other_cursors.name) == (6, "others")
    orders.cursor("a")
    assert [cursor.name for cursor in of(metrics_of(store, cursors=1), "orders").cursors] == ["b"]
    summed = metrics_of(store, ledgers=0).others.other_cursors
    assert summed is not None
    assert (summed.backlog_rows, summed.leases) == (12, 0)


def test_publications_and_the_distance_of_the_table_are_counted(store: LedgerStore) -> None:
    orders = store.create("orders")
    assert of(metrics_of(store), "orders").unpublished is None
    for number in range(3):
        orders.append(rows(2))
        if number < 2:
            orders.seal()
    first, second, _ = (segment.ledger_id for segment in orders.describe().segments)

    def note(segment: int) -> None:
        properties = PublishedNote("table-id", segment).properties("/tables/orders")
        store.client.ask(ChangeProperties(orders.name, properties))

    note(first - 1)
    behind = of(metrics_of(store), "orders").unpublished
    assert behind is not None
    assert (behind.rows, behind.segments) == (6, 2)
    note(second)
    behind = of(metrics_of(store), "orders").unpublished
    assert behind is not None
    assert (behind.rows, behind.segments, behind.age_ms) == (2, 0, 0)
    assert behind.size_bytes > 0
    store.client.ask(ReportPublished(orders.name, 2, 100, 3000))
    store.client.ask(ReportPublished(orders.name, -1, 50, 400_000))
    store.client.ask(ReportPublished(orders.name, failed=True))
    metrics = metrics_of(store)
    assert of(metrics, "orders").published == PublishCounts(2, 2, 150, 1)
    assert (metrics.publish_latency.count, metrics.publish_latency.total) == (2, 403.0)


def test_retention_is_counted_with_its_time(store: LedgerStore) -> None:
    orders = store.create("orders")
    orders.append(rows(2))
    orders.seal()
    orders.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    orders.trim()
    metrics = metrics_of(store)
    assert of(metrics, "orders").trimmed_segments == 1
    assert metrics.trim_latency.count >= 1
    assert metrics.trim_failures == 0


def test_requests_and_errors_are_counted_by_name(store: LedgerStore) -> None:
    for _ in range(3):
        with pytest.raises(NotFound):
            store.client.ask(DescribeLedger("none"))
    metrics = metrics_of(store)
    assert metrics.errors["LEDGER_NOT_FOUND"] == 3
    assert metrics.requests["describe"].count == 3


def test_ledgers_beyond_the_limit_are_summed_and_the_listed_ones_stay(store: LedgerStore) -> None:
    for name in ("a", "b", "c"):
        store.create(name).append(rows(2))
    first = metrics_of(store, ledgers=1)
    assert (len(first.ledgers), first.others.rows, first.ledger_count) == (1, 4, 3)
    (listed,) = first.ledgers
    for name in ("a", "b", "c"):
        store.ledger(name).append(rows(1))
    again = metrics_of(store, ledgers=1)
    assert [ledger.name for ledger in again.ledgers] == [listed.name]
    store.delete(listed.name)
    assert [ledger.name for ledger in metrics_of(store, ledgers=1).ledgers] != [listed.name]


@pytest.mark.thorough
def test_a_ledger_that_nobody_opened_is_listed_with_its_backlog(store_path: Path) -> None:
    with served(store_path) as store:
        orders = store.create("orders")
        orders.append(rows(2))
        orders.cursor("billing")
    with served(store_path) as again:
        (billing,) = of(metrics_of(again), "orders").cursors
        assert billing.backlog_rows == 2
        assert of(metrics_of(again), "orders").appended.rows == 0


def test_a_partitioned_ledger_has_a_series_for_each_partition(store: LedgerStore) -> None:
    store.create_partitioned("wide", 3)
    metrics = metrics_of(store)
    assert metrics.ledger_count == len(metrics.ledgers) == 3


def test_a_quantile_is_the_bound_above_it() -> None:
    histogram = LatencyHistogram([0.001, 0.01], [9, 1, 0], 0.02)
    assert (histogram.quantile(0.5), histogram.quantile(0.99)) == (0.001, 0.01)
    assert LatencyHistogram([0.001], [0, 1], 3.0).quantile(0.5) == float("inf")
    assert LatencyHistogram([0.001], [0, 0], 0.0).quantile(0.5) == 0.0
