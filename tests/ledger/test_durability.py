"""Goal: a ledger that is not synced loses nothing to a kill, only its unsealed end to a loss of power, and says so.

Method: count syncs; leave stores open as a killed broker does; take pages of the file away, as a device that had not
written them yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from ledger import disk
from ledger.entry import encode_entry, parse_entry
from ledger.errors import Corrupt
from ledger.managed_ledger import ManagedLedger
from ledger.position import EARLIEST, LATEST, PositionRange
from ledger.proto.pulsar_messages_pb2 import MessageMetadata
from ledger.protocol import CreateLedger
from ledger.segment_reader import iter_frames
from ledger.settings import Settings
from ledger.store import Store

NOW = 1_700_000_000_000
PAYLOADS = [f"{number}".encode() * 50 for number in range(10, 30)]
Durability = Literal["fsync", "os"]


class Stores:
    """One store after another over one directory; those before are left as a killed broker leaves them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[Store] = []

    def log(self, durability: Durability, entries: int = 100) -> ManagedLedger:
        store = Store.open(self.path, settings=Settings(), clock=lambda: NOW, create=True, take_over=True)
        self.opened.append(store)
        return store.create_ledger(
            CreateLedger("log", exist_ok=True, block_bytes=1024, max_entries_per_ledger=entries, durability=durability)
        )

    def data(self) -> Path:
        return max((self.path / "ledgers").glob("*.ledger"), key=lambda path: int(path.stem))


@pytest.fixture
def stores(store_path: Path) -> Iterator[Stores]:
    stores = Stores(store_path)
    yield stores
    for store in reversed(stores.opened):
        store.close()


def append(log: ManagedLedger, payloads: list[bytes]) -> None:
    for number, payload in enumerate(payloads):
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        log.append([b"".join(encode_entry(metadata, payload))]).result(60)


def contents(log: ManagedLedger) -> list[bytes]:
    found = []
    for block in log.blocks(PositionRange(EARLIEST, LATEST), 300):
        data = block.path.read_bytes()[block.offset : block.offset + block.length]
        for _, frame in iter_frames(data, block.ledger_id, block.first_entry, block.entries):
            found.append(bytes(parse_entry(frame, "an entry").payload))
    return found


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_appends_are_synced_or_not_and_seals_always(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    log = stores.log(durability, entries=10)
    append(log, PAYLOADS[:1])
    synced, real = [0], disk.sync_data

    def counted(fd: int) -> None:
        synced[0] += 1
        real(fd)

    monkeypatch.setattr(disk, "sync_data", counted)
    append(log, PAYLOADS[1:10])
    assert synced[0] == (9 if durability == "fsync" else 0)
    before = synced[0]
    append(log, PAYLOADS[10:11])
    assert synced[0] >= before + 3, "sealing syncs, and so does making the next ledger"
    assert contents(log) == PAYLOADS[:11]
    assert log.describe().properties.get("ledger.durability") == (None if durability == "fsync" else "os")


def test_a_killed_broker_loses_nothing(stores: Stores) -> None:
    append(stores.log("os"), PAYLOADS)
    log = stores.log("os")
    assert contents(log) == PAYLOADS
    append(log, [b"on"])
    assert contents(log) == [*PAYLOADS, b"on"]


@pytest.mark.parametrize("page", range(5))
@pytest.mark.parametrize("cut", [False, True], ids=["page", "end"])
def test_after_a_loss_of_power_what_holds_is_kept_in_order(
    stores: Stores, caplog: pytest.LogCaptureFixture, page: int, cut: bool
) -> None:
    append(stores.log("os"), PAYLOADS)
    data = stores.data()
    whole = data.read_bytes()
    lost = bytes(512) if not cut else bytes(len(whole) - 512 * page - 512)
    data.write_bytes(whole[: 512 * (page + 1)] + lost + whole[512 * (page + 1) + len(lost) :])
    with caplog.at_level(logging.WARNING):
        log = stores.log("os")
    kept = contents(log)
    assert kept == PAYLOADS[: len(kept)]
    assert len(kept) < len(PAYLOADS)
    assert f"{len(PAYLOADS) - len(kept)} of {len(PAYLOADS)} acknowledged entries are lost" in caplog.text
    append(log, [b"on"])
    assert contents(stores.log("os")) == [*kept, b"on"]


def test_a_synced_ledger_is_never_cut(stores: Stores) -> None:
    append(stores.log("fsync"), PAYLOADS)
    data = stores.data()
    whole = data.read_bytes()
    data.write_bytes(whole[:1024] + bytes(512) + whole[1536:])
    with pytest.raises(Corrupt, match="were acknowledged"):
        stores.log("fsync")
