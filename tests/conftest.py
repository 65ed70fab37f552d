"""Goal: every test runs the interpreter and the settings it thinks it runs. Method: set before any session.

`spark_session` and `spark_context` come from pytest-spark with `spark_options` of pyproject.toml, and with Delta
where a test marked `tables` is among those that run. Tests that use them are marked `spark` here, so that nobody can
forget. They run last: a broken rule is heard before a JVM starts. Where processes share the tests, they run first: they
are the longest, and the last of them would leave the other processes idle. Who starts a session in a process of its
own marks it by hand. What the folders of `WITHOUT_JVM` hold finds no Java.
A test has 120 s (`timeout` in pyproject.toml), one with a marker of `SECONDS` so many, one with `timeout` what it says.
Ledger stores belong in `tmp_path`; the fixture `store_path` says so. Buckets are those of a real S3 server,
`s3_server`, which is started once, by the first test that wants it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from streaming_examples.s3_server import S3Server
    from tests.rigs.fault_proxy import FaultProxy

ROOT = Path(__file__).resolve().parent.parent
pytest.register_assert_rewrite("tests.rigs")

SPARK_FIXTURES = {"spark_session", "spark_context"}
SPARK_FILES = ("tests/stories/test_spark_", "tests/connector/session/")
# Seconds for a test with this marker, on a machine that does much else: a JVM alone may take one minute to start.
SECONDS = {
    "fault": 30 * int(os.environ.get("LEDGER_FAULT_ROUNDS") or 50),
    "slow": 1500,
    "pulsar": 900,  # fetches jars
    "docs": 600,
    "tables": 600,
    "spark": 600,
}
EXIT_SECONDS = 120
# Formats, disk and crashes.
WITHOUT_JVM = ("ledger", "offload", "stories/faults")

# A worker must import the very modules that the tests import, independently of pytest's directory.
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# How long an example takes is the machine's affair: another process beside the tests must not fail them.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
os.environ.pop("LEDGER_STORE", None)
os.environ.pop("SPARK_REMOTE", None)
# Not UTC, the zone of most machines of a CI: there, code that takes local time for UTC would pass. Spark's sessions and
# Python workers, brokers and commands inherit this zone. Its offset from UTC changes twice a year.
os.environ.setdefault("TZ", "America/New_York")
time.tzset()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-session", action="store_true", help="run all files with Spark in one of the processes")


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the files with Spark to one process. A second session takes longer to start than their stories take."""
    if not config.getoption("one_session"):
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "spark" if file.startswith(SPARK_FILES) else file

    return OneSession(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts a JVM and move it to an end; the order among the others stays. Give long tests their time.

    Tests with an S3 server are `thorough`.
    """
    for item in items:
        if SPARK_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
        if "s3_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.thorough)
        if item.get_closest_marker("spark") and without_jvm(item):
            message = f"{item.nodeid} starts a JVM, tests of {', '.join(WITHOUT_JVM)} do without: move it"
            raise pytest.UsageError(message)
        if item.get_closest_marker("timeout") is None:
            seconds = max((SECONDS[mark.name] for mark in item.iter_markers() if mark.name in SECONDS), default=None)
            if seconds is not None:
                item.add_marker(pytest.mark.timeout(seconds))
    shared = hasattr(config, "workerinput")
    items.sort(key=lambda item: (item.get_closest_marker("spark") is None) is shared)


def without_jvm(item: pytest.Item) -> bool:
    """Whether a test is in a folder whose tests find no Java."""
    return item.path.is_relative_to(ROOT / "tests") and any(
        item.path.is_relative_to(ROOT / "tests" / folder) for folder in WITHOUT_JVM
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Give the session Delta when a test that will run wants it: it takes part in every write and every statement."""
    if session.config.option.collectonly or not any(item.get_closest_marker("tables") for item in session.items):
        return
    from pytest_spark.config import SparkConfigBuilder

    from pyspark_ledger.connector.session.delta import delta_settings

    for name, value in delta_settings().items():
        SparkConfigBuilder.get().set(name, value)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a run whose threads do not end, with the stacks of all: a test that was given up may leave one behind.

    A process that shares the tests with others waits for them, for minutes perhaps, and is ended by the run.
    """
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=sys.__stderr__)


@pytest.fixture(autouse=True)
def dead_stores() -> Iterator[None]:
    """Close stores that a test left behind as a crash does. Otherwise their files stay open to the end of the run.

    With more than 1,024 open files Spark's listeners are never called, because py4j's socket waits for them with
    `select`.
    """
    from pyspark_ledger.ledger.errors import LedgerError
    from pyspark_ledger.ledger.store.store import Store

    opened, own = list[Store](), Store.open.__func__

    def recorded(cls: type[Store], *args: Any, **named: Any) -> Store:
        opened.append(own(cls, *args, **named))
        return opened[-1]

    Store.open = classmethod(recorded)
    yield
    Store.open = classmethod(own)
    for store in opened:
        with suppress(LedgerError, OSError):  # one that was fenced may write nothing more, and need not
            store.close()


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Return a path for a store of this test, which does not exist yet."""
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def no_jvm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the start of a JVM fail where a test needs none."""
    if without_jvm(request.node):
        monkeypatch.setenv("JAVA_HOME", os.devnull)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server on loopback, with one bucket: each bucket takes it half a second and some GiB of its limit."""
    from streaming_examples.s3_server import CREDENTIALS, S3Server

    os.environ.update(CREDENTIALS)  # brokers that tests start later inherit them
    with S3Server.start(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket("tests")
        yield server


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the S3 server, which a test lets fail."""
    from tests.rigs.fault_proxy import FaultProxy

    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    """An address in a bucket where nothing is yet."""
    return f"s3://tests/{uuid.uuid4()}"
