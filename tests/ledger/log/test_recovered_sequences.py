"""Goal: damage in a ledger with de-duplication is Corrupt by place and values. Method: flip bytes of a killed store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry
from tests.rigs.log import NOW

_PAYLOAD = b"payload"


@pytest.fixture
def killed(store_path: Path) -> Iterator[Path]:
    """The open segment of a store that was not closed: two acknowledged entries of the producer `p`."""
    store = Store.open(store_path, settings=Settings(), clock=lambda: NOW, create=True)
    log = store.create_ledger(CreateLedger("log", block_bytes=4096, deduplication=True))
    for number in range(2):
        log.append([entry(_PAYLOAD, sequence_id=number)]).result(60)
    (path,) = store_path.rglob("*.ledger")
    yield path
    store.close()


def reopened(path: Path) -> ManagedLedger:
    with closing(Store.open(path, settings=Settings(), clock=lambda: NOW, take_over=OwnerChange.BROKER)) as store:
        return store.ledger("log")


# From the last byte of its payload back through metadata, sizes, checksum and magic to the broker's stamp.
@pytest.mark.parametrize("from_end", range(1, len(entry(_PAYLOAD, sequence_id=0)) + 1))
def test_a_flipped_bit_of_an_acknowledged_entry_is_corrupt_by_its_place(
    killed: Path, store_path: Path, from_end: int
) -> None:
    data = bytearray(killed.read_bytes())
    data[data.index(_PAYLOAD) + len(_PAYLOAD) - from_end] ^= 0x08
    killed.write_bytes(data)
    with pytest.raises(Corrupt, match=rf"{killed} at \d+: entry 0") as raised:
        reopened(store_path)
    assert str(killed) not in Path("/proc/self/maps").read_text(), raised.value


def test_whole_entries_are_known_again(killed: Path, store_path: Path) -> None:
    assert killed.exists()
    assert reopened(store_path).last_sequence_id("p", 0) == 1
