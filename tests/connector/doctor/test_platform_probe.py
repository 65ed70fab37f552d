"""Goal: each thing that a platform may forbid is seen, said in words, and answered with a fallback. Method: the real
thing is tried, and really taken away: limits of open files, tiny or read-only mounts, closed ports, silent servers.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.connector.doctor.hosting import check_disk, platform_name
from pyspark_ledger.connector.doctor.platform import (
    check_address,
    check_credentials,
    check_package,
    check_python,
    probe_platform,
)
from pyspark_ledger.connector.doctor.platform_probe import (
    Probe,
    probe_descriptor,
    probe_process,
    probe_shared_memory,
    probe_unix_socket,
)
from pyspark_ledger.connector.doctor.spark_probe import EchoListener
from pyspark_ledger.connector.doctor.task_probe import imported, listed, reached, task_facts
from pyspark_ledger.ledger.version import __version__
from streaming_examples.s3_server import S3Server
from tests.rigs.deadline import wait_until

pytestmark = pytest.mark.timeout(60)
SECRET = "never-to-be-shown"
ANOTHER_HOST = "203.0.113.9"  # kept for documentation: nobody has it
MAY_MOUNT = shutil.which("unshare") and not subprocess.run(["unshare", "-m", "true"], check=False).returncode


def failed(found: Diagnosis, state: str, words: str) -> None:
    assert (found.state, words in found.found) == (state, True), found
    assert found.do


def socket_in(directory: Path) -> Diagnosis:
    return probe_unix_socket("socket", directory, "warning", "Nothing to do")


def children() -> set[str]:
    """The processes that this one's threads began. A thread may end while it is asked."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found.update((task / "children").read_text().split())
    return found


def left_behind() -> set[str]:
    """Everything that a probe may leave: children, descriptors, files in shared memory that are no broker's."""
    shared = Path("/dev/shm")  # noqa: S108  # it is looked at
    files = {str(path) for path in shared.iterdir() if not path.name.lstrip(".").startswith(f"ledger-{os.getuid()}-")}
    return children() | {f"descriptor {path.name}" for path in Path("/proc/self/fd").iterdir()} | files


