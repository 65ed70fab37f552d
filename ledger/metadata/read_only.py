"""The metadata file of a store, looked at by somebody who does not own the store.

Rules: nothing is changed, not even by SQLite (`ledger.database.file_checks`); a change that is asked for is refused.
The file is checked as a whole when it is opened, and each record when it is read. One of an earlier format is read in
a copy in memory, which is migrated. Only who asks for it sees metadata that lack commits (`behind`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pyspark_ledger.ledger.database.database import Change, MetadataFile, in_this_format
from pyspark_ledger.ledger.database.file_checks import read_committed, require_sound_file
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.metadata.records import complete_records
from pyspark_ledger.ledger.ownership import require_open_to_us

T = TypeVar("T")
_LOOKS = 3


class MetadataView(MetadataFile):
    """One SQLite file; any thread may read it."""

    def __init__(self, path: Path, tables: Sequence[RecordTable], *, behind: bool = False) -> None:
        # Not `super().__init__()`: that opens the file for writing, and starts the thread that writes.
        self.path = path
        self._tables = tables
        if path.parent.is_dir():
            require_open_to_us(path.parent)
        if not path.exists():
            raise NotFound(f"{path} is missing", hint="Name the directory of a store")
        for look in range(_LOOKS):
            try:
                require_sound_file(path, tables, behind=behind)
            except Corrupt:  # a broker that began or ended meanwhile is another reason to find no sense in a file
                if look == _LOOKS - 1:
                    raise
            else:
                break

    def read(self, query: Change[T]) -> T:
        return read_committed(
            self.path, lambda connection: in_this_format(connection, self._tables, complete_records, query)
        )

    def change(self, change: Change[T]) -> T:  # noqa: ARG002 — the name is the parent's
        """Refused: that is the broker's."""
        raise Refused(f"{self.path} is opened for reading only", hint="Connect to the store's broker to change it")

    def close(self) -> None:
        """Nothing is held."""
