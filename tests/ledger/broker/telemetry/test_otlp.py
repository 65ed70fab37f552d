"""Goal: a collector of OpenTelemetry gets the numbers of `/metrics`, and a broker without one never notices.

Method: real brokers push to a real receiver, which decodes the protocol with OpenTelemetry's own messages.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger, Empty
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from tests.rigs.otlp_receiver import OtlpReceiver, Push

Rig = Any
LEDGER = ("ledger", "public/default/persistent/orders")
SECRET = "a-token-of-sixteen-characters"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    return monkeypatch


def config(tmp_path: Path, url: str) -> str:
    path = tmp_path / "broker.toml"
    path.write_text(f'openTelemetryEndpoint = "{url}"\n')
    return str(path)


def appended(rig: Rig, make_entry: Callable[..., bytes], count: int) -> None:
    client = rig.client()
    client.create(CreateLedger("orders"))
    client.open_cursor(OpenCursor("orders", "billing", EARLIEST))
    with client.producer("orders") as producer:
        for number in range(count):
            producer.append(make_entry(b"row", sequence_id=number)).result(30)


def scraped(url: str) -> list[Any]:
    request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text"})  # noqa: S310 — local
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 — local
        return list(text_string_to_metric_families(answer.read().decode()))


def rows_in(push: Push) -> int:
    points = push.points("ledger_in_messages")
    return int(points[LEDGER,].as_int) if (LEDGER,) in points else 0


@pytest.mark.thorough
def test_a_push_has_the_metrics_of_a_scrape(
    rig: Rig, make_entry: Callable[..., bytes], tmp_path: Path, quick: pytest.MonkeyPatch
) -> None:
    quick.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with OtlpReceiver() as receiver:
        rig.start("--create", "--web", "http://127.0.0.1:0", "--config", config(tmp_path, receiver.url))
        appended(rig, make_entry, 7)
        receiver.wait(lambda push: rows_in(push) == 7, "all rows are pushed")
        (url,) = re.findall(r"served at (http://\S+)", rig.log())
        families = scraped(f"{url}metrics")
        before = len(receiver.pushes)
        rig.wait_until(lambda: len(receiver.pushes) > before + 1, "a push that began after the scrape")
        push = receiver.pushes[-1]
    names = {f"{family.name}_info" if family.type == "info" else family.name for family in families if family.samples}
    assert names == set(push.metrics())
    kinds = {"counter": "sum", "gauge": "gauge", "histogram": "histogram", "info": "gauge"}
    for family in families:
        if family.samples and family.type != "info":
            metric = push.metrics()[family.name]
            assert (metric.description, metric.WhichOneof("data")) == (family.documentation, kinds[family.type])
    assert push.metrics()["ledger_in_messages"].sum.is_monotonic
    backlog = push.points("ledger_subscription_back_log")[LEDGER, ("subscription", "billing")]
    assert backlog.as_int == 7
    syncs = push.points("ledger_storage_sync_latency_seconds")[LEDGER,]
    assert sum(syncs.bucket_counts) == syncs.count >= 1
    assert len(syncs.explicit_bounds) == len(syncs.bucket_counts) - 1
    assert syncs.start_time_unix_nano < syncs.time_unix_nano
    assert push.path == "/v1/metrics"
    resource = push.resource()
    assert resource["service.name"] == "pyspark-ledger"
    assert resource["service.instance.id"] == rig.record().store_id
    assert resource["deployment.environment"] == "test"


def test_variables_of_opentelemetry_are_enough(
    rig: Rig, make_entry: Callable[..., bytes], quick: pytest.MonkeyPatch
) -> None:
    with OtlpReceiver() as receiver:
        quick.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        quick.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{SECRET}")
        quick.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        quick.setenv("OTEL_SERVICE_NAME", "flights")
        rig.start("--create")
        appended(rig, make_entry, 2)
        push = receiver.wait(lambda push: rows_in(push) == 2, "both rows are pushed")
    assert (push.headers["authorization"], push.headers["content-encoding"]) == (f"Bearer {SECRET}", "gzip")
    assert push.resource()["service.name"] == "flights"
    assert SECRET not in rig.log()


def test_a_broker_that_leaves_pushes_its_last_counts(
    rig: Rig, make_entry: Callable[..., bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    with OtlpReceiver() as receiver:
        broker = rig.start("--create", "--config", config(tmp_path, receiver.url))
        appended(rig, make_entry, 3)
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(60) == 0
        assert [rows_in(push) for push in receiver.pushes] == [3]


def test_a_collector_that_is_down_costs_one_warning_and_no_health(
    rig: Rig, make_entry: Callable[..., bytes], tmp_path: Path, quick: pytest.MonkeyPatch
) -> None:
    quick.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    quick.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    broker = rig.start("--create", "--config", config(tmp_path, "http://127.0.0.1:9"))
    appended(rig, make_entry, 2)
    rig.wait_until(lambda: rig.log().count("metrics cannot be pushed for now") == 1, "the failure is logged")
    assert rig.client().call("health", Empty()).errors == []
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(60) == 0
    assert rig.log().count("metrics cannot be pushed for now") == 1
    assert SECRET not in rig.log()


_FORKED = """
import os, sys, threading
from pyspark_ledger.ledger.broker.telemetry.otlp import MetricsPush
push = MetricsPush(sys.argv[1], lambda: None)
child = os.fork()
if not child:
    os._exit(10 + len(threading.enumerate()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_a_forked_child_has_no_thread_that_pushes() -> None:
    command = [sys.executable, "-c", _FORKED, "http://127.0.0.1:9/v1/metrics"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["11"], "the main thread alone"


def test_a_broker_without_an_endpoint_does_not_import_opentelemetry() -> None:
    program = (
        "import sys, pyspark_ledger.ledger.broker.main as main\n"
        "assert main.start_push('', {}, lambda: None) is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
