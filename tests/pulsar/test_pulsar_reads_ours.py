"""Goal: Pulsar's own code reads what this project offloads. Method: its offload reader, entry by entry, by hash.

`tools/pulsar/fetch.sh` collects Pulsar's jars from Maven Central, pinned; it needs a JDK 17 and Maven. These tests are
those of `make test-pulsar`, and of nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StructType

from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.write.commit import commit_parts, stage_rows
from pyspark_ledger.connector.write.target import prepare_target
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.message.entry import is_marker, parse_entry
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.position import EARLIEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames
from pyspark_ledger.offload.bucket.catalogue import Catalogue
from pyspark_ledger.offload.bucket.frames import stream_frames
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import segment_ranges
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.ledger.message.test_fixtures_pulsar import ROOT as FIXTURES
from tests.rigs.bucket_clients import be_client, serve_direct_store
from tests.rigs.command import run
from tests.rigs.deadline import wait_until

ROOT = Path(__file__).resolve().parents[2]
PULSAR = ROOT / "build" / "pulsar"
MIB = 1024 * 1024

pytestmark = pytest.mark.pulsar


@pytest.fixture(scope="module")
def classpath() -> str:
    subprocess.run([ROOT / "tools" / "pulsar" / "fetch.sh"], check=True)
    return f"{PULSAR}/classes:{PULSAR}/nar:{PULSAR}/nar/META-INF/bundled-dependencies/*:{PULSAR}/lib/*"


def as_pulsar_reads(classpath: str, server: S3Server, bucket: str, keys: list[str], what: str = "entries") -> list[str]:
    """A line for each entry or message, `ledger entry length sha256`, by Pulsar's own reader."""
    java = shutil.which("java")
    assert java is not None
    command = [
        java, "-Xmx512m", "-Djclouds.regions=us-east-1", f"-Djclouds.region.us-east-1.endpoint={server.endpoint}",
        "-Dlog4j2.level=ERROR", "-cp", classpath, "ReadOffloaded", server.endpoint, bucket, what, *keys,
    ]  # fmt: skip
    keys_of_server = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    said = {**os.environ, **keys_of_server}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=said, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [line for line in done.stdout.splitlines() if line.count(" ") == 3]


def as_read_here(objects: ObjectStore, catalogue: Catalogue) -> tuple[list[str], list[str]]:
    """The keys of all ledgers, and the same lines by this project's reader."""
    keys, lines = [], []
    for name in sorted({attempt.topic for attempt in catalogue.attempts}):
        (topic,) = catalogue.find(name)
        for segment in topic.segments:
            keys.append(f"{segment.data_name[:36]}:{segment.ledger_id}")
            for span in segment_ranges(segment):
                data = objects.get_range(span.data_name, span.offset, span.size_bytes)
                for frame in stream_frames([data], span, span.data_name):
                    digest = hashlib.sha256(frame.entry).hexdigest()
                    lines.append(f"{segment.ledger_id} {frame.entry_id} {len(frame.entry)} {digest}")
    return keys, lines


def test_pulsar_reads_every_entry_of_columns_and_of_messages(
    classpath: str, store: LedgerStore, s3_server: S3Server
) -> None:
    s3_server.make_bucket("ours")
    columns = store.ledger("orders")
    for number in range(20):  # more than one block of 64 MiB
        columns.append([{"id": number * 4 + row, "note": os.urandom(MIB)} for row in range(4)])
    messages = store.ledger("messages")
    with messages.producer(compression="lz4") as producer:
        for number in range(3000):
            producer.send(b"v" * (number % 700), key=f"k{number % 7}", properties={"n": str(number)})
    store.offload_to("s3://ours", endpoint=s3_server.endpoint)
    for ledger in (columns, messages):
        ledger.offload(seal=True)
    objects = open_object_store("s3://ours", s3_server.options)
    catalogue = read_catalogue(objects)
    assert max(len(one.index.blocks) for one in catalogue.attempts if one.index) > 1
    keys, lines = as_read_here(objects, catalogue)
    assert len(keys) == 2
    assert as_pulsar_reads(classpath, s3_server, "ours", keys) == lines


def test_pulsar_assembles_the_chunks_of_large_messages(classpath: str, store: LedgerStore, s3_server: S3Server) -> None:
    s3_server.make_bucket("large")
    store.offload_to("s3://large", endpoint=s3_server.endpoint)
    sent = [b"small", os.urandom(10_001), b"text " * 200_000, os.urandom(1_000_000), b"last"]
    wanted = []
    for compression in ("none", "lz4", "zlib", "zstd", "snappy"):
        ledger = store.ledger(compression)
        with ledger.producer(
            "p", compression=compression, chunk_max_bytes=10_000, batching_max_publish_delay_ms=0
        ) as producer:
            ids = [producer.send(value, key="k", properties={"a": "b"}) for value in sent]
        for at, value in zip(ids, sent, strict=True):
            found = at.result()
            wanted.append(f"{found.ledger_id} {found.entry_id} {len(value)} {hashlib.sha256(value).hexdigest()}")
        assert ids[-1].result().entry_id > 100
        ledger.offload(seal=True)
    keys, _ = as_read_here(objects := open_object_store("s3://large", s3_server.options), read_catalogue(objects))
    assert sorted(as_pulsar_reads(classpath, s3_server, "large", keys, "messages")) == sorted(wanted)


