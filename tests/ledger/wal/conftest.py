"""Fixtures of the log: a store in a bucket of a real S3 server, and a proxy with faults before the server."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator

import pytest

from pyspark_ledger.ledger.objects.factory import open_object_store
from streaming_examples.s3_server import S3Server
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.wal import WalRig


@pytest.fixture
def rig(s3_server: S3Server, proxy: FaultProxy, bucket: str) -> Iterator[WalRig]:
    """A store in a prefix of its own. Its brokers reach the bucket through the proxy."""
    address = f"{bucket}/{uuid.uuid4()}"
    options = dataclasses.replace(s3_server.options, attempts=1, read_timeout_ms=1_000)
    through = dataclasses.replace(options, endpoint=proxy.endpoint)
    rig = WalRig(open_object_store(address, options), open_object_store(address, through))
    yield rig
    rig.close()
