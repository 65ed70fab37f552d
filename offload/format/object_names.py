"""Names of offloaded objects, as Pulsar's tiered storage gives them.

    <uuid>-ledger-<ledger id>            the data object: the bytes of a sealed segment
    <uuid>-ledger-<ledger id>-index      its index, written last; where it is, the data is whole
    <uuid>-ledger-<ledger id>-entries    ours: the place of every entry, which is the sealed sidecar; may be missing

The UUID is of one attempt. Its halves stand in the metadata record as signed 64-bit numbers.
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
    """One attempt to offload one ledger."""

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
        """The key of the object with the place of every entry."""
        return f"{self.data_name}{ENTRIES_SUFFIX}"

    @classmethod
    def of_halves(cls, most: int, least: int, ledger_id: int) -> ObjectKey:
        """The key that an offload context with these signed halves names."""
        return cls(of_halves(most, least), ledger_id)

    @classmethod
    def parse(cls, name: str) -> tuple[ObjectKey, bool] | None:
        """The key that an object's name is of, and whether it is an index; None for other objects."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(uuid.UUID(found["uuid"]), int(found["ledger"])), found["index"] is not None
