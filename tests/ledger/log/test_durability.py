"""Goal: a ledger without syncs loses nothing to a kill, only its unsealed end to a loss of power, and reports that
loss.

Method: count syncs; leave stores open as a killed broker does; remove pages from the file, as if the device had not
written them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from tests.rigs.entry import entry
from tests.rigs.log import contents
from tests.rigs.store import Stores

PAYLOADS = [f"{number}".encode() * 50 for number in range(10, 30)]
Durability = Literal["fsync", "os"]


@pytest.fixture
def stores(store_path: Path) -> Iterator[Stores]:
    with closing(Stores(store_path, block_bytes=1024, max_entries_per_ledger=100)) as stores:
        yield stores


def data_of(stores: Stores) -> Path:
    return max((stores.path / "ledgers").glob("*.ledger"), key=lambda path: int(path.stem))


def append(log: ManagedLedger, payloads: list[bytes]) -> None:
    for number, payload in enumerate(payloads):
        log.append([entry(payload, sequence_id=number)]).result(60)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_appends_are_synced_or_not_and_seals_always(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    log = stores.log(durability=durability, max_entries_per_ledger=10)
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
    append(stores.log(durability="os"), PAYLOADS)
    log = stores.log(durability="os")
    assert contents(log) == PAYLOADS
    append(log, [b"on"])
    assert contents(log) == [*PAYLOADS, b"on"]


@pytest.mark.parametrize("page", range(5))
@pytest.mark.parametrize("cut", [False, True], ids=["page", "end"])
def test_after_a_loss_of_power_what_holds_is_kept_in_order(
    stores: Stores, caplog: pytest.LogCaptureFixture, page: int, cut: bool
) -> None:
    append(stores.log(durability="os"), PAYLOADS)
    data = data_of(stores)
    whole = data.read_bytes()
    lost = bytes(512) if not cut else bytes(len(whole) - 512 * page - 512)
    data.write_bytes(whole[: 512 * (page + 1)] + lost + whole[512 * (page + 1) + len(lost) :])
    with caplog.at_level(logging.WARNING):
        log = stores.log(durability="os")
    kept = contents(log)
    assert kept == PAYLOADS[: len(kept)]
    assert len(kept) < len(PAYLOADS)
    assert f"{len(PAYLOADS) - len(kept)} of {len(PAYLOADS)} acknowledged entries are lost" in caplog.text
    append(log, [b"on"])
    assert contents(stores.log(durability="os")) == [*kept, b"on"]


def test_a_synced_ledger_is_never_cut(stores: Stores) -> None:
    append(stores.log(durability="fsync"), PAYLOADS)
    data = data_of(stores)
    whole = data.read_bytes()
    data.write_bytes(whole[:1024] + bytes(512) + whole[1536:])
    with pytest.raises(Corrupt, match="were acknowledged"):
        stores.log(durability="fsync")
