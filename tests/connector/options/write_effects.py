"""Effects of the options of writes: columns, entries, ledgers, repeated writes, and metadata of rows."""

from __future__ import annotations

import base64
import random
from typing import Any

import pyarrow as pa

from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.connector.write import acknowledge, commit, writers
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor, OpenCursor
from tests.rigs.data_source import Given, OptionDrive, OptionDrives, World, said

ROWS = [{"n": number, "s": f"r{number}"} for number in range(100)]


def new_column(world: World, given: Given) -> object:
    world.ledger(1)
    return said(lambda: world.write([{"n": 1, "s": "x", "more": "y"}], given))


def entries(world: World, given: Given) -> object:
    """Return the entries of a hundred rows of 500 random bytes, of which a codec saves less than a fifth."""
    dice = random.Random(1)
    return _entries(world, given, [base64.b85encode(dice.randbytes(336)).decode() + "x" * 80 for _ in ROWS])


def repeated_text(world: World, given: Given) -> object:
    """Return the entries of a hundred rows with the same text."""
    return _entries(world, given, ["x" * 500] * len(ROWS))


def _entries(world: World, given: Given, texts: list[str]) -> tuple[int, bool]:
    """Return the number of entries, and whether the entries are as long as the rows."""
    world.ledger(1)
    world.write([{**row, "s": text} for row, text in zip(ROWS, texts, strict=True)], given)
    found = world.entries(world.places["name"])[1:-1]
    return len(found), sum(found) > 48_000


def routed(world: World, given: Given) -> object:
    world.ledger(0)
    name = world.places["name"]
    done = said(lambda: world.write([{"n": 1, "s": "x", "__ledger": name}], given, path=""))
    return done, world.broker.store.metadata.exists(f"public/default/persistent/{name}")


def repeated(world: World, given: Given) -> object:
    """Return the rows after the same write was made twice; another application writes the same version."""
    world.ledger(0)
    known: dict[str, Any] = {"txnVersion": "7", "txnAppId": "other"}
    if said(lambda: world.write(ROWS[:1], given)) == "Refused":
        return "Refused"
    world.write(ROWS[:1], given)
    world.write(ROWS[:1], known)
    return len(world.rows({}))


def of_another_history(world: World, given: Given) -> object:
    """Return the rows that a stream has stored after a batch 1 and a batch 0 of the same query."""
    world.ledger(0)
    batch = pa.RecordBatch.from_pylist(ROWS[:2])
    columns = spark_schema(batch.schema, "rows")

    def write(number: int, given: Given) -> None:
        with world.patch.context() as patch:
            patch.setattr(writers, "running_batch", lambda: ("query", number))
            writer = world.source(given).streamWriter(columns, overwrite=False)
            writer.commit([writer.write(iter([batch]))], number)

    write(1, {})
    return said(lambda: write(0, given)), len(world.rows({}))


def said_of_rows(world: World, given: Given) -> object:
    """Whether rows are appended, acknowledged, or given back by a write of their places."""
    world.ledger(3)
    log = world.broker.store.ledger(world.places["name"])
    world.stream({"subscription": "billing", "ackMode": "explicit", "startingPosition": "earliest"})
    places = world.places_of_rows()
    result = said(lambda: world.write(places, given))
    state = world.broker.store.cursors.describe(DescribeCursor(log.name, "billing"))
    return result, state.next_position.entry_id


def deadline(world: World, given: Given) -> object:
    """Return how long a commit and an acknowledgement are tried."""
    world.ledger(1)
    world.broker.store.cursors.open(OpenCursor(world.places["name"], "billing", EARLIEST))
    seen, connection, sent = list[int](), commit.DriverConnection, acknowledge.acknowledge

    def connected(*args: Any, **named: Any) -> Any:
        seen.append(named["deadline_ms"])
        return connection(*args, **named)

    def acknowledged(*args: Any, **named: Any) -> Any:
        seen.append(named["deadline_ms"])
        return sent(*args, **named)

    places = world.places_of_rows()
    with world.patch.context() as patch:
        patch.setattr(commit, "DriverConnection", connected)
        patch.setattr(acknowledge, "acknowledge", acknowledged)
        world.write(ROWS[:1], given)
        world.write(places, {**given, "action": "ack", "subscription": "billing"})
    return seen


DRIVES: OptionDrives = {
    "action": [
        OptionDrive(said_of_rows, ("Refused", 0), {"ack": (None, 3), "nack": (None, 0)}, {"subscription": "billing"})
    ],
    "subscription": [OptionDrive(said_of_rows, ("Refused", 0), {"billing": (None, 3)}, {"action": "ack"})],
    "mergeSchema": [OptionDrive(new_column, "Refused", {"true": None})],
    "entryBytes": [OptionDrive(entries, (1, True), {"1k": (50, True)})],
    "compression": [
        OptionDrive(entries, (1, True), {"zstd": (1, False), "lz4": (1, False)}),
        OptionDrive(repeated_text, (1, False), {"none": (1, True)}),
    ],
    "createLedgers": [OptionDrive(routed, ("NotFound", False), {"true": (None, True)})],
    "txnAppId": [OptionDrive(repeated, "Refused", {"nightly": 2, "other": 1}, {"txnVersion": "7"})],
    "txnVersion": [OptionDrive(repeated, "Refused", {"7": 2}, {"txnAppId": "nightly"})],
    "repeatedBatches": [OptionDrive(of_another_history, ("Refused", 2), {"skip": (None, 2), "append": (None, 4)})],
    "commitTimeoutMs": [OptionDrive(deadline, [60_000] * 2, {"7": [7] * 2})],
}
