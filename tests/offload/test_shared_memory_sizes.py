"""Goal: a host or container with little or no shared memory reads everything, and no process is killed.

Method: a broker and its readers run as processes with a `/dev/shm` of their own. It has 64 MB like Docker's, or a few
pages, or is read-only. Each byte is compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = r"""
import gc, json, os, subprocess, sys, zlib
from pathlib import Path
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger, StopBroker
from pyspark_ledger.ledger.protocol.cache import AskCache

base = Path(sys.argv[1])
store = connect(base / "store", create=True)
client = store.client
try:
    store.offload_to(base / "objects")
    client.ask(CreateLedger("big"))
    with client.producer("big") as producer:
        for number in range(96):
            body = os.urandom(2**20 - 200)
            payload = number.to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
            message = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
            producer.append(*encode_entry(message, payload))
    ledger = store.ledger("big")
    ledger.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    ledger.offload(seal=True)
    ledger.trim()
    client.ask(ChangeSetting("managedLedgerCacheSizeMB", 256))
    reading = [sys.executable, "-c", Path(sys.argv[2]).read_text(), str(base / "store")]
    readers = [subprocess.Popen([*reading, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(2)]
    mapped = [int(reader.communicate(timeout=100)[0] or -1) for reader in readers]
    counted = client.ask(AskCache())
    taken = sum(path.stat().st_blocks * 512 for path in Path("/dev/shm").rglob("*.block"))
    print(json.dumps({
        "statuses": [reader.returncode for reader in readers], "mapped": sum(mapped), "size": counted.size_bytes,
        "taken": taken, "misses": counted.misses, "hits": counted.hits,
    }))
finally:
    client.ask(StopBroker())
"""
READING = r"""
import sys, zlib
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.cursors import AcquireLease, OpenCursor
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames

client, name, mapped = connect(sys.argv[1]).client, "r" + sys.argv[2], 0
client.ask(OpenCursor("big", name, EARLIEST))
client.ask(AcquireLease("big", name, "elsewhere/1/" + name, 60_000))
for turn in range(2):
    at = 0
    for block in client.read_blocks(ReadRequest("big", PositionRange(EARLIEST, LATEST), subscription=name)):
        for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
            payload = bytes(frame)[-(2**20 - 192):]
            assert entry_id == at == int.from_bytes(payload[:4], "big")
            assert payload[4:8] == zlib.crc32(payload[8:]).to_bytes(4, "big")
            at += 1
        mapped += block.mapped
    assert at == 96
print(mapped)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("options", ["size=64m", "size=16k", "ro,size=4k"])
def test_everything_is_read_whatever_shared_memory_there_is(tmp_path: Path, options: str) -> None:
    script = tmp_path / "reading.py"
    script.write_text(READING)
    inside = f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", inside, "sh", sys.executable, "-c", HERE, str(tmp_path), str(script)]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root has a /dev/shm of its own")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["statuses"] == [0, 0]
    assert found["taken"] <= 64 * 2**20
    assert found["size"] <= 256 * 2**20
    assert found["misses"] == 96  # blocks that do not fit into shared memory are cached anyway
    assert 3 * 96 <= found["hits"] < 4 * 96  # a block that was located but not placed is sent, and counts again
    assert (found["mapped"] > 0) == (options == "size=64m")
