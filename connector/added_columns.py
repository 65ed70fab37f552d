"""What a running query does not see: columns that its ledgers got after it was planned. A part of its progress.

Rule: a query keeps its columns until it is started again, so progress says how many it leaves out, and which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.payload_registry import registered_rows

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
    for name in list(report["ledgers"])[:_LEDGERS_MAX]:
        columns = _registered(read, name)
        added |= dict.fromkeys(column for column in columns if column not in shape.known)
    if not added:
        return report
    told = {"columnsAdded": len(added), "columnsNotRead": list(added)[:_NAMES_MAX]}
    return dict(sorted({**report, **told}.items()))


def _registered(read: LedgerRead, name: str) -> list[str]:
    columns, _ = read.connection.call(lambda client: registered_rows(client, name))
    return [] if columns is None else list(columns.names)
