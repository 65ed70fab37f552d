"""Goal: many concurrent readers of a small cache all get the bytes that were written. Method: a real broker with a
cache of 1 MiB over a log of 6. Processes read overlapping ranges, mapped and sent, and compare each byte.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.cache.eviction.registry import POLICIES
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger
from pyspark_ledger.ledger.protocol.cache import AskCache

Rig = Any
ENTRIES, SIZE = 600, 10_000

READING = """
import random, sys
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.protocol.cursors import AcquireLease, MarkDelete, OpenCursor, ResetCursor
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.ownership import process_identity
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.segment.reader import iter_frames
from pathlib import Path

store, seed = Path(sys.argv[1]), int(sys.argv[2])
dice, name, client = random.Random(seed), f"r{seed}", connect_store(store)
ledger = client.ask(DescribeLedger("orders")).segments[0].ledger_id
client.ask(OpenCursor("orders", name, EARLIEST))
client.ask(AcquireLease("orders", name, process_identity() + name, 60_000))
for _ in range(40):
    first = dice.randrange(%(entries)d)
    end = first + dice.randrange(1, %(entries)d - first + 1)
    range_ = PositionRange(Position(ledger, first), Position(ledger, end))
    request = ReadRequest("orders", range_, subscription=name, max_block_bytes=dice.choice([30_000, 300_000]))
    seen = first
    for block in client.read_blocks(request, mapping=dice.random() < 0.5):
        for number, frame in iter_frames(block.frames, ledger, block.first_entry, block.entries):
            assert number == seen, (number, seen)
            assert bytes(parse_entry(frame, str(number)).payload) == (b"%%07d " %% number) * %(words)d, number
            seen += 1
    assert seen == end, (seen, end)
    if dice.random() < 0.3:
        client.ask(MarkDelete("orders", name, Position(ledger, dice.randrange(end))))
    if dice.random() < 0.2:
        client.ask(ResetCursor("orders", name, Position(ledger, first)))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("policy", "copied"), [("cursor-distance", 0), ("segmented", 1)])
def test_processes_read_every_byte_through_a_small_cache(
    rig: Rig, make_entry: Callable[..., bytes], policy: str, copied: int
) -> None:
    assert policy in POLICIES
    client = connect_store(rig.store, create=True)
    rig.supervised()
    client.ask(CreateLedger("orders"))
    client.ask(ChangeSetting("managedLedgerCacheSizeMB", 1))
    client.ask(ChangeSetting("managedLedgerCacheLocalFilesSizeMB", 1))
    client.ask(ChangeSetting("cacheEvictionPolicy", policy))
    client.ask(ChangeSetting("managedLedgerCacheCopyEntries", copied))
    client.ask(ChangeSetting("managedLedgerMaxReadsInFlightSizeInMB", 1))
    with client.producer("orders") as producer:
        for number in range(ENTRIES):
            producer.append(make_entry((b"%07d " % number) * (SIZE // 8)))
    code = READING % {"entries": ENTRIES, "words": SIZE // 8}
    reading = [_started(rig.store, code, seed) for seed in range(3)]
    for process in reading:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
    counted = client.ask(AskCache())
    assert counted.hits > 0 < counted.evicted
    assert counted.size_bytes <= 2**20 == counted.limit_bytes
    assert counted.inflight_read_bytes == counted.reads_waiting == 0


def _started(store: Path, code: str, seed: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, str(store), str(seed)], stderr=subprocess.PIPE)
