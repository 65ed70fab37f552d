"""Goal: each door that needs a store and gets none takes the session's default, or refuses a directory of Spark.

Method: a table of doors, run in a directory that Spark would delete.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pyspark_ledger
from pyspark_ledger.connector.cli.app import EXAMPLES, app
from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.display.samples import LiveLag
from pyspark_ledger.connector.read.offsets import LedgerOffset, StreamOffset
from pyspark_ledger.connector.session.cluster import serve_session
from pyspark_ledger.connector.session.default_store import default_store, session_store, use_store
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.bare_session import BareSession
from tests.rigs.stream import reader, text

REFUSED = "no store is named, and the default "


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("pyspark_ledger.connector.spark_features.register_source", lambda *_: None)
    return BareSession()


@pytest.fixture
def of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of Spark."""
    directory = tmp_path / "spark-0a1b2c3d-0000-4000-8000-0123456789ab"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.delenv("LEDGER_STORE", raising=False)
    return directory


DOORS: dict[str, Callable[[Any], object]] = {
    "read, stream, write": lambda _: LedgerSource({"path": "orders"}, "0"),
    "history": lambda _: LedgerSource({"path": "orders", "history": "/table"}, "0"),
    "acknowledge": lambda _: LedgerSource({"path": "orders", "action": "ack", "subscription": "s"}, "0"),
    "connect": lambda _: pyspark_ledger.connect(),
    "open_read_only": lambda _: open_read_only(),
    "serve": pyspark_ledger.serve,
    "explain": lambda spark: pyspark_ledger.explain(spark, "orders"),
    "publish": lambda spark: pyspark_ledger.publish(spark, "orders", "/table"),
    "publish_stream": lambda spark: pyspark_ledger.publish_stream(spark, "orders", "/table"),
}


@pytest.mark.parametrize("door", DOORS)
def test_door_without_a_store_is_refused_in_a_directory_of_spark(spark: Any, of_spark: Path, door: str) -> None:
    with pytest.raises(Refused, match=f"{REFUSED}{of_spark}/ledger-store would lie in a directory of Spark"):
        DOORS[door](spark)
    assert list(of_spark.iterdir()) == []


@pytest.mark.parametrize("command", EXAMPLES)
def test_command_without_a_store_is_refused_in_a_directory_of_spark(of_spark: Path, command: str) -> None:
    """A command that names a file or a store, or checks no store, does not ask for the default."""
    words = shlex.split(EXAMPLES[command])[1:]
    named = {"dump positioninfo", "dump segment", "dump entry", "dump index", "dump metadata", "store move", "doctor"}
    if command in named:
        return
    Path("orders.csv").write_text("n\n1\n", encoding="utf-8")
    offset = StreamOffset({"public/default/persistent/orders": LedgerOffset(EARLIEST, "0")})
    offsets = Path("checkpoints/billing/offsets")
    offsets.mkdir(parents=True)
    (offsets / "0").write_text(f"v1\n{{}}\n{json.dumps(offset.to_json())}", encoding="utf-8")
    done = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    assert (done.exit_code, REFUSED in done.output) == (1, True), done.output
    assert {path.name for path in of_spark.iterdir()} == {"orders.csv", "checkpoints"}


def test_serve_takes_the_default_of_the_session(spark: Any, of_spark: Path) -> None:
    with pytest.raises(Refused, match=REFUSED):
        pyspark_ledger.serve(spark)
    use_store(spark, "grpc://broker:6650", None)
    with pytest.raises(Refused, match="grpc://broker:6650 is a broker's address already"):
        pyspark_ledger.serve(spark)
    with pytest.raises(Refused, match="grpc://other:6650 is a broker's address already"):
        serve_session(spark, "grpc://other:6650", None, 0)


@pytest.mark.parametrize("door", ["explain", "publish", "publish_stream"])
def test_door_of_a_connect_session_never_means_a_directory_of_the_client(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEDGER_STORE", raising=False)
    monkeypatch.setattr(BareSession, "__module__", "pyspark.sql.connect.session")
    with pytest.raises(Refused, match="no store is named, and a session of Spark Connect has no default"):
        DOORS[door](spark)
    assert list(tmp_path.iterdir()) == []


def test_store_in_a_bucket_keeps_its_address_for_other_hosts(spark: Any) -> None:
    use_store(spark, "s3://lake/ledgers/", None)
    assert default_store(spark).location == session_store(spark) == "s3://lake/ledgers"
    assert session_store(spark, "s3://lake/other") == "s3://lake/other"


def test_a_named_store_stays_until_a_call_names_another(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def used(store: str | None = None) -> tuple[str | None, dict[str, str] | None]:
        return default_store(use_store(spark, store, {"authParams": "env:TOKEN"} if store else None))[:2]

    for address in ("grpc://first:1", "grpc://second:1"):
        monkeypatch.setenv("LEDGER_STORE", address)
        assert used() == (address, None), "the variable of the present call"
    assert used("grpc://named:1") == ("grpc://named:1", {"authParams": "env:TOKEN"})
    assert used() == ("grpc://named:1", {"authParams": "env:TOKEN"})
    again = BareSession()
    again.conf = spark.conf
    assert default_store(again)[0] == "grpc://named:1", "another object of the same session"


def test_lag_of_a_query_is_read_from_the_store_that_its_progress_names(
    store: Path, orders: Ledger, of_spark: Path
) -> None:
    """`watch` and `catch_up` have no store: the progress of the query has the absolute place of its store."""
    stream = reader(store, startingPosition="earliest")
    end = text(stream.latestOffset(text(stream.initialOffset()), None))
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(stream.reportLatestOffset())}
    orders.append([{"n": 10}])
    live = LiveLag()
    lag = live.of({"sources": [source]})
    assert lag is not None
    assert lag.rows == 1
    live.close()
    stream.stop()
    assert list(of_spark.iterdir()) == []
