"""Goal: hostile names are refused by name at once; a name that a store has already still serves.

Method: a real store and its broker behind the Python API; times are not measured, but a scan of 10 MB would be felt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.cursor import cursors
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.metadata import partition_records
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger, StopBroker
from pyspark_ledger.ledger.protocol.cursors import DeleteCursor, OpenCursor
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.broker_thread import served

HUGE = "x" * 10_000_000
HIDDEN = ["\u202e", "\u202a", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c", "\u200b", "\ufeff"]
USES: dict[str, Callable[[LedgerStore, str], object]] = {
    "create": lambda store, name: store.create(name),
    "create partitioned": lambda store, name: store.create_partitioned(name, 2),
    "append": lambda store, name: store.ledger(name).append(b"1"),
    "cursor": lambda store, name: store.ledger("orders").cursor(name),
    "property": lambda store, name: store.ledger("orders").change_properties({name: "1"}),
}
LOOKUPS: dict[str, Callable[[LedgerStore, str], object]] = {
    "ledger": lambda store, name: store.ledger(name),
    "delete": lambda store, name: store.delete(name),
    "producer": lambda store, name: store.ledger("orders").producer(name),
    "removed property": lambda store, name: store.ledger("orders").change_properties({}, [name]),
    "policy": lambda store, name: store.namespace_policy("public/default", **{name: 1}),
    "forgotten policy": lambda store, name: store.namespace_policy("public/default", [name]),
    "namespace": lambda store, name: store.namespace_policy(name),
    "store": lambda _, name: connect(name),
    "address": lambda _, name: connect(f"grpc://{name}:1"),
    "read-only store": lambda _, name: open_read_only(name),
    "authority": lambda _, name: connect("grpc+tls://host:1", ca=f"/{name}"),
    "bucket": lambda store, name: store.offload_to(name),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerStore]:
    with served(tmp_path_factory.mktemp("hostile") / "store") as store:
        store.create("orders")
        yield store


@pytest.mark.parametrize("use", USES | LOOKUPS)
def test_a_name_of_ten_megabytes_is_measured_and_not_repeated(store: LedgerStore, use: str) -> None:
    with pytest.raises(LedgerError, match=r"at most|length <=") as refused:
        (USES | LOOKUPS)[use](store, HUGE)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("use", USES | LOOKUPS)
def test_a_lone_surrogate_is_refused_before_it_is_encoded(store: LedgerStore, use: str) -> None:
    with pytest.raises(Refused, match=r"U\+D800"):
        (USES | LOOKUPS)[use](store, "a\ud800b")


@pytest.mark.parametrize("char", HIDDEN)
@pytest.mark.parametrize("use", USES)
def test_a_hidden_character_in_a_new_name_is_refused_by_its_code_point(store: LedgerStore, use: str, char: str) -> None:
    with pytest.raises(Refused, match=rf"U\+{ord(char):04X}") as refused:
        USES[use](store, f"a{char}b")
    assert char not in str(refused.value)
    assert store.names() == ["public/default/persistent/orders"]


def test_a_null_is_no_part_of_a_path(store: LedgerStore) -> None:
    for use in ("store", "address", "read-only store", "authority"):
        with pytest.raises(Refused, match=r"U\+0000"):
            LOOKUPS[use](store, "a\0b")


def test_the_broker_refuses_what_a_client_did_not(store: LedgerStore) -> None:
    with pytest.raises(Refused, match=r"U\+202E"):
        store.client.ask(CreateLedger("a\u202eb"))
    with pytest.raises(Refused, match="length <= 4096"):
        store.client.ask(CreateLedger(HUGE))
    with pytest.raises(Refused, match="is reserved for the broker"):
        store.client.ask(CreateLedger("parts", partitions=2, properties={"ledger.own": "true"}))
    assert store.names() == ["public/default/persistent/orders"]


def test_a_name_that_a_store_has_already_is_opened_read_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make the store as an earlier release did, without a look at characters."""
    odd, path = "a\u202eb", tmp_path / "store"
    with monkeypatch.context() as earlier:
        earlier.setattr(partition_records, "require_new_name", lambda _: None)
        made = Store.open(path, settings=Settings(), clock=system_clock_ms, create=True)
        made.create_ledger(CreateLedger(odd))
        made.close()
    client = connect_store(str(path), create=False, start=True, credentials=Credentials())
    store = LedgerStore(client)
    ledger = store.ledger(odd)
    ledger.append([{"id": 1}])
    assert ledger.read().to_pylist() == [{"id": 1}]
    assert store.ledger(odd).describe().name.endswith(odd)
    store.delete(odd)
    with pytest.raises(NotFound, match=r"a\\u202eb"):
        store.delete(odd)
    client.ask(StopBroker())


def test_a_cursor_that_a_ledger_has_already_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path / "store", settings=Settings(), clock=system_clock_ms, create=True)
    store.create_ledger(CreateLedger("orders"))
    odd = OpenCursor("orders", "a\u202eb", EARLIEST)
    with monkeypatch.context() as earlier:
        earlier.setattr(cursors, "require_new_cursor_name", lambda *_: None)
        store.cursors.open(odd)
    assert not store.cursors.open(odd).created
    store.cursors.delete(DeleteCursor("orders", odd.cursor))
    with pytest.raises(Refused, match=r"U\+202E"):
        store.cursors.open(odd)
    store.close()
