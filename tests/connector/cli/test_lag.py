"""Goal: the lag of every subscription is in one table, the largest first. Method: typer's runner on a small store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.connector.cli.wording import age_words
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.protocol.request import Request
from tests.rigs.broker_process import kill_broker
from tests.rigs.command import run, run_json
from tests.rigs.older_spark import OlderSpark
from tests.rigs.stream import reader


@pytest.fixture
def store(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    monkeypatch.setenv("COLUMNS", "200")
    return store


def test_the_largest_backlog_is_first_over_all_ledgers(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = connect(store)
    for name, entries in (("orders", 3), ("clicks", 5)):
        for number in range(entries):
            api.ledger(name).append([{"n": number}, {"n": -number}])
    api.create_partitioned("pages", 2).append([{"n": 1}])
    orders, clicks = api.ledger("orders"), api.ledger("clicks")
    done = orders.cursor("audit")
    done.acknowledge(orders.end().end)
    orders.cursor("billing")
    some = clicks.cursor("billing")
    segment = clicks.describe().segments[0].ledger_id
    some.acknowledge(clicks.end().start.next())
    some.acknowledge_rows([(segment, 2, 1), (segment, 4)])
    for partition in api.ledger("pages").partitions():  # type: ignore[attr-defined]  # it is partitioned
        partition.cursor("billing")
    calls: list[str] = []
    real = Client.ask

    def counted(client: Client, request: Request[object], **named: object) -> object:
        calls.append(request.call.name)
        return real(client, request, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Client, "ask", counted)
        found = run_json("lag")
    assert calls.count("survey") == 2, "one for each subscription of the ledger that has the most"
    assert "cursor.describe" not in calls
    shown = [(lag["ledger"].rpartition("/")[2], lag["subscription"], lag["backlog_rows"]) for lag in found]
    assert shown[:2] == [("orders", "billing", 6), ("clicks", "billing", 5)]
    assert sorted(rows for *_, rows in shown[2:]) == [0, 0, 1]
    assert found[1]["backlog_entries"] == 3
    state = orders.cursor("billing").state()
    assert (found[0]["backlog_entries"], found[0]["backlog_bytes"]) == (state.backlog_entries, state.backlog_bytes)
    assert found[0]["age_ms"] >= 0
    assert found[0]["oldest_unread_ms"] <= orders.end().last_publish_ms
    assert [(lag["oldest_unread_ms"], lag["age_ms"]) for lag in found if not lag["backlog_rows"]] == [(None, None)] * 2
    lines = [line for line in run("lag").splitlines() if "billing" in line or "audit" in line]
    assert [cell.strip() for cell in lines[0].split("│")[1:5]] == ["orders", "billing", "6", "3"]
    assert " ago" in lines[0]
    assert "none" in lines[-1]


@pytest.mark.broker_process
def test_a_damaged_ledger_hides_no_other_lag(store: Path) -> None:
    for name in ("orders", "clicks"):
        run("append", name, "a")
        run("cursor", "create", name, "billing")
    (segment,) = run_json("describe", "orders")["segments"]
    kill_broker(store)
    (store / "ledgers" / f"{segment['ledger_id']}.ledger").unlink()
    result = CliRunner().invoke(app, ["lag", "--output", "json"])
    assert result.exit_code == 1
    assert [lag["ledger"] for lag in json.loads(result.stdout)] == ["public/default/persistent/clicks"]
    assert "orders" in result.stderr
    assert "LEDGER_DATA_LOSS" in result.stderr


def test_a_store_without_subscriptions_has_no_lag(store: Path) -> None:
    run("create", "orders")
    assert run_json("lag") == []


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0.0 s"),
        (7249, "7.2 s"),
        (60_000, "1 min 0 s"),
        (3_599_999, "59 min 59 s"),
        (7_500_000, "2 h 5 min"),
        (3 * 86_400_000 + 4 * 3_600_000, "3 d 4 h"),
    ],
)
def test_an_age_is_said_by_its_two_largest_units(milliseconds: int, words: str) -> None:
    assert age_words(milliseconds) == words


def test_committed_rows_that_wait_for_acknowledgement_are_shown(store: Path, tmp_path: Path) -> None:
    orders = connect(store).ledger("orders")
    for number in range(10):
        orders.append([{"n": number}])
    spark = OlderSpark(
        lambda: reader(store, subscription="billing", startingPosition="earliest", maxRowsPerTrigger="4")
    )
    spark.run(1)  # such a Spark tells nobody that it has committed its last batch
    flow = tmp_path / "_checkpoints" / "payments" / "paid"
    for refresh in range(2):
        for log in ("offsets", "commits"):
            (flow / str(refresh) / log).mkdir(parents=True)
    newest = flow / "1"
    (newest / "offsets" / "0").write_text(f"v1\n{{}}\n{spark.offset_log[-1]}", encoding="utf-8")
    waiting = "lag", "--checkpoint", tmp_path.as_uri()
    assert [lag["committed_rows"] for lag in run_json(*waiting)] == [None], "planned, and not committed"
    (newest / "commits" / "0").write_text("v1\n{}", encoding="utf-8")
    assert [(lag["backlog_rows"], lag["committed_rows"]) for lag in run_json(*waiting)] == [(10, 4)]
    assert "committed, not yet acknowledged" in run(*waiting)
    assert "4 rows" in run(*waiting)
    assert "acknowledged" not in run("lag")
    newest.rename(flow / "9")
    (flow / "0").rename(flow / "10")
    assert [lag["committed_rows"] for lag in run_json(*waiting)] == [None], "of an earlier refresh"
    (flow / "10").rename(flow / "0")
    spark.run(1)  # the next run acknowledges
    assert [(lag["backlog_rows"], lag["committed_rows"]) for lag in run_json(*waiting)] == [(6, 0)]
    missing = CliRunner().invoke(app, ["lag", "--checkpoint", "s3://lake/checkpoints"])
    assert missing.exit_code != 0
    assert "checkpoint 's3://lake/checkpoints' is not a directory of this host" in missing.stderr
