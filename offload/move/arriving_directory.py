"""Directory into which a store moves. A rename of the metadata file makes the directory a store, as the last step.

    moving.json          {"address": "s3://…", "store_id": …, "nonce": …}; the nonce, a random id of the move, is empty
                         until all files are in place
    moving/              records and files that are being built from the log
    ledgers/, staging/   downloaded segments, and later also the built files
    metadata.sqlite      moved from `moving/` as the last file

Rules
- A directory without `moving.json` must be empty. A directory with `moving.json` belongs to the move that the file
  names.
- All files are durable before the nonce is written. The bucket is marked as left only after that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.database.commit_number import number_path
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.transport.moved_store import METADATA, MovedStore

_NOTE, _BUILT = "moving.json", "moving"
_FOLDERS = ("ledgers", "staging")
_LOCK = "lock"


class ArrivingDirectory:
    """Target directory of one move. The caller must have the lock of the directory, except for `require_free`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.built = path / _BUILT
        """Directory in which the store's records and files are built from the log."""

    def require_free(self, address: str) -> None:
        """Raise Refused if the directory has files, except those of an earlier run of the same move."""
        note = self.note()
        if note is not None and note.address != address:
            raise Refused(
                f"the store of {note.address} is being moved to {self.path}, and not the store of {address}",
                hint=f"Run the command for {note.address} again, or choose an empty directory",
            )
        if note is None and self.path.exists():
            # A crash during the write of the note leaves a scratch file. Its name begins with the note's name.
            names = sorted(found.name for found in self.path.iterdir())
            used = [name for name in names if name != _LOCK and not name.startswith(f"{_NOTE}.")]
            if used:
                raise Refused(f"{self.path} is not empty, it has {used[0]}", hint="Choose an empty or new directory")

    def note(self) -> MovedStore | None:
        """Return the note (`moving.json`), which names the bucket of the store. None before and after a move."""
        try:
            return msgspec.json.decode((self.path / _NOTE).read_bytes(), type=MovedStore)
        except FileNotFoundError:
            return None
        except JSON_FAULTS as fault:
            raise Corrupt(
                f"{self.path / _NOTE} cannot be read: {json_fault(fault)}", hint="Empty the directory, and move again"
            ) from None

    def write_note(self, note: MovedStore) -> None:
        """Write the note (`moving.json`), which names the bucket of the store. The note is durable on return."""
        disk.replace_file(self.path / _NOTE, msgspec.json.encode(note))

    @property
    def has_store(self) -> bool:
        """Whether the metadata are in place. Then `end` is the only missing step of the move."""
        return (self.path / METADATA).exists()

    def segment_folder(self) -> Path:
        """Return the folder of the segments, and create it if it is missing."""
        disk.make_directory(self.path / "ledgers")
        return self.path / "ledgers"

    def settle(self, ledger_ids: Collection[int]) -> None:
        """Move the built files to their places, delete files of other segments, and fsync everything."""
        shutil.rmtree(self.path / "staging", ignore_errors=True)
        for name in _FOLDERS:
            for file in [found for found in (self.built / name).rglob("*") if found.is_file()]:
                place = self.path / file.relative_to(self.built)
                disk.make_directory(place.parent)
                file.replace(place)
            disk.make_directory(self.path / name)
        for file in (self.path / "ledgers").iterdir():
            if not (file.suffix in (".ledger", ".index") and file.stem.isdecimal() and int(file.stem) in ledger_ids):
                file.unlink()
        self._sync()

    def end(self) -> None:
        """Move the metadata into place, which makes the directory a store. May be called again."""
        number = number_path(self.path / METADATA).name
        if not self.has_store:
            (self.built / number).replace(self.path / number)
            disk.sync_directory(self.path)
            (self.built / METADATA).replace(self.path / METADATA)
            disk.sync_directory(self.path)
        shutil.rmtree(self.built, ignore_errors=True)
        (self.path / _NOTE).unlink(missing_ok=True)
        disk.sync_directory(self.path)

    def _sync(self) -> None:
        """Fsync all files and their directories."""
        for folder, _, files in os.walk(self.path):
            for name in files:
                with disk.opened(Path(folder) / name) as fd:
                    os.fsync(fd)
            disk.sync_directory(Path(folder))
        disk.sync_names_above(self.path)
