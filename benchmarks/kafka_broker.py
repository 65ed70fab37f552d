"""Real Kafka of one node, and the jars of Spark's own connector: the base of the comparisons with Kafka.

Both are downloaded once from Maven Central into `build/kafka`, in the versions that `benchmarks/kafka/*.xml` name. The
Kafka broker runs without ZooKeeper (KRaft mode) with default settings, on loopback. Its log is on the disk of the
other measured files.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "kafka"
PARTITIONS = 2
_SECONDS = 60.0
_LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={logs}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.hours=-1
auto.create.topics.enable=false
"""


def jars(of: str) -> list[Path]:
    """Return the jars of `broker` or of Spark's `connector`, with their dependencies. Missing jars are fetched."""
    folder = BUILD.absolute() / of
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(["mvn", "-q", "-B", "-f", str(HERE / "kafka" / f"{of}.xml"), "dependency:copy-dependencies",
              "-DincludeScope=runtime", f"-DoutputDirectory={folder}"])  # fmt: skip
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))


class Kafka:
    """Running broker."""

    def __init__(self, address: str) -> None:
        self.address = address

    def create(self, topic: str, config: Mapping[str, str] | None = None) -> None:
        """Create a topic of two partitions."""
        said = [word for key, value in (config or {}).items() for word in ("--config", f"{key}={value}")]
        self._topics("--create", "--topic", topic, "--partitions", str(PARTITIONS), "--replication-factor", "1", *said)

    def delete(self, topic: str) -> None:
        """Delete a topic with its files."""
        self._topics("--delete", "--topic", topic)

    def _topics(self, *words: str) -> None:
        _run([*_java(), "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address, *words])


@contextmanager
def kafka(folder: Path) -> Iterator[Kafka]:
    """Yield a broker whose log is in `folder`. The broker ends with the block."""
    port, controller = _free_port(), _free_port()
    properties = folder / "kafka.properties"
    folder.mkdir(parents=True, exist_ok=True)
    properties.write_text(
        _PROPERTIES.format(port=port, controller=controller, logs=folder / "logs", partitions=PARTITIONS)
    )
    tool = [*_java(), "kafka.tools.StorageTool"]
    cluster = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True).stdout.strip()
    _run([*tool, "format", "-t", cluster, "-c", str(properties)])
    with (folder / "broker.log").open("wb") as log:
        command = [*_java("-Xms1g", "-Xmx1g", "-XX:+UseG1GC"), "kafka.Kafka", str(properties)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(port, process, folder / "broker.log")
        yield Kafka(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _java(*options: str) -> list[str]:
    return ["java", *options, _LOGGING, "-cp", os.pathsep.join(str(jar) for jar in jars("broker"))]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} … {command[-1]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"Kafka does not listen at {port}: {log.read_text()[-2000:]}") from None
            time.sleep(0.2)
        else:
            return
