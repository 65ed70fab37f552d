"""Goal: an object that is uploaded while its entries are made has the bytes of a segment.

Method: random entries, compared with the file that a task on the broker's host writes.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Refused, Unavailable
from pyspark_ledger.ledger.message.entry import provisional_stamp
from pyspark_ledger.ledger.objects.directory import DirectoryStore
from pyspark_ledger.ledger.objects.object_store import Upload, UploadedPart
from pyspark_ledger.ledger.protocol.commits import PartRun, StagingPlace
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.transport import direct_upload, part_writer
from pyspark_ledger.ledger.transport.direct_upload import DirectPlace, direct_writer
from tests.rigs.entry import entry

KEY = ObjectKey(uuid.uuid4(), 7)
METADATA = {"role": "data"}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "bucket", part_bytes_min=1)


def entries_of(chance: random.Random, count: int, most: int) -> list[bytes]:
    return [entry(chance.randbytes(chance.randint(0, most)), run=1) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_the_object_has_the_bytes_of_a_local_part(
    seed: int, store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    block_bytes, piece = chance.choice([512, 1024, 4096]), chance.choice([100, 1000, 10_000])
    run = PartRun("q", 1, 7, 1, block_bytes, 1_700_000_000_000)
    monkeypatch.setattr(direct_upload, "_PIECE_BYTES", piece)
    monkeypatch.setattr(part_writer, "NO_STAMP", provisional_stamp(run.publish_ms))
    values = entries_of(chance, chance.randint(1, 200), 300)
    path = tmp_path / "part"
    path.touch()
    upload = direct_writer(DirectPlace(store, KEY, METADATA), run)
    with part_writer.PartWriter.to_file(StagingPlace("part", str(path), 0), run) as file:
        for value in values:
            cut = chance.randint(0, len(value))
            upload.write([value[:cut], value[cut:]], 3)
            file.write([value], 3)
        expected = file.close()
    part = upload.close()
    assert store.get(KEY.data_name, part.length).data == path.read_bytes()
    assert store.head(KEY.data_name).metadata == METADATA
    assert (part.entries, part.rows, part.length) == (expected.entries, expected.rows, expected.length)
    assert list(store.uploads()) == []


def test_an_upload_that_is_aborted_leaves_nothing(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_upload, "_PIECE_BYTES", 100)
    upload = direct_writer(DirectPlace(store, KEY, METADATA), PartRun("q", 1, 7, 1, 512, 1))
    for value in entries_of(random.Random(1), 20, 300):
        upload.write([value], 1)
    with pytest.raises(Refused, match="does not fit into a block of 512 bytes"):
        upload.write([entry(b"x" * 600, run=1)], 1)
    upload.abort()
    assert list(store.uploads()) == []
    assert list(store.objects()) == []


def test_the_error_of_a_piece_reaches_the_writer(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_part(upload: Upload, number: int, *_: object) -> UploadedPart:
        raise Unavailable(f"part {number} of {upload.key} is lost")

    monkeypatch.setattr(direct_upload, "_PIECE_BYTES", 100)
    monkeypatch.setattr(direct_upload, "retry", lambda action: action())
    monkeypatch.setattr(store, "put_part", put_part)
    upload = direct_writer(DirectPlace(store, KEY, METADATA), PartRun("q", 1, 7, 1, 512, 1))
    upload.write([entry(b"x" * 300, run=1)], 1)
    with pytest.raises(Unavailable, match=r"part 1 of .* is lost"):
        upload.close()
    upload.abort()
    assert list(store.uploads()) == []
