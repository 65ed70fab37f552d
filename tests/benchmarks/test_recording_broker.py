"""Goal: the base of the append benchmarks gets the size of each sync of the broker. Method: a broker in a process."""

from __future__ import annotations

from pathlib import Path

from benchmarks.append import entry_of
from benchmarks.recording_broker import recording_broker
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import CreateLedger


def test_each_sync_of_an_append_is_recorded(tmp_path: Path) -> None:
    with recording_broker(tmp_path / "store", tmp_path / "record") as (client, record):
        ledger = canonical_name("log")
        client.ask(CreateLedger(ledger))
        record.new()
        with client.producer(ledger) as producer:
            for number in range(3):
                producer.append(*entry_of(b"x" * 1000, number)).result()
        sizes = record.new()
    assert len(sizes) == 3
    assert all(size > 1000 for size in sizes)
