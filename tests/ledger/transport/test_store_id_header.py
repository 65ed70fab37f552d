"""Goal: no call reaches another store than it is meant for. Method: two real brokers, in turn at one port."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from pyspark_ledger.ledger.client.client import Client, client_for
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import (
    ENTRY_SCHEMA,
    AppendCommand,
    CreateLedger,
    DescribeLedger,
    ListLedgers,
)
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.transport.shared_ring import entry_batch

Rig = Any


@pytest.fixture
def swapped(rig: Rig, store_path: Path) -> tuple[Client, Client]:
    """A client whose broker has gone, and one of the other store's broker, which has the port now."""
    first = rig.start("--create", "--address", "grpc://127.0.0.1:0")
    mine = Client(rig.record().remote, rig.record().store_id, deadline_ms=2000)
    mine.ask(CreateLedger("orders"))
    first.kill()
    first.wait()
    rig.store = store_path.parent / "other"
    rig.start("--create", "--address", mine.address)
    other = Client(rig.record().remote, rig.record().store_id)
    assert other.address == mine.address
    other.ask(CreateLedger("orders"))
    return mine, other


@pytest.mark.thorough
def test_neither_action_nor_append_nor_read_nor_part_reaches_another_store(
    swapped: tuple[Client, Client], make_entry: Callable[..., bytes], rig: Rig
) -> None:
    mine, other = swapped
    both = f"serves store {other.store_id}, the client requests store {mine.store_id}"
    with pytest.raises(Refused, match=both):
        mine.ask(DescribeLedger("orders"))
    with pytest.raises(Refused, match=both):
        mine.producer("orders")
    # A producer asks before it sends; one that has not asked is stopped by what goes with its stream.
    command = flight.FlightDescriptor.for_command(msgspec.json.encode(AppendCommand("orders", "astray")))
    writer, reader = mine.connection().do_put(command, ENTRY_SCHEMA, mine.options())
    with pytest.raises((flight.FlightError, pa.ArrowException), match=both):
        _heard_out(writer, reader, entry_batch([make_entry(b"astray")]))
    everything = ReadRequest("orders", PositionRange(EARLIEST, LATEST))
    for mapping in (True, False):
        with pytest.raises(Refused, match=both):
            list(mine.read_blocks(everything, mapping=mapping))
    with pytest.raises(Refused, match=both):
        mine.stage_part("query", 0)
    assert other.ask(DescribeLedger("orders")).entries == 0
    assert list((rig.store / "staging").iterdir()) == []


@pytest.mark.thorough
def test_a_task_is_told_address_and_both_stores(swapped: tuple[Client, Client]) -> None:
    mine, other = swapped
    with pytest.raises(Refused, match=f"store {mine.store_id} at {mine.address}: .* serves store {other.store_id}"):
        client_for(mine.address, mine.store_id)


@pytest.mark.thorough
def test_a_client_that_knows_no_store_learns_it(swapped: tuple[Client, Client]) -> None:
    _, other = swapped
    newcomer = Client(other.address)
    assert newcomer.ask(ListLedgers()).names == ["public/default/persistent/orders"]
    assert newcomer.hello().store_id == newcomer.store_id == other.store_id


def _heard_out(writer: Any, reader: Any, batch: pa.RecordBatch) -> None:
    """Send a batch and end the stream; raises what the broker says."""
    writer.write_batch(batch)
    writer.done_writing()
    while reader.read() is not None:
        pass
    writer.close()