def test_pulsar_reads_the_objects_of_a_direct_sink(
    classpath: str, bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar's offloader takes no prefix, so the objects are copied to a bucket of their own."""
    be_client(s3_server, tmp_path / "cache", monkeypatch)
    directory, began_ms = serve_direct_store(bucket, tmp_path, MIB), system_clock_ms()
    options = read_options({"path": "rows", "store": bucket, "entryBytes": "1m"}, "stream write")
    sink = prepare_target(options, StructType().add("id", LongType()).add("note", BinaryType()))
    rows = [{"id": number, "note": os.urandom(MIB)} for number in range(9)]
    # The second task has a small part, which the broker puts as an object.
    parts = [rows[:6], [{"id": 100, "note": b"small"}], rows[6:]]
    batches = [pa.RecordBatch.from_pylist(part) for part in parts]
    messages = [stage_rows(sink, "1", "q", 0, iter([batch]), task) for task, batch in enumerate(batches)]
    commit_parts(sink, "1", messages, 0)
    source, ended_ms = open_object_store(f"{bucket}/segments"), system_clock_ms()
    wait_until(lambda: len(list(source.objects())) == 3 * len(parts), "data and index objects are put")
    client = connect(bucket).client
    wanted = as_the_broker_reads(client, "rows")
    assert connect(bucket).ledger("rows").read().to_pylist() == [row for part in parts for row in part]
    client.close()
    stop_broker(directory)
    s3_server.make_bucket("direct")
    objects = open_object_store("s3://direct", s3_server.options)
    for found in source.objects():
        objects.put(found.key, bytes(source.get(found.key, found.size).data), source.head(found.key).metadata)
    keys, lines = as_read_here(objects, read_catalogue(objects))
    assert len(keys) == len(parts)
    assert as_pulsar_reads(classpath, s3_server, "direct", keys) == lines
    heads, entries, stamps = [], [], []
    for line in as_pulsar_reads(classpath, s3_server, "direct", keys, "metadata"):
        *place, values = line.split()
        if values == "true":
            heads.append(place)
            continue
        *producer, time_ms, index, digest = values.split(":")
        entries.append([*place, *producer, digest])
        stamps.append((began_ms <= int(time_ms) <= ended_ms, index))
    assert entries == wanted
    assert set(stamps) == {(True, "-1")}, "the time of the task, and no number of a row"
    assert heads == [
        [ledger_id, str(len(of_ledger) - 1), str(sum(map(int, of_ledger)))]
        for ledger_id in dict.fromkeys(line.split()[0] for line in lines)
        if (of_ledger := [line.split()[2] for line in lines if line.split()[0] == ledger_id])
    ]


def as_the_broker_reads(client: Client, name: str) -> list[list[str]]:
    """Place, messages, publish time, producer, sequence, properties and sha256 of the payload of each entry."""
    found = []
    request = ReadRequest(canonical_name(name), PositionRange(EARLIEST, client.ask(AskEnd(name)).end))
    for block in client.read_blocks(request, mapping=False):
        for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
            _, metadata, payload = parse_entry(frame, f"entry {block.ledger_id}:{entry_id}")
            messages = 0 if is_marker(metadata) else metadata.num_messages_in_batch
            properties = ",".join(f"{pair.key}={pair.value}" for pair in metadata.properties)
            values = (block.ledger_id, entry_id, messages, metadata.publish_time)
            producer = (metadata.producer_name, str(metadata.sequence_id), properties)
            found.append([*map(str, values), *producer, hashlib.sha256(payload).hexdigest()])
    return found


def test_pulsars_reader_agrees_with_ours_on_what_pulsar_wrote(classpath: str, s3_server: S3Server) -> None:
    s3_server.make_bucket("theirs")
    objects = open_object_store("s3://theirs", s3_server.options)
    for folder in ("01-plain", "02-lz4", "13-broker-entry-metadata"):
        for path in sorted((FIXTURES / folder / "objects").glob("*-ledger-*")):
            if not path.name.endswith(".json"):
                said = open_object_store(path.parent).head(path.name).metadata
                objects.put(path.name, path.read_bytes(), said)
    keys, lines = as_read_here(objects, read_catalogue(objects))
    assert len(lines) > 1000
    assert as_pulsar_reads(classpath, s3_server, "theirs", keys) == lines


def test_pulsar_parses_the_state_of_a_cursor(
    classpath: str, store: LedgerStore, store_path: Path, tmp_path: Path
) -> None:
    orders, out = store.ledger("orders"), tmp_path / "exported"
    for number in range(3000):
        orders.append([{"id": number}])
    first = orders.describe().start.ledger_id
    cursor = orders.cursor("billing", orders.describe().start)
    # Runs of 200 entries, far apart: as pairs they are smaller than as a bitmap.
    runs = [(400, 600), (1400, 1600), (2400, 2600)]
    cursor.acknowledge_rows([(first, entry) for run in runs for entry in range(*run)])
    run("cursor", "export", "orders", "billing", str(out), "--store", str(store_path))
    (file,) = out.iterdir()
    java = shutil.which("java")
    assert java is not None
    ran = subprocess.run(
        [java, "-cp", classpath, "ReadPositionInfo", str(file)], check=True, capture_output=True, text=True, timeout=60
    )
    ranges = [f"({first}:{start - 1}..{first}:{end - 1}]" for start, end in runs]
    assert ran.stdout.split("\n")[0] == " ".join([f"{first}:-1", *ranges])
