"""Goal: no command for a copy of a store reaches the original. Method: real brokers and `cp -r`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store, stop_broker
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.ownership import live_name, live_place
from pyspark_ledger.ledger.protocol.actions import CreateLedger, DeleteLedger, ListLedgers
from pyspark_ledger.ledger.transport.discovery import BrokerRecord, socket_path

Rig = Any


@pytest.fixture
def copied(rig: Rig, store_path: Path) -> Iterator[Path]:
    """A copy of a store whose broker runs. The copy has the record of this broker."""
    broker = rig.start("--create")
    rig.client().ask(CreateLedger("orders"))
    shutil.copytree(store_path, store_path.parent / "copy")
    yield store_path.parent / "copy"
    broker.kill()
    broker.wait()


@pytest.mark.thorough
def test_no_command_for_a_copy_reaches_its_original(rig: Rig, copied: Path) -> None:
    pid = rig.client().hello().pid
    commands: list[Callable[[], object]] = [
        lambda: connect_store(copied).ask(DeleteLedger("orders")),
        lambda: connect_store(copied, create=True).ask(DeleteLedger("orders")),
        lambda: connect_store(copied, start=False, deadline_ms=500).ask(DeleteLedger("orders")),
    ]
    for command in commands:
        with pytest.raises(LedgerError, match=str(copied)):
            command()
    assert not stop_broker(copied), "the copy has no broker"
    assert rig.client().hello().pid == pid
    assert rig.client().ask(ListLedgers()).names == ["public/default/persistent/orders"]


def test_a_broker_refuses_each_call_that_means_another_directory(rig: Rig, copied: Path) -> None:
    record = rig.record()
    astray = Client(record.address, record.store_id, deadline_ms=0, place=live_place(copied))
    with pytest.raises(Refused, match=rf"serves {rig.store} \(.*\), the client requests the store at {astray.place}"):
        astray.hello()
    with pytest.raises(Refused, match="both have the id"):
        astray.ask(DeleteLedger("orders"))
    pickled = Client.__new__(Client)
    pickled.__setstate__(astray.__getstate__())
    with pytest.raises(Refused, match="both have the id"):
        pickled.ask(DeleteLedger("orders"))
    assert rig.client().ask(ListLedgers()).names == ["public/default/persistent/orders"]


def test_a_broker_that_states_no_place_is_compared_by_its_directory(
    rig: Rig, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of an earlier release still runs after an upgrade."""
    record, answer = rig.record(), Client.ask

    def earlier(self: Client, request: Any, **options: Any) -> Any:
        place, self.place = self.place, ""
        try:
            welcome = answer(self, request.__class__(store_id=self.store_id), **options)
        finally:
            self.place = place
        return msgspec.structs.replace(welcome, place="")

    monkeypatch.setattr(Client, "ask", earlier)
    Client(record.address, record.store_id, place=live_place(rig.store)).hello()
    with pytest.raises(Refused, match="both have the id"):
        Client(record.address, record.store_id, place=live_place(copied)).hello()


def test_sockets_of_a_store_and_its_copy_have_different_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two, link = tmp_path / "one", tmp_path / "two", tmp_path / "link"
    link.symlink_to(one)
    assert socket_path(live_name(one)) != socket_path(live_name(two))
    assert live_place(link) == live_place(one), "a link is the same directory"
    before = live_place(one)
    one.rename(tmp_path / "renamed")
    assert live_place(tmp_path / "renamed") == before


def test_names_of_stores_in_buckets_have_bucket_prefix_and_endpoint(tmp_path: Path) -> None:
    here, there = (tmp_path / cache / "s3%3A%2F%2Flake%2Fledgers" for cache in ("a", "b"))
    assert live_place(here) == live_place(there) == "s3://lake/ledgers"
    assert live_name(here, "http://one") == live_name(there, "http://one") != live_name(here, "http://two")


def test_a_link_to_a_store_reaches_its_broker(rig: Rig, store_path: Path) -> None:
    rig.start("--create")
    link = store_path.parent / "link"
    link.symlink_to(store_path)
    assert connect_store(link, start=False).hello().pid == rig.record().pid


@pytest.mark.thorough
def test_a_renamed_directory_keeps_its_rows_and_needs_no_command(rig: Rig, store_path: Path) -> None:
    broker = rig.start("--create")
    rig.client().ask(CreateLedger("orders"))
    renamed = store_path.parent / "renamed"
    store_path.rename(renamed)
    assert broker.wait(30) == 2, "its path is gone"
    rig.store = renamed
    assert connect_store(renamed).ask(ListLedgers()).names == ["public/default/persistent/orders"]
    rig.supervised()


@pytest.mark.thorough
def test_copies_that_were_taken_over_have_a_broker_each(rig: Rig, copied: Path) -> None:
    first = rig.record()
    rig.store = copied
    rig.start("--take-over", "moved")  # wrong, and yet no call goes astray
    second = BrokerRecord.read(copied)
    assert second is not None
    assert (second.store_id == first.store_id, second.address == first.address) == (True, False)
    connect_store(copied).ask(DeleteLedger("orders"))
    assert connect_store(rig.store.parent / "store", start=False).ask(ListLedgers()).names == [
        "public/default/persistent/orders"
    ]
    stop_broker(copied)
    assert Path(first.address.removeprefix("grpc+unix://")).exists()
