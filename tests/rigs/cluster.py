"""Spark standalone cluster on this machine: a master and two workers, each worker in a separate network namespace.

A worker's namespace has its own network and its own, empty, run directory. So it can neither reach the broker's private
socket nor read its token: to the broker it is another host. A link connects the two workers. Without it, executors that
fetch blocks of shuffles and broadcasts from each other would wait for minutes. If namespaces cannot be made (they need
root), the workers run beside the master, and `apart` is false.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from pyspark_ledger.ledger.ownership import run_directory

SPARK = Path(pyspark.__file__).parent
_HEAP = "256m"


@dataclass(frozen=True)
class Cluster:
    """Addresses of a cluster. `host` is the address at which workers reach the driver.

    `elsewhere` is the start of a command that runs on the first worker's host. `elsewhere_address` is that host's
    address.
    """

    master: str
    host: str
    apart: bool
    elsewhere: tuple[str, ...] = ()
    elsewhere_address: str = "127.0.0.1"


@contextmanager
def cluster(
    directory: Path, *, namespaces: bool = True, variables: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Yield a cluster of two workers with one core each, which ends with the block.

    Workers and their executors have the given `variables` of the environment.
    """
    apart, spaces = namespaces and os.geteuid() == 0 and shutil.which("ip") is not None, []
    processes: list[subprocess.Popen] = []
    try:
        if apart:
            try:
                spaces.extend(_namespace(number) for number in (1, 2))
                _join(*spaces)
            except subprocess.CalledProcessError:
                apart = False
        host = spaces[0][1] if apart else "127.0.0.1"
        port = _free_port(host)
        processes.append(_start(directory, "master", [], host, ["--port", str(port)]))
        _await_port(host, port, directory / "master.log")
        for number in (1, 2):
            inside, own = ([], host) if not apart else _inside(spaces[number - 1])
            words = ["--cores", "1", "--memory", "700m", "--work-dir", str(directory / f"work{number}")]
            words = [*words, f"spark://{host}:{port}"]
            processes.append(_start(directory, f"worker{number}", inside, own, words, variables))
        _await_workers(directory / "master.log")
        command, address = _inside(spaces[0]) if apart else ([], "127.0.0.1")
        yield Cluster(f"spark://{host}:{port}", host, apart, tuple(command), address)
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(30)
        for name, *_ in spaces:
            subprocess.run(["ip", "netns", "del", name], check=False)


def _namespace(number: int) -> tuple[str, str, str]:
    """Return a namespace's name, the address of this host as the namespace sees it, and its own address."""
    mark = os.getpid() % 250
    name, link = f"ledger-{os.getpid()}-{number}", f"lg{os.getpid() % 10_000}n{number}"
    ours, theirs = f"10.231.{mark}.{number * 4 + 1}", f"10.231.{mark}.{number * 4 + 2}"
    for command in (
        f"netns add {name}",
        f"link add {link} type veth peer name eth0 netns {name}",
        f"addr add {ours}/30 dev {link}",
        f"link set {link} up",
        f"-n {name} addr add {theirs}/30 dev eth0",
        f"-n {name} link set eth0 up",
        f"-n {name} link set lo up",
        f"-n {name} route add default via {ours}",
    ):
        _ip(command)
    return name, ours, theirs


def _join(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    """Connect two namespaces by a link, because this host does not forward packets between them."""
    _ip(f"link add eth1 netns {first[0]} type veth peer name eth1 netns {second[0]}")
    for (name, _, own), (_, _, far) in ((first, second), (second, first)):
        _ip(f"-n {name} link set eth1 up")
        _ip(f"-n {name} route add {far}/32 dev eth1 src {own}")


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


def _inside(space: tuple[str, str, str]) -> tuple[list[str], str]:
    hide = f'mount -t tmpfs -o mode=700 none {run_directory()} && exec "$0" "$@"'
    return ["ip", "netns", "exec", space[0], "sh", "-c", hide], space[2]


def _start(
    directory: Path,
    name: str,
    inside: list[str],
    host: str,
    words: list[str],
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen:
    role = {"m": "master.Master", "w": "worker.Worker"}[name[0]]
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--host", host]
    spark = {"SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": _HEAP, "SPARK_LOCAL_IP": host}
    with (directory / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [*inside, *command, "--webui-port", "0", *words],
            cwd=directory,
            env={**os.environ, **(variables or {}), **spark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _await_port(host: str, port: int, log: Path, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, port), 1).close()
        except OSError:
            assert time.monotonic() < until, log.read_text(encoding="utf-8", errors="replace")[-2000:]
            time.sleep(0.1)
        else:
            return


def _await_workers(log: Path, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while log.read_text(encoding="utf-8", errors="replace").count("Registering worker") < 2:
        assert time.monotonic() < until, log.read_text(encoding="utf-8", errors="replace")[-2000:]
        time.sleep(0.1)
