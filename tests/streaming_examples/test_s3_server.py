"""Goal: the S3 server of examples and tests takes every bucket they create. Method: real server."""

from __future__ import annotations

import pytest

from streaming_examples.s3_server import S3Server

BUCKETS = 40


@pytest.mark.thorough
def test_the_number_of_buckets_does_not_hang_on_the_free_disk(s3_server: S3Server) -> None:
    client = s3_server.client()
    names = [f"one-of-many-{number:02d}" for number in range(BUCKETS)]
    try:
        for name in names:
            s3_server.make_bucket(name)
            client.put_object(Bucket=name, Key="object", Body=name.encode())
        stored = [client.get_object(Bucket=name, Key="object")["Body"].read().decode() for name in names]
        assert stored == names
    finally:
        for name in names:
            client.delete_object(Bucket=name, Key="object")
            client.delete_bucket(Bucket=name)
