"""Goal: a flipped bit raises an error that names the file, or changes nothing. Method: flip one bit of each byte.

The test covers every byte of headers and records, and a sample of the zeros between them. It damages one file of the
store at a time. Then every answer must equal the answer before, or be a LedgerError with the place of the damage. An
answer must not be shorter or different, or be an exception of Python or of a library. A refused store does not change
its files.

Step 1 covers every byte and takes seven minutes (`make test-slow`). The steps marked `fault` take 20 seconds.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES, Metadata
from pyspark_ledger.ledger.protocol.commits import StagedPart
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from tests.rigs.flips import answers, make

ZEROS = 997  # one of this many zero bytes is flipped


class Damaged:
    """Files of a store, of which one is damaged at a time."""

    def __init__(self, home: Path, staged: StagedPart) -> None:
        self.home = home
        self.staged = staged
        self.copy = home.with_name("copy")
        self.whole = self.read(answers)
        self.records = self.read(dump)

    def read(self, ask: Callable[..., object]) -> object:
        """Return the answers of a copy of the store."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.home, self.copy)
        return ask(self.copy, self.staged)

    def faults(self, name: str, flips: Iterator[tuple[int, int]], ask: Callable[..., object]) -> list[str]:
        """Return the flips of a file that are undetected, or whose error does not name the place."""
        whole, expected = (self.home / name).read_bytes(), self.whole if ask is answers else self.records
        needed = "*" if ask is answers else "metadata.*"
        found = []
        shutil.rmtree(self.copy, ignore_errors=True)
        for at, bit in flips:
            shutil.copytree(self.home, self.copy, ignore=all_but(needed))
            with (self.copy / name).open("r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ 1 << bit]))
            try:
                if ask(self.copy, self.staged) != expected:
                    found.append(f"{name} byte {at} bit {bit}: another answer")
            except LedgerError as error:
                if not is_named(name, str(error)):
                    found.append(f"{name} byte {at} bit {bit}: {error}")
            except Exception as error:  # noqa: BLE001 — such an exception is a failure of the test
                found.append(f"{name} byte {at} bit {bit}: {error!r}")
            shutil.rmtree(self.copy)
        return found


def all_but(pattern: str) -> Callable[[str, list[str]], list[str]]:
    """Return the files to leave out of a copy: those whose names do not match."""

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if not fnmatch(name, pattern) and not (Path(folder) / name).is_dir()]

    return left_out


def is_named(name: str, said: str) -> bool:
    """Return whether an error names the file: an object by its key (its file name here), a segment by its id."""
    path = Path(name)
    if path.suffix == ".ledger" and f"block of segment {path.stem}:" in said:
        return True
    return Path(name).name.removesuffix("-wal").removesuffix(".meta.json") in said


def dump(home: Path, _: StagedPart) -> object:
    """Return all metadata records, as the owner and as a reader see them."""

    def rows(metadata: Metadata) -> dict[str, list[object]]:
        def read(c: sqlite3.Connection) -> dict[str, list[object]]:
            return {table.name: c.execute(f"SELECT * FROM {table.name}").fetchall() for table in TABLES}  # noqa: S608

        return metadata._file.read(read)

    seen = rows(Metadata(MetadataView(home / "store" / "metadata.sqlite", TABLES), lambda: 0))
    metadata = Metadata.open(home / "store" / "metadata.sqlite", lambda: 0)
    try:
        return seen, rows(metadata)
    finally:
        metadata.close()


def flips(data: bytes, step: int) -> Iterator[tuple[int, int]]:
    """Yield a bit of every `step`-th of these bytes: all non-zero bytes and a sample of the zero bytes."""
    chosen = [at for at, byte in enumerate(data) if byte or not at % ZEROS]
    return ((at, at % 8) for at in chosen[::step])


@pytest.fixture(scope="module")
def store() -> Iterator[Damaged]:
    logging.disable(logging.CRITICAL)
    shared = Path("/dev/shm")  # noqa: S108 — thousands of stores are opened, each with an fsync
    base = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    try:
        staged = make(base / "made", base / "left")
        yield Damaged(base / "left", staged)
    finally:
        shutil.rmtree(base)
        logging.disable(logging.NOTSET)


def files(store: Damaged) -> list[str]:
    """Return the store's files and objects, without files that no reader uses."""
    found = [str(path.relative_to(store.home)) for path in store.home.rglob("*") if path.is_file()]
    return sorted(name for name in found if not name.endswith(".lock"))


@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), pytest.param(51, marks=pytest.mark.fault), 301]
)
@pytest.mark.thorough
def test_no_flip_of_the_metadata_goes_unseen(store: Damaged, step: int) -> None:
    for name in ("store/metadata.sqlite", "store/metadata.sqlite-wal"):
        data = (store.home / name).read_bytes()
        faults = store.faults(name, flips(data, step), dump)
        faults += store.faults(name, flips(data, 50 * step), answers)
        assert not faults, "\n".join(faults)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), pytest.param(27, marks=pytest.mark.fault), 101]
)
def test_no_flip_of_any_other_file_goes_unseen(store: Damaged, step: int) -> None:
    faults = []
    for name in files(store):
        if "metadata.sqlite" not in name:
            faults += store.faults(name, flips((store.home / name).read_bytes(), step), answers)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.fault), 7])
def test_a_log_of_any_length_holds_every_commit_or_is_refused_as_it_is(store: Damaged, step: int) -> None:
    """WAL frames that are truncated or damaged: SQLite reads complete, older metadata without an error."""
    log = store.home / "store" / "metadata.sqlite-wal"
    whole = log.read_bytes()
    frame = 24 + int.from_bytes(whole[8:12], "big")
    frames, refused = (len(whole) - 32) // frame, 0
    for number in range(0, frames, step):
        at = 32 + number * frame
        for damaged in (whole[:at], whole[: at + frame // 2], whole[: at + 30] + b"\x55" + whole[at + 31 :]):
            shutil.rmtree(store.copy, ignore_errors=True)
            shutil.copytree(store.home, store.copy)
            (store.copy / "store" / "metadata.sqlite-wal").write_bytes(damaged)
            before = {path.name: path.read_bytes() for path in (store.copy / "store").rglob("*") if path.is_file()}
            try:
                assert dump(store.copy, store.staged) == store.records
            except LedgerError as error:
                refused += "metadata.sqlite" in str(error)
                left = {path.name: path.read_bytes() for path in (store.copy / "store").rglob("*") if path.is_file()}
                left.pop("metadata.sqlite-shm", None)
                assert left == before
    assert refused


def test_a_damaged_broker_json_is_no_record(store: Damaged, tmp_path: Path) -> None:
    path = store.home / "store" / "broker.json"
    record, whole = BrokerRecord.read(path.parent), path.read_bytes()
    assert record is not None
    for at in range(len(whole)):
        for bit in range(8):
            (tmp_path / "broker.json").write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            found = BrokerRecord.read(tmp_path)
            assert found is None or msgspec.structs.replace(found, crc32c=record.crc32c) == record
    for content in (b"", b"\xff" * 20, b"[1]", b'{"address": 1}', b"[" * 100_000):
        (tmp_path / "broker.json").write_bytes(content)
        assert BrokerRecord.read(tmp_path) is None
