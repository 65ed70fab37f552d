"""Goal: a query continues from a cursor state that is stored in several chunks.

Method: a query in ack mode `explicit` acknowledges some rows of each entry, with an entry limit of 1 KiB. Spark, the
broker and its supervisor are killed at once. The cursor's ledger is inspected, and a copy of it is damaged. Then the
query continues.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.read_only import ReadOnlyStore
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import serve_store
from pyspark_ledger.ledger.cursor.cursor_log import BLOCK_BYTES
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.recovery import recover_segment
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.explicit_app import LEDGER, SUBSCRIPTION, ExplicitApp, finish
from tests.stories.test_spark_acknowledge import Story, fixtures

pytestmark = pytest.mark.feature("cursors with a large state")

ROWS, LIMIT, ENTRY_BYTES = 12_000, 6_000, 1024
CONFIG = f"persistentUnackedRangesMaxEntrySize = {ENTRY_BYTES}\n"


class KeptEntries:
    """Entries of the cursor's ledger in a store without a broker: kinds, payloads and file offsets."""

    def __init__(self, store: Path) -> None:
        view = ReadOnlyStore(store)
        found = view._metadata.cursors.get(canonical_name(LEDGER), SUBSCRIPTION)
        assert found is not None
        self.info = found.cursor.kept_info()
        ledger_id = self.info.cursorsLedgerId
        self.path = data_path(store / "ledgers", ledger_id)
        where = {"store_id": view._context.store_id, "block_bytes": BLOCK_BYTES, "first_row": 0}
        index = recover_segment(self.path, ledger_id, **where, describe=entry_traits).index
        with disk.opened(self.path) as fd:
            self.at = [int(offset) + FRAME_BYTES for offset in index.offsets]
            whole = [disk.read_exact(fd, int(size), at) for size, at in zip(index.lengths, self.at, strict=True)]
        entries = [parse_entry(data, "an entry") for data in whole]
        self.kinds = [
            {one.key: one.value for one in entry.metadata.properties}["ledger.cursor.kind"] for entry in entries
        ]
        self.payloads = [bytes(entry.payload) for entry in entries]
        self.ends = [at + len(data) for at, data in zip(self.at, whole, strict=True)]

    def require_chunks(self) -> list[int]:
        """Return the chunks of the newest full state. Only deltas follow it."""
        footer = len(self.kinds) - 1 - self.kinds[::-1].index("footer")
        assert set(self.kinds[footer + 1 :]) <= {"delta"}
        chunks = [at for at in range(footer) if self.kinds[at] == "chunk" and "footer" not in self.kinds[at:footer]]
        sizes = [len(self.payloads[at]) for at in chunks]
        assert sizes[:-1] == [ENTRY_BYTES] * (len(chunks) - 1)
        assert len(chunks) > 1
        assert self.payloads[footer] == b'{"numParts":%d,"length":%d}' % (len(chunks), sum(sizes))
        assert not self.info.individualDeletedMessages, "the record holds none of it"
        assert not self.info.batchedEntryDeletionIndexInfo
        return chunks


def acknowledged(seen: Path) -> set[int]:
    """Return the rows whose acknowledgement was answered."""
    rows: set[int] = set()
    for path in seen.glob("*.acknowledged"):
        batch = pa.ipc.open_file(path.with_suffix(".delivered")).read_all()
        rows |= set(batch["n"].filter(batch["chosen"]).to_pylist())
    return rows


@pytest.mark.fault
@pytest.mark.spark
def test_a_query_goes_on_from_chunks_after_all_were_killed(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "broker.toml").write_text(CONFIG, encoding="utf-8")
    serving = ["--config", str(tmp_path / "broker.toml")]
    serve_store(store, serving)
    story = Story(store, tmp_path, LIMIT)
    rows = spark_session.range(ROWS).select(f.col("id").alias("n"), f.col("id").cast("string").alias("text"))
    story.write(rows, 1, entryBytes="1k")

    process = story.start()
    try:
        story.wait_for(2, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        fixtures.kill_all(store)
    kept, done = KeptEntries(store), acknowledged(story.seen)
    chunks = kept.require_chunks()
    assert len(done) > LIMIT * 0.2

    # A damaged byte in these chunks raises an error. No older or shorter state is used.
    damaged = tmp_path / "damaged"
    shutil.copytree(store, damaged)
    with (damaged / "ledgers" / kept.path.name).open("r+b") as file:
        file.seek(kept.ends[chunks[0]] - 1)
        file.write(bytes([kept.payloads[chunks[0]][-1] ^ 1]))
    with pytest.raises(Corrupt, match=f"entry {chunks[0]} has CRC32C"):
        Cursor(open_read_only(damaged).ledger(LEDGER), SUBSCRIPTION).state()

    serve_store(store, serving)
    cursor = connect(store).ledger(LEDGER).cursor(SUBSCRIPTION)
    left = set(cursor.read()[0].column("n").to_pylist())
    assert not left & done, "an acknowledged row comes again"
    finish(ExplicitApp(spark_session, store, story.checkpoint, story.seen, 100, ROWS))
    story.require_all(ROWS, times=2)
