"""Goal: mapped and fetched rows are the same, never beyond the end, and outlive the broker. Method: a real broker,
killed between blocks; places that are not what they were.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client import block_reader
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger, DescribeLedger
from pyspark_ledger.ledger.protocol.cache import AskCache
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, TrimLedger
from pyspark_ledger.ledger.protocol.reads import ReadRequest

Rig = Any
EVERYTHING = ReadRequest("orders", PositionRange(EARLIEST, LATEST), max_block_bytes=3000)


@pytest.fixture
def client(store: LedgerStore, make_entry: Callable[..., bytes]) -> Client:
    """A client of a broker whose `orders` has 100 entries in 4 ledgers."""
    client = store.client
    client.ask(CreateLedger("orders", max_entries_per_ledger=25))
    with client.producer("orders") as producer:
        for i in range(100):
            producer.append(make_entry(b"%03d" % i * 100))
            if i % 25 == 24:
                producer.flush()
    return client


@pytest.mark.parametrize("first", [0, 1, 24])
@pytest.mark.parametrize("max_block_bytes", [1, 3000, 1 << 22])
def test_mapped_and_fetched_blocks_are_the_same_bytes(client: Client, first: int, max_block_bytes: int) -> None:
    wanted = PositionRange(Position(client.ask(DescribeLedger("orders")).segments[0].ledger_id, first), LATEST)
    request = msgspec.structs.replace(EVERYTHING, range=wanted, max_block_bytes=max_block_bytes)
    mapped, fetched = (list(client.read_blocks(request, mapping=mapping)) for mapping in (True, False))
    assert [block.mapped for block in mapped] == [True] * len(mapped)
    assert not any(block.mapped for block in fetched)
    assert [(b.ledger_id, b.first_entry, b.entries) for b in mapped] == [
        (b.ledger_id, b.first_entry, b.entries) for b in fetched
    ]
    assert [bytes(b.frames) for b in mapped] == [bytes(b.frames) for b in fetched]
    assert sum(block.entries for block in mapped) == 100 - first


def test_every_way_of_reading_is_counted(client: Client) -> None:
    size = sum(block.frames.size for block in client.read_blocks(EVERYTHING))
    counted = client.ask(AskCache())
    assert (counted.mapped_entries, counted.mapped_bytes, counted.hits, counted.misses) == (100, size, 0, 100)
    for _ in range(2):
        assert sum(block.frames.size for block in client.read_blocks(EVERYTHING, mapping=False)) == size
    counted = client.ask(AskCache())
    assert (counted.hits, counted.misses, counted.miss_bytes) == (0, 300, 3 * size)
    assert (counted.size_bytes, counted.mapped_entries) == (0, 100)  # nobody else was going to read it


@pytest.mark.broker_process
@pytest.mark.parametrize("mapping", [True, False])
@pytest.mark.thorough
def test_a_broker_killed_between_blocks_costs_the_reader_nothing(rig: Rig, client: Client, mapping: bool) -> None:
    seen: list[tuple[int, int]] = []
    for block in client.read_blocks(EVERYTHING, mapping=mapping):
        seen += [(block.ledger_id, block.first_entry + i) for i in range(block.entries)]
        if len(seen) in range(20, 40):
            os.kill(rig.supervised()[1], 9)
    assert len(seen) == len(set(seen)) == 100
    assert seen == sorted(seen)


def test_nothing_is_read_past_the_end_and_an_empty_range_is_empty(client: Client) -> None:
    end = client.ask(AskEnd("orders")).end
    for mapping in (True, False):
        for start, stop in ((end, LATEST), (end, end), (EARLIEST, EARLIEST)):
            request = msgspec.structs.replace(EVERYTHING, range=PositionRange(start, stop))
            assert list(client.read_blocks(request, mapping=mapping)) == []


def test_another_incarnation_is_refused(client: Client) -> None:
    request = msgspec.structs.replace(EVERYTHING, incarnation="another")
    for mapping in (True, False):
        with pytest.raises(DataLoss, match="the request names incarnation another"):
            list(client.read_blocks(request, mapping=mapping))


def test_who_has_not_read_the_token_gets_no_places(client: Client) -> None:
    for token in ("", "0" * 64):
        request = msgspec.structs.replace(EVERYTHING, token=token)
        assert client.ask(request).blocks == []
    client._token = ""
    assert not any(block.mapped for block in client.read_blocks(EVERYTHING))


def test_a_file_that_is_gone_after_the_answer_is_asked_for_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, locate = [], client.locate

    def locate_and_lose(request: ReadRequest) -> Any:
        asked.append(request.range.start)
        places = locate(request)
        if len(asked) == 1:
            lost = [msgspec.structs.replace(place, path=place.path + ".gone") for place in places.blocks[3:]]
            places = msgspec.structs.replace(places, blocks=[*places.blocks[:3], *lost])
        return places

    monkeypatch.setattr(client, "locate", locate_and_lose)
    blocks = list(client.read_blocks(EVERYTHING))
    assert sum(block.entries for block in blocks) == 100
    assert asked == [EARLIEST, blocks[2].end]
    client.deadline_ms = 100
    monkeypatch.setattr(block_reader, "map_block", _gone)
    with pytest.raises(NotFound, match="nowhere"):
        list(client.read_blocks(EVERYTHING))


def _gone(_: Any) -> Any:
    raise NotFound("nowhere")


def test_a_place_with_another_entry_than_promised_is_corrupt(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    locate = client.locate

    def promise_another(request: ReadRequest) -> Any:
        places = locate(request)
        wrong = msgspec.structs.replace(places.blocks[0], first_entry=5)
        return msgspec.structs.replace(places, blocks=[wrong])

    monkeypatch.setattr(client, "locate", promise_another)
    with pytest.raises(Corrupt, match=r"has entry 0 at offset .*, expected entry 5"):
        list(client.read_blocks(EVERYTHING))


@pytest.mark.thorough
def test_a_reader_that_leaves_in_mid_stream_does_not_keep_the_broker_busy(
    rig: Rig, make_entry: Callable[..., bytes]
) -> None:
    broker = rig.start("--create", "--idle", "3")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    with client.producer("orders") as producer:
        for _ in range(48):
            producer.append(make_entry(bytes(1 << 20)))
    reading = client.read_blocks(EVERYTHING, mapping=False)
    next(reading)
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(5)  # the stream is open: flow control holds the rest of it back
    reading.close()
    assert broker.wait(60) == 0


def test_an_offset_beyond_the_log_is_data_loss_naming_both(client: Client) -> None:
    last = client.ask(DescribeLedger("orders")).segments[-1].ledger_id
    request = msgspec.structs.replace(EVERYTHING, range=PositionRange(Position(last, 10_000), LATEST))
    for mapping in (True, False):
        with pytest.raises(DataLoss, match=f"ends at {last}:25, entries from {last}:10000 were requested"):
            list(client.read_blocks(request, mapping=mapping))


def test_what_is_trimmed_under_a_reader_is_named(client: Client) -> None:
    """The reader has all its places and its first block when the rest goes."""
    request = msgspec.structs.replace(EVERYTHING, max_block_bytes=1)
    first = client.ask(DescribeLedger("orders")).segments[0].ledger_id
    blocks = client.read_blocks(request)
    assert next(blocks).entries == 1
    client.ask(ChangePolicy("orders", values={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}))
    client.ask(TrimLedger("orders"))
    with pytest.raises(DataLoss, match=rf"entries \[{first}:1, .*\) of .*orders' were trimmed by its retention"):
        list(blocks)
    wanted = msgspec.structs.replace(request, range=PositionRange(Position(first, 3), LATEST))
    for mapping in (True, False):
        with pytest.raises(DataLoss, match="were trimmed by its retention"):
            list(client.read_blocks(wanted, mapping=mapping))
