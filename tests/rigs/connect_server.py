"""Server of Spark Connect as an administrator starts it: another working directory, and only a few variables.

The server has Delta if this environment has its package, but no plugin of Delta for Spark Connect.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyspark

from pyspark_ledger.connector.session.delta import delta_settings
from pyspark_ledger.ledger.errors import Unavailable

_SECONDS = 240
# No variable of this package, and none of AWS. The launcher of Spark reads the three of the Makefile.
_KEPT = (
    "PATH", "HOME", "JAVA_HOME", "PYTHONPATH", "TZ",
    "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_SUBMIT_OPTS",
)  # fmt: skip


class ConnectServer:
    """Running server. `log` is the file with its standard error."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "server.log"
        self._directory = directory / "server"
        self._directory.mkdir()
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.address = f"sc://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        home = Path(pyspark.__file__).parent
        conf = {
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.ui.enabled": "false",
            "spark.sql.catalogImplementation": "in-memory",
            **_delta(),
        }
        environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        command = [str(home / "bin/spark-submit"), "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"], cwd=self._directory, env=environ, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + _SECONDS
        while not self._accepts():
            assert self._process.poll() is None, self.log.read_text(encoding="utf-8")[-4000:]
            assert time.monotonic() < until, "the server does not accept connections"
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the server, and the Python processes of its Spark."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            self._process = None

    def _accepts(self) -> bool:
        with closing(socket.socket()) as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0


@contextmanager
def connect_server(directory: Path) -> Iterator[ConnectServer]:
    server = ConnectServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _delta() -> dict[str, str]:
    try:
        return dict(delta_settings())
    except Unavailable:
        return {}
