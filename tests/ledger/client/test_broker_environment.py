"""Goal: a broker inherits all of its starter's environment but Spark's own, with paths that hold in its directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.ledger.client.broker_environment import bounded_allocator, broker_environment
from pyspark_ledger.ledger.errors import Refused

BOTO3 = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_PROFILE": "writer",
    "AWS_ROLE_ARN": "arn:aws:iam::1:role/writer",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN": "token",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/credentials",
    "AWS_DEFAULT_REGION": "eu-west-3",
    "AWS_ENDPOINT_URL_S3": "http://localhost:9000",
    "HTTPS_PROXY": "http://proxy:3128",
    "NO_PROXY": "localhost",
    "HOME": "/home/somebody",
    "MY_SECRET": "of a credential provider",
    "PYTHONHASHSEED": "0",
}
SPARK = (
    "SPARK_HOME", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_CONNECT_AUTHENTICATE_TOKEN", "PYSPARK_PYTHON",
    "PYSPARK_GATEWAY_SECRET", "PYSPARK_EXECUTOR_MEMORY_MB", "_SPARK_AUTH_SECRET", "_PYSPARK_DRIVER_CONN_INFO_PATH",
    "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_DIR",
    "PYTHON_UNIX_DOMAIN_ENABLED", "PYTHON_FAULTHANDLER_DIR", "PYTHON_TRACEBACK_DUMP_INTERVAL_SECONDS",
)  # fmt: skip


def test_all_but_sparks_own_is_inherited() -> None:
    found = broker_environment({**BOTO3, **dict.fromkeys(SPARK, "x"), "PYTHONPATH": "/a/script's"}, ["/a", "/b"])
    assert found == {**BOTO3, "PYTHONPATH": "/a:/b", "PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize(
    "name",
    [
        "AWS_CA_BUNDLE",
        "AWS_CONFIG_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "REQUESTS_CA_BUNDLE",
    ],
)
def test_paths_are_those_of_the_starters_directory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOLDER", "/etc")
    for given, expected in {
        "file": f"{tmp_path}/file",
        "./file": f"{tmp_path}/file",
        "/etc/file": "/etc/file",
        "~/file": "~/file",
        "$FOLDER/file": "$FOLDER/file",
        "": "",
    }.items():
        assert broker_environment({name: given}, [])[name] == expected


def test_a_relative_path_in_a_directory_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert broker_environment({"AWS_CONFIG_FILE": "/etc/file"}, [])["AWS_CONFIG_FILE"] == "/etc/file"
    with pytest.raises(Refused, match=r"AWS_CONFIG_FILE is 'file', a relative path.*Set AWS_CONFIG_FILE to an absolut"):
        broker_environment({"AWS_CONFIG_FILE": "file"}, [])


def test_arrow_is_bounded_unless_the_user_chose_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bounded_allocator({"HOME": "/"})
    assert found["MIMALLOC_DISALLOW_OS_ALLOC"] == "1"
    assert bounded_allocator(found) == {}, "so that a program that starts itself again does so once"
    assert bounded_allocator({"ARROW_DEFAULT_MEMORY_POOL": "system"}) == {}
    monkeypatch.setattr("importlib.metadata.version", lambda _: "25.0.1")
    assert bounded_allocator({}) == {}


@pytest.mark.thorough
def test_a_thousand_threads_allocate_and_a_bomb_does_not() -> None:
    program = """
import sys, threading, pyarrow as pa
held, wait = [], threading.Barrier(1001)
def one():
    held.extend(pa.allocate_buffer(size) for size in (100, 5_000, 70_000))
    wait.wait()
for _ in range(1000):
    threading.Thread(target=one, daemon=True).start()
wait.wait(60)
try:
    pa.allocate_buffer(300 << 20)
except pa.ArrowMemoryError:
    print(len(held))
"""
    environment = {**os.environ, **bounded_allocator({})}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("3000\n", "")
