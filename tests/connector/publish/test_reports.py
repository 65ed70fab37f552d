"""Goal: the broker counts what publishers report, and a report never fails a publication. Method: a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.connector.publish.reports import PublishReports
from pyspark_ledger.connector.publish.segments import StoreSegments
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.metrics import AskMetrics, PublishCounts
from tests.rigs.broker_process import kill_all


@pytest.mark.broker_process
def test_reports_reach_the_broker_and_their_loss_is_no_error(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    api = connect(store)
    orders = api.ledger("orders")
    orders.append([{"id": 1}, {"id": 2}])
    orders.seal()
    source = StoreSegments("orders", {"store": str(store)}, 2**27)
    (log,) = source.logs()
    reports = PublishReports(source)
    reports.published(log.name, log.segments[0], 1500)
    reports.failed(log.name)
    metrics = api.client.ask(AskMetrics())
    (found,) = metrics.ledgers
    assert found.published == PublishCounts(1, 2, log.segments[0].size_bytes, 1)
    assert metrics.publish_latency.total == 1.5
    kill_all(store)
    caplog.set_level("INFO")
    reports.failed(log.name)
    assert "does not count a publication" in caplog.text
