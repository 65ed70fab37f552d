"""Goal: a part is committed only when it is what its writer reported. Method: parts written, then cut, flipped, swapped
and removed byte by byte; names that try to leave the folder."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.protocol.commits import StagedPart
from pyspark_ledger.ledger.transport.part_writer import PartWriter


def numbered() -> Callable[[], str]:
    numbers = iter(range(10**6))
    return lambda: f"{next(numbers):036d}"


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(tmp_path / "staging", numbered())


def write(area: StagingArea, entries: list[bytes], query: str = "q", batch: int = 0) -> StagedPart:
    with PartWriter.to_file(area.place(query, batch)) as part:
        for entry in entries:
            part.write([entry[:1], entry[1:]], 2)
        return part.close()


def test_a_part_is_read_as_it_was_written(area: StagingArea) -> None:
    entries = [b"a", b"", b"c" * 1000]
    part = write(area, entries)
    assert (part.entries, part.rows, part.length) == (3, 6, 3 * 12 + 1001)
    assert [bytes(entry) for entry in area.open(part).entries] == entries
    assert area.open(write(area, [])).entries == []
    assert area.path(part.part).read_bytes()[:13] == struct.pack(">Iq", 1, 0) + b"a"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"length": 24}, "has 25 bytes, its writer reported 24"),
        ({"entries": 3}, "has 2 entries, its writer reported 3"),
        ({"crc32c": 1}, "its writer reported 0x00000001"),
    ],
)
def test_what_its_writer_did_not_say_is_corrupt_with_both_values(
    area: StagingArea, change: dict[str, int], said: str
) -> None:
    part = write(area, [b"a", b""])
    with pytest.raises(Corrupt, match=said):
        area.open(msgspec.structs.replace(part, **change))


def test_every_flipped_byte_and_every_cut_is_seen(area: StagingArea) -> None:
    part = write(area, [b"abc", b"de"])
    path = area.path(part.part)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Corrupt):
            area.open(part)
        path.write_bytes(whole[:at])
        with pytest.raises(Corrupt):
            area.open(part)
    path.write_bytes(whole)
    assert len(area.open(part).entries) == 2


@given(st.binary(max_size=60))
def test_frames_that_are_nonsense_are_corrupt_even_with_the_right_checksum(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _open_nonsense(StagingArea(Path(folder) / "staging", numbered()), data)


def _open_nonsense(area: StagingArea, data: bytes) -> None:
    part = write(area, [])
    area.path(part.part).write_bytes(data)
    part = msgspec.structs.replace(part, length=len(data), crc32c=crc32c(data), entries=1)
    with suppress(Corrupt):
        assert b"".join(area.open(part).entries) == data[12:]


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "0" * 32 + "/0/../../../x.part",
        "0" * 32 + "/0/" + "0" * 36 + ".part\n",
        "0" * 32 + "/-1/" + "0" * 36 + ".part",
        "",
    ],
)
def test_names_that_were_never_given_are_refused(area: StagingArea, name: str) -> None:
    for call in (lambda: area.path(name), lambda: area.remove([name]), lambda: area.open(StagedPart(name, 0, 0, 0, 0))):
        with pytest.raises(Refused, match="not the name of a staged part"):
            call()


def test_a_part_that_is_a_link_is_not_followed(area: StagingArea, tmp_path: Path) -> None:
    part = write(area, [b"abc"])
    path = area.path(part.part)
    path.rename(tmp_path / "real")
    path.symlink_to(tmp_path / "real")
    with pytest.raises((OSError, LedgerError)):
        area.open(part)


def test_sweeping_takes_earlier_batches_of_the_query_and_old_ones_of_any(area: StagingArea, tmp_path: Path) -> None:
    parts = {(query, batch): write(area, [b"x"], query, batch) for query in ("q", "r") for batch in (0, 1, 2)}
    area.sweep_before("q", 2)
    assert {key for key, part in parts.items() if area.path(part.part).exists()} == {
        ("q", 2),
        ("r", 0),
        ("r", 1),
        ("r", 2),
    }
    with pytest.raises(NotFound, match="with 1 entries is missing"):
        area.open(parts["q", 0])
    os.utime(area.path(parts["r", 1].part).parent, (1, 1))
    (tmp_path / "staging" / "a file").write_text("not a query")
    assert len(area.sweep_older(2000)) == 1
    assert not area.path(parts["r", 1].part).exists()
    assert area.path(parts["r", 2].part).exists()
    area.remove([part.part for part in parts.values()])
    area.remove([parts["q", 2].part])


def test_a_query_may_have_any_name_and_a_batch_counts_from_0(area: StagingArea) -> None:
    for query in ("../..", "/", "ü" * 300, "", "a\0b"):
        assert area.open(write(area, [b"x"], query)).entries
    with pytest.raises(Refused, match="batch -1"):
        area.place("q", -1)
