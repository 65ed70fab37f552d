"""Probe that runs in a task, in Spark's Python worker. Spark pickles this module by value, with its code.

Rules
- Only the standard library is imported at the top, because a task may lack this package. Other imports may fail.
- The result is one JSON document. A failure is a text in the document, and no error is raised.
- An error of S3 is reported by its code or class, because its message may contain a key or an address.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
from typing import Any

CREDENTIALS_MODULE = "databricks.service_credentials"


def task_facts(question: str) -> str:
    """Return the results of all probes as JSON.

    `question` is JSON with the driver's host and port, the bucket, and the deadline of a probe in seconds.
    """
    asked: dict[str, Any] = json.loads(question)
    bucket = asked.get("bucket")
    facts = {
        "python": list(sys.version_info[:3]),
        "ledger": imported("pyspark_ledger"),
        "reached": reached(asked["host"], asked["port"], asked["seconds"]) if asked.get("port") else None,
        "listed": listed(bucket, asked["prefix"], asked["endpoint"], asked["seconds"]) if bucket else None,
    }
    return json.dumps(facts)


def imported(name: str) -> dict[str, str]:
    """Return the version of a module, or the class of the error of its import."""
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001  # also SystemExit: the task must answer
        return {"error": type(error).__name__}
    return {"version": str(getattr(module, "__version__", ""))}


def reached(host: str, port: int, seconds: float) -> str:
    """Connect to the driver and echo its token. Return the reason of a failure, else an empty text."""
    try:
        with socket.create_connection((host, port), seconds) as line:
            line.settimeout(seconds)
            line.sendall(line.recv(64))
            return "" if line.recv(2) == b"ok" else "something else answers there"
    except OSError as error:
        return str(error.strerror or error)


def listed(bucket: str, prefix: str, endpoint: str, seconds: float) -> str:
    """List one key with boto3's default chain. Return the code or class of an error, else an empty text."""
    try:
        boto3 = importlib.import_module("boto3")
        session = boto3.session.Session()
        config = importlib.import_module("botocore.config").Config(
            connect_timeout=seconds,
            read_timeout=seconds,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path" if endpoint else "auto"},
        )
        region = session.region_name or ("us-east-1" if endpoint else None)
        client = session.client("s3", endpoint_url=endpoint or None, region_name=region, config=config)
        client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except Exception as error:  # noqa: BLE001  # of boto3, its plugins and the network
        answer = getattr(error, "response", None)
        code = answer.get("Error", {}).get("Code", "") if isinstance(answer, dict) else ""
        return str(code) or type(error).__name__
    return ""
