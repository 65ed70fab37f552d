"""Probe of a Spark session: a job with one task, which also connects to the driver's address.

Rules
- The job is a DataFrame with a Python function. The job does not need pandas, and also runs over Spark Connect, Spark's
  protocol for remote sessions.
- Spark pickles the function by value, with its code, so that a task without this package can run it.
- The job has a tag, the name by which Spark can interrupt a job. If the job exceeds its deadline, the probe interrupts
  the job.
- If the probe started the session, it stops the session.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark_ledger.connector.doctor import task_probe
from pyspark_ledger.connector.doctor.deadline import error_text, within
from pyspark_ledger.connector.doctor.platform_probe import SECONDS
from pyspark_ledger.ledger.clock import new_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

START_SECONDS = 120.0
_STOP_SECONDS = 30.0
TASK_SECONDS = 30.0
"""Deadline of the task. It is long, because the first task of a session waits until an executor and Python start."""


class EchoListener:
    """Listener at a free port of `host` that sends a token to each caller.

    `echoed` is set when a caller sends the token back. Raises OSError if `host` is unknown or is another machine.
    """

    def __init__(self, host: str) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self.echoed = threading.Event()
        self._token = new_id().encode()
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.bind(address)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._answer, name="ledger-doctor echo", daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        with suppress(OSError):  # `close` ends the wait
            while True:
                peer, _ = self._socket.accept()
                with peer, suppress(OSError):
                    self._converse(peer)

    def _converse(self, peer: socket.socket) -> None:
        peer.settimeout(SECONDS)
        peer.sendall(self._token)
        if peer.recv(len(self._token)) == self._token:
            self.echoed.set()
            peer.sendall(b"ok")

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SECONDS)


@contextmanager
def probed_session(spark: SparkSession | None, conf: Mapping[str, str]) -> Iterator[tuple[SparkSession | None, str]]:
    """Yield `spark`, else the active session, else a new session with `conf`, which is stopped at the end.

    If no session can be started, yield None and the reason.
    """
    created = False
    why = ""
    try:
        spark = spark or _active_session()
        if spark is None:
            created = not _has_context()
            spark = within(START_SECONDS, lambda: _new_session(conf))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # Spark Connect without pandas raises SystemExit
        why = error_text(error)
    try:
        yield spark, why
    finally:
        if created and spark is not None and _has_context():
            with suppress(Exception):
                within(_STOP_SECONDS, spark.stop)


def _has_context() -> bool:
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return getattr(SparkContext, "_active_spark_context", None) is not None


def _active_session() -> SparkSession | None:
    """Return the active session of this thread. Called on the user's thread, because other threads have none."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _new_session(conf: Mapping[str, str]) -> SparkSession:
    """Return a new session with `conf`. If there is a Spark context already, return its session unchanged."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if not _has_context():
        for name, value in {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **conf}.items():
            builder = builder.config(name, value)
    return builder.getOrCreate()


def driver_host(spark: SparkSession) -> str:
    """Return the host name by which tasks reach the driver, as `serve` chooses it: Spark's setting, else this host."""
    with suppress(Exception):  # a platform may hide its settings
        host = within(SECONDS, lambda: spark.conf.get("spark.driver.host", ""))
        if host:
            return host
    return socket.getfqdn()


def ask_task(spark: SparkSession, question: Mapping[str, Any], seconds: float = TASK_SECONDS) -> dict[str, Any]:
    """Return the result of `task_probe` in one task. Raises TimeoutError, and Spark's errors."""
    tag = f"ledger-doctor-{new_id()}"
    found: dict[str, Any] = json.loads(_interruptible(spark, tag, lambda: _asked(spark, tag, question), seconds))
    return found


def _asked(spark: SparkSession, tag: str, question: Mapping[str, Any]) -> str:
    from pyspark.sql.functions import lit, udf

    with suppress(Exception):  # if this Spark has no tags, a late job is not interrupted
        spark.addTag(tag)
    with _by_value(task_probe):
        asked = udf(task_probe.task_facts, "string", useArrow=False)
        (row,) = spark.range(0, 1, 1, 1).select(asked(lit(json.dumps(question))).alias("facts")).collect()
    return str(row[0])


def ask_source(spark: SparkSession, seconds: float = TASK_SECONDS) -> tuple[str, str]:
    """Import Unity Catalog's provider in the planner and in a task of a Python source. Return both errors.

    The source stays registered in the session, and a later probe replaces it. Raises TimeoutError, and Spark's errors.
    """
    tag = f"ledger-doctor-{new_id()}"
    return _interruptible(spark, tag, lambda: _read(spark, tag), seconds)


def _read(spark: SparkSession, tag: str) -> tuple[str, str]:
    from pyspark_ledger.connector.doctor import source_probe

    with suppress(Exception):  # if this Spark has no tags, a late job is not interrupted
        spark.addTag(tag)
    with _by_value(task_probe, source_probe):
        spark.dataSource.register(source_probe.ProbeSource)
        (row,) = spark.read.format(source_probe.NAME).load().collect()
    return str(row[0]), str(row[1])


def _interruptible(spark: SparkSession, tag: str, call: Callable[[], T], seconds: float) -> T:
    try:
        return within(seconds, call)
    except TimeoutError:
        with suppress(Exception):
            within(SECONDS, lambda: spark.interruptTag(tag))
        raise


@contextmanager
def _by_value(*modules: ModuleType) -> Iterator[None]:
    """Let Spark pickle the functions and classes of these modules by value instead of by name."""
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
