"""Decision whether a broker pushes its metrics to OpenTelemetry, and where to.

    setting openTelemetryEndpoint          base address of a collector: http://HOST:4318
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT    full address, as OpenTelemetry defines the variable
    OTEL_EXPORTER_OTLP_ENDPOINT            base address

Rules
- The setting overrides the variables. Without setting and variables, the broker pushes nothing and does not import
  OpenTelemetry.
- With `OTEL_SDK_DISABLED=true` or `OTEL_METRICS_EXPORTER=none`, the broker ignores the variables. The setting still
  applies.
- If the packages of OpenTelemetry are missing, the broker refuses the setting. If only the variables are set, the
  broker logs a warning and pushes nothing. Reason: a private broker inherits the variables of a program that uses
  OpenTelemetry for itself.
- Only OpenTelemetry's variables can have credentials. An address with a user or password is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics

if TYPE_CHECKING:
    from pyspark_ledger.ledger.broker.telemetry.otlp import MetricsPush

_METRICS_ENDPOINT, _ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
_PATH = "/v1/metrics"
_INSTALL = "Install them: pip install 'pyspark-ledger[otel]'"
_log = logging.getLogger(__name__)


def start_push(endpoint: str, environ: Mapping[str, str], collect: Callable[[], BrokerMetrics]) -> MetricsPush | None:
    """Start to push the metrics that `collect` returns, if an endpoint is configured. Raises Refused."""
    if not endpoint and not _wanted_by(environ):
        return None
    address = f"{require_endpoint(endpoint).rstrip('/')}{_PATH}" if endpoint else None
    try:
        from pyspark_ledger.ledger.broker.telemetry.otlp import MetricsPush
    except ImportError as missing:
        lacking = f"metrics cannot be pushed, the packages of OpenTelemetry are missing: {missing}"
        if endpoint:
            raise Refused(f"{lacking}; setting 'openTelemetryEndpoint' requires them", hint=_INSTALL) from missing
        _log.warning("%s. %s", lacking, _INSTALL)
        return None
    push = MetricsPush(address, collect)
    _log.info("metrics are pushed to OpenTelemetry %s", f"at {address}" if address else "by its variables")
    return push


def require_endpoint(endpoint: str) -> str:
    """Return `endpoint`. Raises Refused if it is not the base address of a collector."""
    parts = urlsplit(endpoint)
    if parts.username or parts.password:
        raise Refused(
            "setting 'openTelemetryEndpoint' contains credentials",
            hint="Give them in the variable OTEL_EXPORTER_OTLP_HEADERS of the broker",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Refused(
            f"setting 'openTelemetryEndpoint' is {endpoint!r}, expected http://HOST:PORT or https://HOST:PORT",
            hint=f"Give the base address; the broker adds {_PATH}",
        )
    return endpoint


def _wanted_by(environ: Mapping[str, str]) -> bool:
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    none = environ.get("OTEL_METRICS_EXPORTER", "").strip().lower() == "none"
    return bool(environ.get(_METRICS_ENDPOINT) or environ.get(_ENDPOINT)) and not disabled and not none
