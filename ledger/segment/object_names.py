"""Names and user metadata of a segment's objects in object storage, in the form of Pulsar's tiered storage.

The page docs/concepts.md explains the words segment, block, entry and data object.

    <uuid>-ledger-<ledger id>            the data object: the bytes of a sealed segment
    <uuid>-ledger-<ledger id>-index      the block index, written last: if it exists, the data object is complete
    <uuid>-ledger-<ledger id>-entries    the entry index, with the offset of each entry; optional, and unknown to Pulsar

A ledger id is the id of a segment. The UUID identifies one attempt to offload the segment. The segment's record in the
store's metadata has the UUID as two signed 64-bit numbers, its halves. User metadata are the key-value pairs that S3
stores with an object.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_ledger.ledger.version import __version__

_NAME = re.compile(
    r"(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-ledger-(?P<ledger>\d{1,19})(?P<index>-index)?"
)
ENTRIES_SUFFIX = "-entries"
VERSION_KEY, VERSION = "s3managedledgeroffloaderformatversion", "1"


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
    def parse(cls, name: str) -> tuple[ObjectKey, bool] | None:
        """Return the key in an object's name, and whether the object is a block index. Returns None for other names."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(uuid.UUID(found["uuid"]), int(found["ledger"])), found["index"] is not None


def user_metadata(role: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the user metadata of an object: the pairs that Pulsar's offloader writes, and `extra`."""
    return {
        VERSION_KEY: VERSION,
        "role": role,
        "S3ManagedLedgerOffloaderSoftwareVersion": f"pyspark-ledger-{__version__}",
        "S3ManagedLedgerOffloaderSoftwareGitSha": "none",
        **extra,
    }
