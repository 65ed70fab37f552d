"""Goal: a session that is made here suits one machine; one that is there keeps what it was given, and is told what it
lacks. The file for `spark-submit` says the same.

Method: a builder and a session that write down what they are told, in place of Spark's; the lines of the file. At last
a real session, in which nobody has set anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest

from pyspark_ledger.connector.session import session
from pyspark_ledger.ledger.api.store import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]
FIXED = {setting.name: setting.value for setting in session.SETTINGS if not setting.at_run_time}
AT_RUN_TIME = {setting.name: setting.value for setting in session.SETTINGS if setting.at_run_time}


class Builder:
    """Takes settings, and makes nothing."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, name: str, value: str) -> Self:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Self:  # noqa: N802 — Spark's
        return self


def made(
    monkeypatch: pytest.MonkeyPatch, *, running: bool, conf: dict[str, object], submitted: dict[str, str] | None = None
) -> dict[str, str]:
    class Session:
        builder = Builder()

    def configured(spark: Any, *, quiet: bool) -> Any:
        assert quiet
        return spark

    monkeypatch.setattr("pyspark.sql.SparkSession", Session)
    monkeypatch.setattr(session, "configure_session", configured)
    monkeypatch.setattr(session, "_is_running", lambda: running)
    monkeypatch.setattr(session, "_submitted", lambda _: submitted or {})
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "python")
    session.local_session(None, conf)
    return Session.builder.settings


def test_new_session_has_few_shuffle_partitions_unless_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "spark.sql.shuffle.partitions"
    assert made(monkeypatch, running=False, conf={})[name] == "8"
    assert made(monkeypatch, running=False, conf={name: 3})[name] == "3"
    assert made(monkeypatch, running=False, conf={"spark_sql_shuffle_partitions": 3})[name] == "3"


def test_a_session_that_runs_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, running=True, conf={}) == {}
    assert made(monkeypatch, running=True, conf={"spark.sql.session.timeZone": "Asia/Tokyo"}) == {
        "spark.sql.session.timeZone": "Asia/Tokyo"
    }


