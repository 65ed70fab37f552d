"""Goal: metrics are pushed exactly where that is configured. Method: endpoints, variables, missing packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from pyspark_ledger.ledger.broker.telemetry.push import require_endpoint, start_push
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics

OTLP = "pyspark_ledger.ledger.broker.telemetry.otlp"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def collect() -> BrokerMetrics:
    raise AssertionError("nothing is pushed")


@pytest.mark.parametrize(
    "environ",
    [{}, {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, {**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"},
     {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}],
)  # fmt: skip
def test_nothing_is_pushed_unless_configured(environ: Mapping[str, str]) -> None:
    assert start_push("", environ, collect) is None


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "ftp://host:1", "http://", "http://host?x=1", "grpc://host:4317"]
)
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(Refused, match="openTelemetryEndpoint"):
        require_endpoint(endpoint)


def test_credentials_in_the_address_are_refused_and_not_shown() -> None:
    with pytest.raises(Refused, match="contains credentials") as refused:
        require_endpoint("https://user:very-secret@host:4318")
    assert "very-secret" not in str(refused.value)


def test_missing_packages_refuse_the_setting_and_only_warn_of_variables(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, OTLP, None)
    with pytest.raises(Refused, match=r"pyspark-ledger\[otel\]"):
        start_push("http://127.0.0.1:9", {}, collect)
    assert start_push("", ENDPOINT, collect) is None
    assert "pyspark-ledger[otel]" in caplog.text
