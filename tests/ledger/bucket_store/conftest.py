"""Fixtures of a store in a bucket: hosts of one store on a real S3 server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_store import BucketRig
from tests.rigs.fault_proxy import FaultProxy


@pytest.fixture
def rig(tmp_path: Path, s3_server: S3Server, proxy: FaultProxy, bucket: str) -> Iterator[BucketRig]:
    """Brokers reach the log through the proxy."""
    through = dataclasses.replace(s3_server.options, endpoint=proxy.endpoint, attempts=1, read_timeout_ms=5_000)
    rig = BucketRig(tmp_path, bucket, s3_server.options, through)
    yield rig
    rig.close()
