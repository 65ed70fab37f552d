"""Goal: a read gets the same entries from every kind of client. Method: a broker and a read-only store of one log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.read_only import ReadOnlyStore
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client.read_client import ReadClient, block_entries, entries_before
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.rows.message_groups import Entry

NAME = "public/default/persistent/orders"


def entries(client: ReadClient, range_: PositionRange, selection: RowSelection | None = None) -> Iterator[Entry]:
    ((_, blocks),) = client.read_ranges([ReadRequest(NAME, range_)])
    for block in blocks:
        yield from block_entries(block, NAME, selection)


def values(found: Iterator[Entry]) -> list[bytes]:
    return [bytes(entry.payload)[-1:] for _, entry in found]


@pytest.mark.parametrize("kind", ["broker", "read-only"])
def test_entries_of_a_range_forwards_and_backwards(store: LedgerStore, store_path: Path, kind: str) -> None:
    store.client.ask(CreateLedger(NAME, max_entries_per_ledger=3))
    orders = store.ledger(NAME)
    for number in range(8):
        orders.append(b"%d" % number)
    client: ReadClient = store.client if kind == "broker" else ReadOnlyStore(store_path)
    everything = PositionRange(EARLIEST, LATEST)
    assert values(entries(client, everything)) == [b"%d" % number for number in range(8)]
    *_, (last, _) = entries(client, everything)
    before = entries_before(client, NAME, last, lambda range_: entries(client, range_))
    assert values(before) == [b"%d" % number for number in reversed(range(7))]
    first = orders.describe().start
    cursor = orders.cursor("c", EARLIEST)
    cursor.acknowledge_rows([(first.ledger_id, 1)])
    info = orders.client.ask(AskAckedRanges(NAME, "c", everything)).info
    assert values(entries(client, everything, RowSelection(info))) == [
        b"0",
        *(b"%d" % number for number in range(2, 8)),
    ]
