"""Goal: bytes that an earlier version stored as a schema are an error with a remedy that works.

Method: store such bytes below a stopped broker, read through it, follow the hint of the error.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.client.schemas import registered_rows
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import RegisterSchema
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.broker_thread import store
from tests.rigs.command import run

__all__ = ["store"]
ROWS = [{"id": 1}]
BAD = {"columns": b"garbage", "mixed": b'{"type":"STRING"}', "first": b"garbage", "values": b"{garbage"}


@pytest.fixture
def damaged(store: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerStore:
    """A store whose ledgers `BAD` have these bytes as their newest schema."""
    monkeypatch.setenv("LEDGER_STORE", str(store))
    made = connect(store)
    made.create("first")
    made.ledger("columns").append(ROWS)
    made.ledger("mixed").append(ROWS)
    made.ledger("values").register_payload_schemas('{"type": "STRING"}')
    stop_broker(store)
    closed = Store.open(store, settings=Settings(), clock=system_clock_ms)
    for name, body in BAD.items():
        closed.metadata.register_schema(canonical_name(name), body, -1 if name == "first" else 0)
    closed.close()
    return connect(store)


@pytest.mark.broker_process
@pytest.mark.thorough
def test_readers_and_writers_go_on_after_the_hint(damaged: LedgerStore, store: Path) -> None:
    columns, first = damaged.ledger("columns"), damaged.ledger("first")
    for use in (
        columns.read,
        columns.schema,
        lambda: first.append(ROWS),
        lambda: open_read_only(store).ledger("columns").schema(),
        lambda: registered_rows(damaged.client.ask, canonical_name("values")),
    ):
        with pytest.raises(Corrupt, match=r"the newest schema of ledger .* is unreadable") as failed:
            use()
        (command,) = re.findall(r"ledger (restore-schema \S+)$", failed.value.hint)
        assert command.split()[1] in map(canonical_name, BAD)
    for name, left in {
        "columns": "version 0",
        "mixed": "version 0",
        "values": "version 0",
        "first": "no schema",
    }.items():
        assert left in run("restore-schema", canonical_name(name))
        assert left in run("restore-schema", name), "a second time it changes nothing"
    first.append(ROWS)
    for ledger in (columns, first, damaged.ledger("mixed")):
        assert ledger.read().to_pylist() == ROWS
    _, values = registered_rows(damaged.client.ask, canonical_name("values"))
    assert values is not None
    assert values.newest == 0


def test_a_client_registers_no_such_bytes(store: Path) -> None:
    ledger = connect(store).ledger("columns")
    ledger.append(ROWS)
    for body in BAD.values():
        with pytest.raises(Refused, match=r"schema|other kind"):
            ledger.client.ask(RegisterSchema(ledger.name, body, 0))
    assert ledger.read().to_pylist() == ROWS