@contextmanager
def no_more_files() -> Iterator[None]:
    """Leave this process without a free descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def silent_server() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shared_memory_mounted(mount: str) -> Diagnosis:
    """The diagnosis of /dev/shm in a mount namespace where `mount` made another one."""
    code = (
        "import json, dataclasses; from pyspark_ledger.connector.doctor.platform_probe import probe_shared_memory; "
        "print(json.dumps(dataclasses.asdict(probe_shared_memory())))"
    )
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return Diagnosis(**json.loads(done.stdout))


def test_everything_tried_on_the_host_is_ok_and_leaves_nothing(tmp_path: Path) -> None:
    before = left_behind()
    found = [probe_process(), socket_in(tmp_path), probe_shared_memory(), probe_descriptor()]
    assert [one.state for one in found] == ["ok"] * 4, found
    assert left_behind() - before == set(), "other tests' children may end meanwhile"
    assert list(tmp_path.iterdir()) == []


def test_process_that_is_ended_or_may_not_start_is_a_problem(tmp_path: Path) -> None:
    failed(probe_process(["sh", "-c", "echo True; exit 3"]), "problem", "ended with status 3")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o600)
    failed(probe_process([str(program)]), "problem", "Permission denied")
    with no_more_files():
        failed(probe_process(), "problem", "Too many open files")


def test_process_that_says_nothing_is_ended_within_its_time() -> None:
    before, began = children(), time.monotonic()
    assert probe_process(["sleep", "60"]).state != "ok"
    wait_until(lambda: children() == before, "the child is ended", 10)
    assert time.monotonic() - began < 10


def test_socket_with_a_long_path_or_no_directory_is_said(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    failed(socket_in(long), "warning", "path too long")
    failed(socket_in(tmp_path / "missing"), "warning", "No such file or directory")
    assert list(long.iterdir()) == []


@pytest.mark.skipif(not MAY_MOUNT, reason="mounts nothing here")
@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("mount -t tmpfs -o size=64k none /dev/shm", "of 0 MiB are free"),
        ("mount -t tmpfs -o ro none /dev/shm", "Read-only file system"),
        ("mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full", "No space left"),
    ],
)
def test_shared_memory_that_is_tiny_closed_or_full_is_a_warning(mount: str, words: str) -> None:
    failed(shared_memory_mounted(mount), "warning", words)


def test_shared_memory_that_is_missing_is_a_warning(tmp_path: Path) -> None:
    failed(probe_shared_memory(tmp_path / "shm"), "warning", "No such file or directory")


def test_descriptor_that_cannot_be_made_is_a_warning() -> None:
    with no_more_files():
        failed(probe_descriptor(), "warning", "Too many open files")


def test_probe_that_hangs_is_diagnosed_at_its_deadline() -> None:
    with silent_server() as port, socket.create_connection(("127.0.0.1", port)) as line:
        line.settimeout(20)
        hanging = Probe("hanging", lambda: Diagnosis("hanging", "ok", str(line.recv(1))), "problem", "Wait")
        failed(hanging.diagnose(0.1), "problem", "no answer within 0.1 s")


def test_probe_that_would_end_the_process_is_diagnosed() -> None:
    failed(Probe("exits", lambda: sys.exit(0), "warning", "Install it").diagnose(), "warning", "SystemExit")


def test_driver_is_reached_by_who_echoes_its_token() -> None:
    with closing(EchoListener("localhost")) as listener:
        question = {"host": "localhost", "port": listener.port, "seconds": 5}
        facts = json.loads(task_facts(json.dumps(question)))
        assert (facts["reached"], facts["listed"], facts["python"]) == ("", None, list(sys.version_info[:3]))
        assert listener.echoed.is_set()
        assert check_address("localhost", "", "", echoed=True).state == "ok"
        assert facts["ledger"] == {"version": __version__}
        port = listener.port
    assert reached("localhost", port, 5) == "Connection refused"  # it is closed


def test_driver_that_is_not_reached_is_a_problem() -> None:
    why = reached("127.0.0.1", closed_port(), 5)
    failed(check_address("127.0.0.1", "", why, echoed=False), "problem", "Connection refused")
    with silent_server() as port:
        failed(check_address("127.0.0.1", "", reached("127.0.0.1", port, 0.1), echoed=False), "problem", "timed out")
    with pytest.raises(OSError, match="Cannot assign") as refused:
        EchoListener(ANOTHER_HOST)
    failed(check_address(ANOTHER_HOST, str(refused.value), None, echoed=False), "problem", "cannot listen")


def test_bucket_is_listed_or_the_code_of_the_refusal_is_told(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    assert listed("tests", "", "", 10) == ""
    assert listed("no-such-bucket", "", s3_server.endpoint, 10) == "NoSuchBucket"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert listed("tests", "", "", 10) == "SignatureDoesNotMatch"


def test_endpoint_that_is_closed_or_silent_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert listed("tests", "", f"http://127.0.0.1:{closed_port()}", 2) == "EndpointConnectionError"
    with silent_server() as port:
        assert listed("tests", "", f"http://127.0.0.1:{port}", 0.2) == "ReadTimeoutError"


@pytest.mark.parametrize(
    ("environ", "connect", "name"),
    [
        ({}, False, "plain Spark"),
        ({"DATABRICKS_RUNTIME_VERSION": "17.3"}, False, "Databricks dedicated compute"),
        ({"DATABRICKS_RUNTIME_VERSION": "17.3"}, True, "Databricks standard compute"),
        ({"DATABRICKS_RUNTIME_VERSION": "client.4.9"}, True, "Databricks serverless"),
        ({"DATABRICKS_RUNTIME_VERSION": "17.3", "IS_SERVERLESS": "TRUE"}, True, "Databricks serverless"),
        ({"AWS_EMR_CLUSTER": "j-1"}, False, "EMR"),
        ({"AWS_EMR_SERVERLESS_APPLICATION": "1"}, False, "EMR Serverless"),
    ],
)
def test_platform_is_guessed_from_the_environment(
    tmp_path: Path, environ: dict[str, str], connect: bool, name: str
) -> None:
    assert platform_name(environ, connect, tmp_path) == name


def test_platform_with_the_directory_of_emr_is_emr(tmp_path: Path) -> None:
    (tmp_path / "emr").mkdir()
    assert platform_name({}, False, tmp_path) == "EMR"


def test_disk_of_a_store_that_does_not_exist_is_its_parents(tmp_path: Path) -> None:
    store = tmp_path / "not" / "yet"
    failed(check_disk(store, f"host:/x {tmp_path} nfs4 rw 0 0\n"), "problem", "a network file system")
    failed(check_disk(store, f"none {tmp_path} tmpfs rw 0 0\n"), "warning", f"on {tmp_path} (tmpfs), ")
    assert check_disk(Path("/var/store"), "/dev/vda / ext4 rw 0 0\n").found == "/var/store is on / (ext4)"


def test_task_with_another_python_or_package_is_a_problem() -> None:
    assert check_python([3, 11, 7], [3, 11, 9]).state == "ok"
    failed(check_python([3, 11, 7], [3, 12, 1]), "problem", "3.12.1")
    assert check_package({"version": __version__}).state == "ok"
    failed(check_package(imported("pyspark_ledger_of_nobody")), "problem", "ModuleNotFoundError")
    failed(check_package({"version": "0.0.9"}), "problem", "0.0.9")


def test_credentials_of_databricks_are_asked_of_a_source_only_there() -> None:
    assert check_credentials(None, "plain Spark").found == "not Databricks"
    failed(check_credentials(None, "Databricks serverless"), "problem", "no Python source can be read")


def test_report_loads_nothing_that_a_driver_may_lack() -> None:
    code = (
        "import sys, pyspark_ledger.connector.doctor.platform; "
        "print({'pyspark', 'pyarrow', 'numpy', 'msgspec', 'boto3'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == "set()"


REPORT = """
import sys
from pyspark_ledger.connector.doctor.platform import probe_platform
print(probe_platform(store=sys.argv[1], bucket="s3://tests/prefix", endpoint=sys.argv[2]))
"""


@pytest.mark.parametrize("without", [{"JAVA_HOME": os.devnull}, {"SPARK_REMOTE": "sc://127.0.0.1:1"}])
def test_report_without_a_session_tells_what_is_left_and_no_secret(tmp_path: Path, without: dict[str, str]) -> None:
    endpoint = f"http://127.0.0.1:{closed_port()}"
    shown = {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ACCESS_KEY_ID": f"{SECRET}-key", "AWS_EMR_CLUSTER": f"{SECRET}-id"}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(tmp_path / "store"), endpoint],
        cwd=tmp_path,
        env={**os.environ, **shown, **without},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok      platform: EMR (a guess), no session")
    assert "problem S3 from the driver: EndpointConnectionError" in lines
    assert any(line.startswith("warning task: there is no session, so no task was tested: ") for line in lines)
    assert SECRET not in done.stdout
    assert endpoint not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_report_of_an_odd_store_and_bucket_is_still_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.connector.doctor.spark_probe._active_session", lambda: 1 / 0)
    found = {one.check: one for one in probe_platform(store="ftp://no\0where", bucket=f"s3://a:{SECRET}@b").findings}
    failed(found["S3 from the driver"], "problem", "not of the form s3://bucket/prefix")
    failed(found["task"], "warning", "division by zero")
    assert "store's disk" not in found


@pytest.mark.parametrize("words", [["--bucket", "s3://b"], ["--platform", "--endpoint", "http://127.0.0.1:1"]])
def test_an_option_without_the_one_that_it_needs_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["doctor", *words])
    assert done.exit_code == 2
    assert "needs" in done.output
