"""S3 server that answers every request with success, and records the requests."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_ROLE = (
    '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
    "<AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
    "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
)


@dataclass(frozen=True)
class Request:
    method: str
    host: str
    path: str
    headers: dict[str, str]
    body: str

    @property
    def signed_by(self) -> str:
        """Access key of the signature."""
        return self._scope[0]

    @property
    def region(self) -> str:
        return self._scope[2]

    @property
    def _scope(self) -> list[str]:
        found = re.search(r"Credential=([^,]*)", self.headers.get("authorization", ""))
        return found[1].split("/") if found else ["", "", ""]


class RecordingS3:
    """Server of one test on loopback. It sets environment variables with which all clients of AWS call this server."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.requests = requests = list[Request]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                requests.append(
                    Request(self.command, headers.get("host", ""), self.path, headers, body.decode(errors="replace"))
                )
                data = _ROLE.encode() if b"Action=AssumeRole" in body else b""
                self.send_response(200)
                self.send_header("ETag", '"e"')
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 — named by http.server

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.port = self._server.server_port
        keys = folder / "keys"
        keys.write_text("[other]\naws_access_key_id = PROFILE\naws_secret_access_key = s\n")
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://localhost:{self.port}",
            "AWS_ACCESS_KEY_ID": "ENVIRONMENT",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_SHARED_CREDENTIALS_FILE": str(keys),
            "AWS_CONFIG_FILE": str(keys),
        }.items():
            patch.setenv(name, value)
        look_up = socket.getaddrinfo

        def local(host: Any, *rest: Any, **named: Any) -> Any:
            return look_up("127.0.0.1" if str(host).endswith("localhost") else host, *rest, **named)

        patch.setattr(socket, "getaddrinfo", local)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def keys_of(address: str) -> dict[str, str]:
    """Return the keys of a credential provider."""
    return {"access_key": "PROVIDED", "secret_key": address}
