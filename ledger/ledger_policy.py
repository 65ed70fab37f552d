"""What a managed ledger was created with: how large its blocks are and when it rolls over.

Kept as properties of the metadata record, so that they stay as they were when the broker's defaults change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from ledger.protocol import CreateLedger
from ledger.segment_format import entry_bytes_max
from ledger.settings import Settings

_BLOCK_BYTES, _ENTRIES_MAX, _SIZE_MAX = (
    "ledger.blockBytes",
    "ledger.maxEntriesPerLedger",
    "ledger.maxSizePerLedgerBytes",
)
_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LedgerPolicy:
    """A ledger is full at `entries_max` entries or `size_max` bytes; a block has `block_bytes`."""

    block_bytes: int
    entries_max: int
    size_max: int

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry, broker metadata included, that a block can hold."""
        return entry_bytes_max(self.block_bytes)

    @classmethod
    def of(cls, info: ManagedLedgerInfo, settings: Settings) -> Self:
        """The policy that a record states; what it does not state is the broker's default."""
        said = {pair.key: int(pair.value) for pair in info.properties if pair.key in _NAMES}
        return cls(
            said.get(_BLOCK_BYTES, settings.ledgerBlockSizeBytes),
            said.get(_ENTRIES_MAX, settings.managedLedgerMaxEntriesPerLedger),
            said.get(_SIZE_MAX, settings.managedLedgerMaxSizePerLedgerMbytes * _MB),
        )

    @staticmethod
    def properties(request: CreateLedger, settings: Settings) -> dict[str, str]:
        """The properties that a new ledger's record gets; the block size always, it can never change."""
        stated = {
            _BLOCK_BYTES: request.block_bytes or settings.ledgerBlockSizeBytes,
            _ENTRIES_MAX: request.max_entries_per_ledger,
            _SIZE_MAX: request.max_size_per_ledger_bytes,
        }
        return {name: str(value) for name, value in stated.items() if value}


_NAMES = frozenset({_BLOCK_BYTES, _ENTRIES_MAX, _SIZE_MAX})
