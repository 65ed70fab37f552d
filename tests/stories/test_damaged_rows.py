"""Goal: no reader returns a row whose bytes differ from the acknowledged bytes.

Method: sealed ledgers with a flipped bit in a value, so that only the checksum is wrong, or with an entry without a
checksum. Every way to read is tested.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.offload.home_view import open_read_only
from streaming_examples.acts.broker_control import stop_broker_of
from tests.rigs.broker_process import end_all

FIRST, SECOND, THIRD = (bytes([digit]) * 8 for digit in (0x11, 0x22, 0x33))
SIZE = struct.Struct(">I")
DAMAGE = {
    "rows": r"entry \d+:1 of \S*/rows has CRC32C 0x[0-9a-f]{8}, but states 0x[0-9a-f]{8}",
    "messages": r"entry \d+:1 of \S*/messages has CRC32C 0x[0-9a-f]{8}, but states 0x[0-9a-f]{8}",
    "unsummed": r"entry \d+:1 of \S*/unsummed begins with 0000 at byte \d+, expected a checksum",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Store for all tests of this file. The second of three entries of each ledger is damaged."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    store = connect(path)
    files = {}
    for name in DAMAGE:
        ledger = store.ledger(name)
        for value in (FIRST, SECOND, THIRD):
            ledger.append(value if name == "messages" else [{"value": int.from_bytes(value, "little")}])
        (segment,) = ledger.describe().segments
        files[name] = path / "ledgers" / f"{segment.ledger_id}.ledger"
    stop_broker_of(path)
    for name, file in files.items():
        damage(file, unsum if name == "unsummed" else flip)
    yield path
    end_all(path)


def damage(file: Path, change: Callable[[memoryview], None]) -> None:
    data = bytearray(file.read_bytes())
    entries = [frame.entry for frame in walk_segment(data, 0, where=str(file))]
    assert len(entries) == 3
    change(entries[1])
    file.write_bytes(data)


def flip(entry: memoryview) -> None:
    """Flip one bit of the value. Lengths, frames and Arrow's structure do not change."""
    entry[bytes(entry).index(SECOND)] ^= 1


def unsum(entry: memoryview) -> None:
    """Replace the checksum's six bytes by an unknown field of the broker's stamp, as a newer broker may write."""
    (size,) = SIZE.unpack_from(entry, 2)
    checksum = entry[6 + size : 12 + size]
    assert bytes(checksum[:2]) == b"\x0e\x01"
    checksum[:] = b"\x7a\x04\0\0\0\0"
    SIZE.pack_into(entry, 2, size + 6)


def batch(place: Path, name: str, **options: str) -> list[object]:
    source = LedgerSource({"path": name, "store": str(place), **options}, "0.1.0")
    reader = source.batch_reader(source.schema())
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]  # noqa: S301  # our own bytes
    return [value for part in parts for rows in reader.read(part) for value in rows.column("value").to_pylist()]


def stream(place: Path, name: str, **options: str) -> list[object]:
    source = LedgerSource({"path": name, "store": str(place), "startingPosition": "earliest", **options}, "0.1.0")
    reader = source.stream_reader(source.schema())
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, None))
    return [value for part in parts for rows in reader.read(part) for value in rows.column("value").to_pylist()]


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize(
    ("read", "options"),
    [
        (batch, {}),
        (batch, {"mapping": "off"}),
        (batch, {"rescuedDataColumn": "_rescued"}),
        (batch, {"failOnDataLoss": "false"}),
        (stream, {}),
        (stream, {"mapping": "off"}),
        (stream, {"rescuedDataColumn": "_rescued"}),
        (stream, {"failOnDataLoss": "false"}),
        (stream, {"deadLetterLedger": "letters"}),
    ],
)
def test_spark_gets_an_error_whatever_the_options(
    place: Path, name: str, read: Callable[..., list[object]], options: dict[str, str]
) -> None:
    with pytest.raises(Corrupt, match=DAMAGE[name]):
        read(place, name, **options)
    if "deadLetterLedger" in options:
        assert connect(place).ledger("letters").describe().rows == 0


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize(
    "read",
    [
        lambda place, name: connect(place).ledger(name).read(),
        lambda place, name: list(connect(place).ledger(name).follow(wait=0)),
        lambda place, name: connect(place).ledger(name).cursor("c").read(),
        lambda place, name: open_read_only(place).ledger(name).read(),
    ],
    ids=["read", "follow", "cursor", "without a broker"],
)
def test_python_gets_an_error(place: Path, name: str, read: Callable[[Path, str], object]) -> None:
    with pytest.raises(Corrupt, match=DAMAGE[name]):
        read(place, name)


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_before_the_damage_is_read(place: Path, name: str) -> None:
    ledger = connect(place).ledger(name)
    before = ledger.read(end=ledger.end().start.next()).select(["value"])
    first = FIRST if name == "messages" else int.from_bytes(FIRST, "little")
    assert before.equals(pa.table({"value": [first]}))
