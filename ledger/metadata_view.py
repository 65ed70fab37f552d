"""The metadata file of a store, looked at by somebody who does not own the store.

Rules: nothing is changed, not even by SQLite; a change that is asked for is refused. While a broker has the file open a
query sees its last committed state. What a killed broker left in the write-ahead log is read from a copy, because only
a writer may bring the two together.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TypeVar

from ledger.errors import NotFound, Refused, Unavailable
from ledger.host import require_open_to_us
from ledger.metadata_file import Change, MetadataFile

T = TypeVar("T")
_BUSY_SECONDS = 10.0


class MetadataView(MetadataFile):
    """One SQLite file; any thread may read it."""

    def __init__(self, path: Path) -> None:
        # Not `super().__init__()`: that opens the file for writing, and starts the thread that writes.
        self.path = path
        if path.parent.is_dir():
            require_open_to_us(path.parent)
        if not path.exists():
            raise NotFound(f"{path} is missing", hint="Name the directory of a store")

    def read(self, query: Change[T]) -> T:
        """Run a query on the last committed state."""
        try:
            return _asked(self.path, query)
        except sqlite3.OperationalError as error:
            if not _log_of(self.path).exists():
                raise Unavailable(f"{self.path}: {error}", hint="Look at the disk of the store") from error
        with tempfile.TemporaryDirectory(prefix="ledger-view-") as scratch:
            copy = Path(scratch) / self.path.name
            for source, target in ((self.path, copy), (_log_of(self.path), _log_of(copy))):
                shutil.copyfile(source, target)
            connection = sqlite3.connect(copy)
            try:
                return query(connection)
            finally:
                connection.close()

    def change(self, change: Change[T]) -> T:  # noqa: ARG002 — the name is the parent's
        """Refused: that is the broker's."""
        raise Refused(f"{self.path} is opened for reading only", hint="Connect to the store's broker to change it")

    def close(self) -> None:
        """Nothing is held."""


def _asked(path: Path, query: Change[T]) -> T:
    # Without a write-ahead log nobody writes, and SQLite would make one to look at the file.
    mode = "mode=ro" if _log_of(path).exists() else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=_BUSY_SECONDS)
    try:
        return query(connection)
    finally:
        connection.close()


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")
