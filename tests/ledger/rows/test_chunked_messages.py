"""Goal: a chunked message is delivered once, however the log is split. Method: every split of random logs.

The reference is `ChunkAssembler` over the whole log from its beginning, as a Pulsar consumer reads it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.connector.read.ledger.task import LedgerTask, ReadSource, read_rows
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.rows.shape import RowOptions, row_shape
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger
from pyspark_ledger.ledger.protocol.reads import SplitRequest
from pyspark_ledger.ledger.rows.chunked_messages import Entry, WholeMessages
from tests.rigs import entry as entries
from tests.rigs.broker_thread import store

__all__ = ["store"]


def chunk(producer: str, message: str, number: int, count: int, size: int = 6) -> bytes:
    payload = f"{message}{number}".encode().ljust(size, b".")
    return entries.chunk(payload, number, count, message, size * count, producer)


def plain(text: str) -> bytes:
    return entries.entry(text.encode(), producer_name="plain")


def placed(log: list[bytes]) -> list[Entry]:
    """Return the entries, seven per segment."""
    return [(Position(number // 7, number % 7), parse_entry(entry, "")) for number, entry in enumerate(log)]


def delivered(entries: Iterator[Entry]) -> list[tuple[Position, bytes]]:
    return [(position, bytes(entry.payload)) for position, entry in entries]


def expected(log: list[Entry]) -> list[tuple[Position, bytes]]:
    assembler = ChunkAssembler()
    wholes = ((position, assembler.add(entry, "")) for position, entry in log)
    return [(position, bytes(entry.payload)) for position, entry in wholes if entry is not None]


@pytest.mark.parametrize("seed", range(12))
def test_every_message_is_delivered_once_wherever_the_log_is_cut(seed: int) -> None:
    dice = random.Random(seed)
    log = []
    open_messages: dict[str, tuple[str, int, int]] = {}
    for number in range(60):
        producer = f"p{dice.randrange(3)}"
        message, at, count = open_messages.pop(producer, (f"m{number}", 0, dice.randrange(2, 6)))
        log.append(plain(str(number)) if dice.random() < 0.2 else chunk(producer, message, at, count))
        step = dice.choice(
            [1, 1, 1, 1, 1, 0, 2, -1]
        )  # in order; at random, a chunk is repeated, lost, or the message restarts
        at = at if log[-1] == plain(str(number)) else max(at + step, 0)
        if at < count:
            open_messages[producer] = (message, at, count)
    entries = placed(log)
    wanted = expected(entries)
    assert any(len(payload) > 6 for _, payload in wanted) or seed

    def earlier(position: Position) -> Iterator[Entry]:
        return reversed([entry for entry in entries if entry[0] < position])

    for cut in range(len(entries) + 1):
        found = []
        for part in (entries[:cut], entries[cut:]):
            found += delivered(WholeMessages("t", earlier, buffer_bytes_max=dice.choice([0, 12, 1000])).of(iter(part)))
        assert found == wanted


def test_a_task_reads_back_over_ledgers_to_the_first_chunk(store: Path) -> None:
    api = connect(store)
    name = "public/default/persistent/big"
    api.client.ask(CreateLedger(name, max_entries_per_ledger=3))
    log = [chunk("a", "A", 0, 3, 900), plain("x"), chunk("b", "B", 0, 2, 900), chunk("a", "A", 1, 3, 900), plain("y")]
    log += [plain(f"z{number}") for number in range(20)]
    log += [chunk("a", "A", 2, 3, 900), chunk("c", "C", 1, 2, 900), chunk("b", "B", 1, 2, 900)]
    with api.client.producer(name, "p") as producer:
        for entry in log:
            producer.append(entry).result()
    end = api.client.ask(AskEnd(name))
    assert len(api.ledger("big").describe().segments) > 1
    shape = row_shape(None, None, RowOptions(), name)
    source = ReadSource.of(api.client, shape)

    def read(start: Position, stop: Position) -> list[bytes]:
        part = LedgerRange(name, end.incarnation, PositionRange(start, stop))
        batches = list(read_rows(api.client, LedgerTask(source, (part,))))
        return pa.Table.from_batches(batches, shape.schema)["value"].to_pylist()

    whole = read(end.start, end.end)
    assert [len(value) for value in whole] == [1, 1, *[2] * 10, *[3] * 10, 2700, 1800]
    assert whole[-2].startswith(b"A0")
    last = end.end
    cuts = [part.range for part in api.client.ask(SplitRequest(name, PositionRange(EARLIEST, last), 1, 1000)).parts]
    assert [value for cut in cuts for value in read(cut.start, cut.end)] == whole
