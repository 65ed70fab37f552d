"""Set-up for clients of a store in a bucket: creation of the store without the test of the bucket, and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.client.connect import serve_store, stop_broker
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.wal.requests import RequestLimits
from streaming_examples.s3_server import S3Server


def create_store(bucket: str, options: S3Options | None = None) -> None:
    """Create a store without the test of the bucket, which takes minutes in SeaweedFS."""
    place = open_object_store(bucket, options)
    found_or_created(place, system_clock_ms, RequestLimits(), create=True, window=8, probe=lambda _: None)
    place.close()


def serve_direct_store(bucket: str, folder: Path, part_bytes: int, **settings: str) -> Path:
    """Create a store, and serve it. Tasks put parts of at least `part_bytes` into the bucket by themselves.

    `folder` gets the configuration of the broker. Return the directory of the broker.
    """
    lines = [f"stagedPartPromotionMinBytes = {part_bytes}", *(f'{name} = "{text}"' for name, text in settings.items())]
    config = folder / "broker.toml"
    config.write_text("\n".join(lines), encoding="utf-8")
    create_store(bucket)
    serve_store(bucket_directory(bucket), ["--config", str(config)])
    return bucket_directory(bucket)


def be_client(server: S3Server, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Set the environment variables of this process: the credentials of the server, and a separate cache."""
    for name, value in server.environment.items():
        patch.setenv(name, value)
    patch.setenv("LEDGER_CACHE", str(cache))


@pytest.fixture
def directory(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the cache directory of a store in a bucket. This process starts the broker, as it has the credentials."""
    be_client(s3_server, tmp_path / "cache", monkeypatch)
    create_store(bucket)
    connect(bucket)
    yield bucket_directory(bucket)
    stop_broker(bucket_directory(bucket))
