"""Goal: Prometheus scrapes a broker, and the alert rules fire. Method: a real Prometheus, and promtool.

These tests are those of `make test-web`, and of nothing else.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.position import EARLIEST, LATEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import OpenCursor, SkipEntries
from tests.rigs.deadline import wait_until
from tests.web.programs import program

Rig = Any
pytestmark = pytest.mark.web
ROOT = Path(__file__).resolve().parents[2]
LEDGER = "public/default/persistent/orders"


def test_each_alert_rule_fires_and_a_healthy_store_is_silent() -> None:
    tests = ROOT / "tests" / "web" / "alerts_test.yml"
    command = [program("promtool"), "test", "rules", tests.name]
    done = subprocess.run(command, cwd=tests.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_names_only_metrics_that_exist() -> None:
    listed = set(re.findall(r"^\| `(ledger_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bledger_\w+", (ROOT / "conf" / "alerts.yml").read_text()))
    assert {name.removesuffix("_bucket") for name in named} - listed == set()


def test_prometheus_scrapes_a_broker(rig: Rig, make_entry: Callable[..., bytes], tmp_path: Path) -> None:
    rig.start("--create", "--web", "http://127.0.0.1:0")
    (target,) = re.findall(r"served at http://(\S+)/", rig.log())
    client = rig.client()
    client.ask(CreateLedger("orders"))
    client.ask(OpenCursor("orders", "billing", EARLIEST))
    with client.producer("orders") as producer:
        for number in range(5):
            producer.append(make_entry(b"row", sequence_id=number)).result(30)
    with prometheus(target, tmp_path) as url:
        assert value(url, f'ledger_in_messages_total{{ledger="{LEDGER}"}}') == 5
        assert value(url, 'ledger_subscription_back_log{subscription="billing"}') == 5
        assert value(url, "ledger_storage_write_latency_seconds_count") >= 1
        (scraped,) = query(url, "/api/v1/targets")["activeTargets"]
        assert (scraped["health"], scraped["lastError"]) == ("up", "")
        wait_until(lambda: all(rule["health"] == "ok" for rule in rules(url)), "each rule was evaluated")
        assert len(rules(url)) == 13
        client.ask(SkipEntries("orders", "billing", -1, EARLIEST, LATEST))
        wait_until(lambda: value(url, 'ledger_subscription_back_log{subscription="billing"}') == 0, "the backlog falls")


@contextmanager
def prometheus(target: str, directory: Path) -> Iterator[str]:
    """Run Prometheus with the project's rules. Yield its URL once it has scraped the target."""
    config = directory / "prometheus.yml"
    config.write_text(
        json.dumps(  # JSON is YAML
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(ROOT / "conf" / "alerts.yml")],
                "scrape_configs": [{"job_name": "ledger", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    command = [
        program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]  # fmt: skip
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        url = _address(log, child)
        wait_until(lambda: bool(_vector(url, 'up{job="ledger"} == 1')), "Prometheus scrapes the broker")
        yield url
    finally:
        child.terminate()
        child.wait(30)


def _address(log: Path, child: subprocess.Popen[bytes]) -> str:
    """Return the URL that Prometheus logs once it listens."""
    until = time.monotonic() + 60
    while not (found := re.findall(r"Listening on\" address=(\S+)", log.read_text())):
        assert child.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    url = f"http://{found[0]}"
    wait_until(lambda: _is_ready(url), "Prometheus has loaded its data")
    return url


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=30) as answer:  # noqa: S310 — an address of this host
            return bool(answer.status == HTTPStatus.OK)
    except urllib.error.HTTPError:
        return False


def query(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=30) as answer:  # noqa: S310 — an address of this host
        return json.load(answer)["data"]


def rules(url: str) -> list[Any]:
    return [rule for group in query(url, "/api/v1/rules")["groups"] for rule in group["rules"]]


def value(url: str, expression: str) -> float:
    (found,) = _vector(url, expression)
    return float(found["value"][1])


def _vector(url: str, expression: str) -> list[Any]:
    found: list[Any] = query(url, f"/api/v1/query?query={urllib.parse.quote(expression)}")["result"]
    return found
