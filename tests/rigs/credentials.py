"""Servers of credentials on loopback: an OIDC issuer, whose tokens SeaweedFS's STS accepts, and a container endpoint.

SeaweedFS verifies the tokens' signatures and issues session credentials. Its S3 service verifies these in each request.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE, ROLE = "ledger", "arn:aws:iam::role/Writer"
Answer = Callable[[str, dict[str, str]], tuple[int, dict[str, Any]]]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Yield the address of a server that answers with JSON. `answer` gets the path and the headers."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            status, document = answer(self.path, {name.lower(): value for name, value in self.headers.items()})
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Issuer:
    """OIDC issuer with one key."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.address = ""

    def answer(self, _path: str, _headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer every request with the public key."""
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "one", "alg": "RS256", "use": "sig"}
        return 200, {"keys": [{**key, "n": _base64(_bytes(numbers.n)), "e": _base64(_bytes(numbers.e))}]}

    def token(self) -> str:
        """Return a token that is valid for an hour."""
        now = int(time.time())
        claims = {"iss": self.address, "aud": AUDIENCE, "sub": "somebody", "iat": now, "exp": now + 3600}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "one"}, claims))
        return f"{signed}.{_base64(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def configuration(self, path: Path) -> str:
        """Return SeaweedFS's argument for a role that owners of a token or of keys may assume."""
        trust = [
            {"Effect": "Allow", "Principal": {"Federated": "local"}, "Action": ["sts:AssumeRoleWithWebIdentity"]},
            {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]},
        ]
        allowed = [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}]
        config = {"issuer": self.address, "clientId": AUDIENCE, "jwksUri": f"{self.address}/jwks"}
        signing_key = base64.b64encode(b"k" * 32).decode()
        document = {
            "sts": {"tokenDuration": "1h", "maxSessionLength": "12h", "issuer": "sts", "signingKey": signing_key},
            "providers": [{"name": "local", "type": "oidc", "enabled": True, "config": config}],
            "policy": {"defaultEffect": "Deny", "storeType": "memory"},
            "policies": [{"name": "All", "document": _policy(allowed)}],
            "roles": [
                {"roleName": "Writer", "roleArn": ROLE, "trustPolicy": _policy(trust), "attachedPolicies": ["All"]}
            ],
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return f"-s3.iam.config={path}"


class Container:
    """Credential endpoint of a container. It returns `keys` to requests with its token."""

    token = "container-token-hush"

    def __init__(self, access_key: str, secret_key: str) -> None:
        self.keys = (access_key, secret_key)
        self.asked = 0

    def answer(self, _path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return keys that expire after a minute: boto3 renews keys that expire within ten minutes."""
        self.asked += 1
        if headers.get("authorization") != self.token:
            return 403, {"message": "no"}
        until = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
        access_key, secret_key = self.keys
        expiration = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        return 200, {
            "AccessKeyId": access_key, "SecretAccessKey": secret_key, "Token": "", "Expiration": expiration,
        }  # fmt: skip


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
