"""Goal: kills between stage and commit lose and duplicate no row of a batch whose tasks write into the bucket.

Method: the query and the kills of `tests/rigs/killed_query.py`, a store in a bucket, and a real S3 server. Rounds:
LEDGER_FAULT_ROUNDS, by default the first five of `KILLS`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.tiering.direct_objects import DIRECT_EPOCH
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import be_client, serve_direct_store
from tests.rigs.deadline import wait_until
from tests.rigs.killed_query import SECONDS, KilledQuery
from tests.rigs.large_rows_app import PART_BYTES

pytestmark = [
    pytest.mark.feature("kills of Spark at any point of a batch"),
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(SECONDS),
]


@pytest.fixture
def running(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KilledQuery]:
    be_client(s3_server, tmp_path / "cache", monkeypatch)
    directory = serve_direct_store(bucket, tmp_path, PART_BYTES)
    connect(bucket).ledger("in").append(pa.table({"n": pa.array([], pa.int64())}))
    query = KilledQuery(bucket, tmp_path)
    yield query
    query.kill()
    stop_broker(directory)


@pytest.mark.slow
def test_kills_lose_and_repeat_no_row_of_a_direct_sink(running: KilledQuery, bucket: str) -> None:
    directory = bucket_directory(bucket)
    rows = running.copy_in_rounds(directory)
    running.require_copied(rows)
    assert "large parts go through the broker" not in running.output()
    assert not list(directory.glob("staging/*/*/*.part")), "the broker has got no part"
    segments = {segment.ledger_id: segment for segment in connect(bucket).ledger("out").describe().segments}
    direct = {ledger_id for ledger_id, segment in segments.items() if segment.rows}
    assert all(segments[ledger_id].offloaded and not segments[ledger_id].local for ledger_id in direct)
    objects = open_object_store(f"{bucket}/segments")
    wait_until(lambda: direct <= set(indexed(objects)), "all index objects are put")
    assert {indexed(objects)[ledger_id] for ledger_id in direct} == {1}, "attempts that lost have no index objects"
    require_direct(objects, direct)
    wal = sum(found.size for found in open_object_store(bucket).objects("wal/"))
    assert wal < rows * 10_000, "the log of the store has no row of a part"
    verified = CliRunner().invoke(app, ["verify", "--store", bucket])
    assert verified.exit_code == 0, verified.output
    stop_broker(directory)
    shutil.rmtree(directory)
    running.require_copied(rows)


def indexed(objects: ObjectStore) -> Counter[int]:
    """Count the attempts with a data object and both index objects, by segment id."""
    names = {found.key for found in objects.objects()}
    keys = {parsed[0] for parsed in map(ObjectKey.parse, names) if parsed is not None}
    return Counter(key.ledger_id for key in keys if {key.data_name, key.index_name, key.entries_name} <= names)


def require_direct(objects: ObjectStore, ledger_ids: set[int]) -> None:
    """Check that tasks have put the data objects of these segments."""
    for name in [found.key for found in objects.objects()]:
        parsed = ObjectKey.parse(name)
        if parsed is not None and not parsed[1] and parsed[0].ledger_id in ledger_ids:
            metadata = {key.lower() for key in objects.head(name).metadata}
            assert DIRECT_EPOCH.lower() in metadata
