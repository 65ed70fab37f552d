"""Store in a directory with every kind of content, and the content that must be equal after a move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger, GetSchema, RegisterSchema
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, DescribeCursor, OpenCursor
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.wal.manifest import Move
from pyspark_ledger.offload.move.arrival import reserve
from tests.rigs.bucket_store import REQUESTS
from tests.rigs.cursors import given
from tests.rigs.entry import entry, parsed
from tests.rigs.offload import BLOCK, HOUR, OffloadRig
from tests.rigs.store import commit, stage

STAGED = [b"staged one", b"staged two"]


def filled(directory: Path) -> OffloadRig:
    """Make a store at `directory / "store"` with every kind of content.

    It has sealed and open segments, one of them only in another bucket, and a cursor with single acknowledgements. It
    also has a partitioned ledger, a committed batch, a staged part, a producer, a schema, and a policy.
    """
    rig = OffloadRig(directory / "store", (directory / "elsewhere").as_uri())
    rig.now = system_clock_ms() - 6 * HOUR
    rig.append(*(b"old%d" % number for number in range(4)), name="old")
    rig.offload(name="old")
    rig.now += 5 * HOUR
    rig.upkeep()
    positions = rig.append(*(b"x%d" % number for number in range(7)))
    store = rig.store
    commit(store, 4, [b"run one", b"run two"], run=5)
    stage(store, "q", 5, STAGED, run=6)
    store.cursors.open(OpenCursor("log", "c", EARLIEST))
    store.cursors.acknowledge(
        "log", "c", given(*((at.ledger_id, at.entry_id) for at in (positions[0], *positions[2:5])))
    )
    store.create_partitioned(CreateLedger("parts", partitions=2, block_bytes=BLOCK, max_entries_per_ledger=3))
    for number in range(2):
        for payload in (b"a", b"b", b"c", b"d"):
            store.ledger(f"parts-partition-{number}").append([entry(payload)]).result()
    once = store.create_ledger(CreateLedger("once", deduplication=True, block_bytes=BLOCK))
    once.append([entry(b"first", producer_name="producer", sequence_id=7)]).result()
    store.register_schema(RegisterSchema("log", b'{"type":"STRING"}', -1))
    store.policies.change(ChangePolicy("once", values={"retentionTimeInMinutes": 77}))
    return rig


def reserved(store_id: str, address: str, options: S3Options | None = None) -> None:
    """Reserve a place without the test of the bucket, because another test covers its thousands of puts."""
    place = open_object_store(address, options or S3Options())
    reserve(place, store_id, Move("arriving", "/a/directory", "a host"), REQUESTS, 8, probe=lambda _: None)
    place.close()


def killed(rig: OffloadRig) -> Path:
    """Leave the store as a killed broker does: unsealed, and without a lock."""
    rig.store._lock_held.release()
    return rig.path


def state(store: Store) -> dict[str, Any]:
    """Return the content of a store that a move must not change."""
    found: dict[str, Any] = {"id": store.store_id, "ledgers": store.names()}
    for name in store.log_names():
        log, batch = store.ledger(name), store.ledger(name).committed_batch("q")
        blocks = log.blocks(PositionRange(EARLIEST, LATEST), 300)
        cursors = {}
        for cursor in store.cursors.names(log.name):
            described = store.cursors.describe(DescribeCursor(log.name, cursor))
            whole = PositionRange(EARLIEST, log.snapshot.end)
            info = store.cursors.acked_ranges(AskAckedRanges(log.name, cursor, whole, whole=True)).info
            cursors[cursor] = (described.next_position, described.backlog_entries, info)
        found[name] = (
            log.incarnation,
            log.properties,
            [(position, bytes(stored.payload)) for block in blocks for position, stored in parsed(block)],
            cursors,
            batch and (batch.batch, batch.first, batch.end),
            store.get_schema(GetSchema(name)),
            store.metadata.policies.of_ledger(name),
        )
    return found


def staged(directory: Path) -> list[bytes]:
    """Return the bytes of all staged parts."""
    return [path.read_bytes() for path in sorted((directory / "staging").rglob("*.part"))]


def sends_again(store: Store) -> bool:
    """Return whether a message is stored a second time if its producer sends it again."""
    before = len(state(store)["public/default/persistent/once"][2])
    store.ledger("once").append([entry(b"first", producer_name="producer", sequence_id=7)]).result(30)
    return len(state(store)["public/default/persistent/once"][2]) > before
