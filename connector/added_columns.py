"""What a running query does not see: columns that its ledgers got after it was planned. A part of its progress.

Rule: a query keeps its columns until it is started again, so progress says how many it leaves out, and which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.columns import schema_from_bytes
from ledger.payload_schema.documents import is_payload_schema

if TYPE_CHECKING:
    from connector.ledger_read import LedgerRead

_LEDGERS_MAX = 8  # of which it is asked at each trigger: those of one read have the same columns
_NAMES_MAX = 20


def with_added_columns(report: dict[str, Any] | None, read: LedgerRead) -> dict[str, Any] | None:
    """The report with `columnsAdded` and `columnsNotRead`, where there are any."""
    if report is None:
        return None
    shape = read.shape()
    if shape.raw:
        return report
    added: dict[str, None] = {}
    for newest in read.registered(list(report["ledgers"])[:_LEDGERS_MAX]):
        if newest.version >= 0 and not is_payload_schema(newest.arrow_schema):
            columns = schema_from_bytes(newest.arrow_schema).names
            added |= dict.fromkeys(column for column in columns if column not in shape.known)
    if not added:
        return report
    told = {"columnsAdded": len(added), "columnsNotRead": list(added)[:_NAMES_MAX]}
    return dict(sorted({**report, **told}.items()))
