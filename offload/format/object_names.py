"""Names of offloaded objects in Pulsar's tiered storage.

The page docs/concepts.md explains the words segment, block, entry and data object.

    <uuid>-ledger-<ledger id>            the data object: the bytes of a sealed segment
    <uuid>-ledger-<ledger id>-index      the block index, written last: if it exists, the data object is complete
    <uuid>-ledger-<ledger id>-entries    the entry index, with the offset of each entry; optional, and unknown to Pulsar

A ledger id is the id of a segment. The UUID identifies one attempt to offload the segment. The segment's record in the
store's metadata has the UUID as two signed 64-bit numbers, its halves.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

from pyspark_ledger.ledger.metadata.offload_records import of_halves

_NAME = re.compile(
    r"(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-ledger-(?P<ledger>\d{1,19})(?P<index>-index)?"
)


ENTRIES_SUFFIX = "-entries"


class ObjectKey(NamedTuple):
    """Key of one attempt to offload one segment."""

    attempt: uuid.UUID
    ledger_id: int

    @property
    def data_name(self) -> str:
        return f"{self.attempt}-ledger-{self.ledger_id}"

    @property
    def index_name(self) -> str:
        return f"{self.data_name}-index"

    @property
    def entries_name(self) -> str:
        """The name of the entry index: the object with the offset of every entry."""
        return f"{self.data_name}{ENTRIES_SUFFIX}"

    @classmethod
    def of_halves(cls, most: int, least: int, ledger_id: int) -> ObjectKey:
        """Return the key of an attempt. `most` and `least` are the signed halves of its UUID."""
        return cls(of_halves(most, least), ledger_id)

    @classmethod
    def parse(cls, name: str) -> tuple[ObjectKey, bool] | None:
        """Return the key in an object's name, and whether the object is a block index. Returns None for other names."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(uuid.UUID(found["uuid"]), int(found["ledger"])), found["index"] is not None
