"""Goal: a ledger keeps the sizes it was made with when the broker's defaults change. Method: a table."""

from __future__ import annotations

import msgspec

from ledger.ledger_policy import LedgerPolicy
from ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from ledger.protocol import CreateLedger
from ledger.segment_format import entry_bytes_max
from ledger.settings import Settings

MB = 1024 * 1024


def policy(request: CreateLedger, settings: Settings, later: Settings) -> LedgerPolicy:
    info = ManagedLedgerInfo()
    for key, value in LedgerPolicy.properties(request, settings).items():
        info.properties.add(key=key, value=value)
    info.properties.add(key="a user's own", value="not a number")
    return LedgerPolicy.of(info, later)


def test_what_was_asked_for_stays_and_the_rest_follows_the_broker() -> None:
    first = Settings()
    later = msgspec.structs.replace(
        first,
        ledgerBlockSizeBytes=8 * MB,
        managedLedgerMaxEntriesPerLedger=7,
        managedLedgerMaxSizePerLedgerMbytes=9,
    )
    assert policy(CreateLedger("a"), first, later) == LedgerPolicy(64 * MB, 7, 9 * MB), "blocks never change"
    asked = CreateLedger("a", block_bytes=512, max_entries_per_ledger=3, max_size_per_ledger_bytes=4096)
    found = policy(asked, first, later)
    assert found == LedgerPolicy(512, 3, 4096)
    assert found.entry_bytes_max == entry_bytes_max(512)