def test_settings_of_the_submit_stay_unless_the_caller_states_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {
        "spark.master": "spark://host:7077",
        "spark.app.name": "theirs",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    assert made(monkeypatch, running=False, conf={}, submitted=stated) == {
        setting.name: setting.value for setting in session.SETTINGS
    }, "the settings of a local session are for one machine"
    settings = made(monkeypatch, running=False, conf={"spark_master": "local[2]"}, submitted=stated)
    assert settings.pop("spark.master") == "local[2]"
    assert settings.keys() & stated.keys() == set()
    assert settings["spark.sql.shuffle.partitions"] == "8"


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_session_of_a_connect_server_gets_only_the_callers_settings(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "sc://host")
    assert made(monkeypatch, running=False, conf={"spark_ui_enabled": "true"}) == {"spark.ui.enabled": "true"}


@pytest.mark.parametrize("running", [False, True])
def test_session_of_spark_connect_is_found_unless_one_of_the_driver_runs(
    monkeypatch: pytest.MonkeyPatch, *, running: bool
) -> None:
    class Remote:
        builder = Builder()

        @staticmethod
        def active() -> object:
            return object()

    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", SimpleNamespace(SparkSession=Remote))  # type: ignore[arg-type]  # not a module
    settings = made(monkeypatch, running=running, conf={"a.b": 1})
    assert (settings, Remote.builder.settings) == (({"a.b": "1"}, {}) if running else ({}, {"a.b": "1"}))


def test_new_session_has_every_setting_and_workers_of_this_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = made(monkeypatch, running=False, conf={})
    assert settings == {
        "spark.master": "local[*]",
        "spark.app.name": "pyspark-ledger",
        **{setting.name: setting.value for setting in (*session.SETTINGS, *session.LOCAL_SETTINGS)},
    }
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        assert os.environ[name] == "python", "what is set there stays"
        monkeypatch.delenv(name)
    session.local_session("app", {})
    assert os.environ.pop("PYSPARK_PYTHON") == os.environ.pop("PYSPARK_DRIVER_PYTHON") == sys.executable


@pytest.mark.thorough
@pytest.mark.spark
def test_jars_that_cannot_be_had_are_named(tmp_path: Path) -> None:
    """In a process of its own: the JVM of the tests is there already."""
    nowhere = tmp_path / "ivy.xml"
    nowhere.write_text(
        '<ivysettings><settings defaultResolver="nowhere"/><resolvers><filesystem name="nowhere">'
        f'<artifact pattern="{tmp_path}/none/[artifact].[ext]"/></filesystem></resolvers></ivysettings>',
        encoding="utf-8",
    )
    conf = {"spark.jars.ivySettings": str(nowhere), "spark.jars.ivy": str(tmp_path / "ivy")}
    program = f"from pyspark_ledger import session; session(delta=True, **{conf!r})"
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    said = ran.stderr.splitlines()[-1]
    assert "LEDGER_UNAVAILABLE" in said
    assert "while it downloaded the packages io.delta:delta-spark_" in said
    assert "Check that Maven Central can be reached" in said


class Running:
    """A session that runs: what it was started with, and what is set on it."""

    def __init__(self, started_with: dict[str, str]) -> None:
        self.conf = self
        self.started_with, self.changed = started_with, dict[str, str]()

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802 — Spark's
        return self.started_with

    def get(self, name: str, default: str) -> str:
        return self.started_with.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.changed[name] = value


def lines_for(spark: Any, capsys: pytest.CaptureFixture[str], *, quiet: bool = False) -> dict[str, str]:
    """Return the lines that `configure` prints, read as Java reads a properties file: a comment is a line of
    its own.
    """
    capsys.readouterr()
    assert session.configure_session(spark, quiet=quiet) is spark
    printed = capsys.readouterr().out.splitlines()
    settings = [line.split(None, 1) for line in printed if not line.startswith("#")]
    assert len(settings) == len(dict(settings)), "each once"
    assert bool(settings) == bool(printed)
    return dict(settings)


@pytest.fixture
def no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.connector.session.commit_listener.install", lambda _: None)


@pytest.mark.usefixtures("no_listener")
def test_running_session_gets_runtime_settings_and_prints_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bare = Running({"spark.sql.catalogImplementation": "hive"})
    assert lines_for(bare, capsys) == FIXED
    assert bare.changed == AT_RUN_TIME
    quiet = Running({})
    assert lines_for(quiet, capsys, quiet=True) == {}
    assert quiet.changed == AT_RUN_TIME
    assert lines_for(Running(FIXED), capsys) == {}, "nothing is missing"
    own = Running(dict.fromkeys(AT_RUN_TIME, "10000"))  # Spark's default, but set by the user
    lines_for(own, capsys)
    assert own.changed == {}


@pytest.mark.usefixtures("no_listener")
@pytest.mark.thorough
def test_a_default_of_spark_that_suits_is_not_asked_for(
    spark_session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = spark_session.newSession()
    for name in FIXED:  # as if the session had been started without; its own `unset` refuses these
        bare._jsparkSession.sessionState().conf().unsetConf(name)
    assert lines_for(bare, capsys) == {"spark.python.unix.domain.socket.enabled": "true"}
    assert {name: bare.conf.get(name) for name in AT_RUN_TIME} == AT_RUN_TIME


def test_sessions_of_the_tests_are_in_the_zone_of_the_suite(spark_session: SparkSession) -> None:
    assert spark_session.newSession().conf.get("spark.sql.session.timeZone") == os.environ["TZ"]


def test_a_running_session_keeps_zone_ansi_and_the_way_to_pandas(spark_session: SparkSession) -> None:
    own = spark_session.newSession()
    kept = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }
    for name, value in kept.items():
        own.conf.set(name, value)
    session.configure_session(own, quiet=True)
    assert {name: own.conf.get(name) for name in kept} == kept


def test_spark_submit_file_has_the_settings_of_a_new_session() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    stated = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    wanted = {setting.name: setting.value for setting in (*session.SETTINGS, *session.LOCAL_SETTINGS)}
    assert stated.pop("spark.python.worker.reuse") == "true", "Spark's default, stated for its reason"
    del wanted["spark.ui.enabled"]  # users of a cluster may want the web interface
    for name in ("spark.sql.session.timeZone", "spark.sql.execution.arrow.pyspark.enabled"):
        del wanted[name]  # they change answers of queries that do not read ledgers
    assert stated == wanted


@pytest.mark.spark
@pytest.mark.sessions
def test_a_new_session_takes_its_default_store_and_its_submit(store: Path, tmp_path: Path) -> None:
    """In a process of its own: the session of the tests keeps its default store."""
    program = """
import sys
from pyspark_ledger import session
spark = session(store=sys.argv[1], spark_sql_ansi_enabled="false")
spark.range(3).write.format("ledger").mode("append").save("orders")
conf = dict(spark.sparkContext.getConf().getAll())
assert not [name for name in conf if "store" in name]
print(*(f"{name}={conf.get(name)}" for name in sys.argv[2:]), sep="\\n")
spark.stop()
again = session("mine")
print(*(again.conf.get(name) for name in ("spark.app.name", "spark.sql.session.timeZone")))
"""
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("spark.sql.shuffle.partitions 3\nspark.sql.ansi.enabled true\n", encoding="utf-8")
    submit = "--master local[1] --name theirs --conf spark.sql.session.timeZone=Asia/Kolkata pyspark-shell"
    environment = {**os.environ, "SPARK_CONF_DIR": str(defaults.parent), "PYSPARK_SUBMIT_ARGS": submit}
    stated = {
        "spark.master": "local[1]",
        "spark.app.name": "theirs",
        "spark.sql.session.timeZone": "Asia/Kolkata",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.ansi.enabled": "false",
        "spark.ui.enabled": "false",
    }
    command = [sys.executable, "-c", program, str(store), *stated]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout.splitlines()
    assert [line for line in printed if "=" in line] == [f"{name}={value}" for name, value in stated.items()]
    assert printed[-1].split() == ["mine", "Asia/Kolkata"]
    assert connect(store).ledger("orders").read().num_rows == 3
