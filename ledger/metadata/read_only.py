"""Read-only view of a store's metadata file, for a process that does not own the store.

Rules
- Neither this module nor SQLite changes a file (`ledger.database.file_checks`). A change is refused.
- The whole file is checked when it is opened, and each record when it is read.
- Metadata that lack their newest transactions (for example a restored copy) are refused, unless `behind` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pyspark_ledger.ledger.database.database import Change, MetadataFile
from pyspark_ledger.ledger.database.file_checks import read_committed, require_sound_file
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.ownership import require_trusted
from pyspark_ledger.ledger.transport.moved_store import require_not_moved

T = TypeVar("T")
_ATTEMPTS = 3


class MetadataView(MetadataFile):
    """Metadata file that is opened for reading. Any thread may read."""

    def __init__(self, path: Path, tables: Sequence[RecordTable], *, behind: bool = False) -> None:
        # Not `super().__init__()`, which opens the file for writing and starts the writer thread.
        self.path = path
        require_trusted(path.parent)
        require_not_moved(path.parent)
        if not path.exists():
            raise NotFound(f"{path} is missing", hint="Name the directory of a store")
        for attempt in range(_ATTEMPTS):
            try:
                require_sound_file(path, tables, behind=behind)
            except Corrupt:  # while a broker starts or ends, a sound file can fail the check, too
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                break

    def read(self, query: Change[T]) -> T:
        return read_committed(self.path, query)

    def change(self, change: Change[T]) -> T:  # noqa: ARG002 — the parent class has this name
        """Raise Refused, because only the broker changes records."""
        raise Refused(f"{self.path} is opened for reading only", hint="Connect to the store's broker to change it")

    def close(self) -> None:
        """Do nothing, because no file stays open."""
