"""Values that `repr` and a notebook show of a store, a ledger or a cursor.

Rules
- A display never raises an error. It shows the error instead. After a failed call it makes no further call. Exception:
  after the error of a damaged cursor, the display still reads other partitions.
- A call waits at most `_SECONDS` for its reply. A private broker that exited because it was idle is started again.
- The number of calls is limited. The view of a store has at most `_LEDGERS` ledgers. The view of a ledger has at most
  `_PARTITIONS` partitions, and at most `_CURSORS` cursors of each partition.
- Backlogs are estimated, so that the broker reads no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.display.views import CursorView, LedgerView, StoreView
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.position import LATEST, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.protocol.actions import DescribeLedger, LedgerDescription, ListLedgers
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, DescribeCursor
from pyspark_ledger.ledger.protocol.request import Reply, Request

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

_SECONDS = 3.0
_DEADLINE_MS = 1_000  # after this time a call is not retried
_LEDGERS, _PARTITIONS, _CURSORS = 20, 16, 12
_SEGMENTS = 1_000  # if a ledger has more segments, the view of its store shows none of them


def ledger_view(client: Client, name: str) -> LedgerView:
    """Return the view of a ledger with its partitions and cursors."""
    described = None
    try:
        described = _described(client, name)
        if not described.partitions:
            return _log_view(client, described)
        parts = [part.name for part in described.partitions[:_PARTITIONS]]
        return LedgerView(name, described, partitions=tuple(_log_view(client, _described(client, at)) for at in parts))
    except Exception as error:  # noqa: BLE001 — a display never raises
        return LedgerView(name, described, problem=_reason(error))


def cursor_view(client: Client, ledger: str, cursor: str) -> LedgerView:
    """Return the view of a cursor's ledger with only this cursor."""
    try:
        described = msgspec.structs.replace(_described(client, ledger), cursors=[cursor])
        return LedgerView(ledger, described, (_cursor(client, ledger, cursor),))
    except Exception as error:  # noqa: BLE001 — a display never raises
        return LedgerView(ledger, problem=_reason(error))


def store_view(client: Client, location: str) -> StoreView:
    """Return the view of a store with its first ledgers, without their cursors."""
    ledgers: list[LedgerView] = []
    count = 0
    try:
        names = _ask(client, ListLedgers())
        count = len(names.names)
        for name in names.names[:_LEDGERS]:
            described = _described(client, name, lists=False)
            if not described.partitions and described.segment_count <= _SEGMENTS:
                described = _described(client, name)
            ledgers.append(LedgerView(name, described))
        return StoreView(location, tuple(ledgers), count)
    except Exception as error:  # noqa: BLE001 — a display never raises
        return StoreView(location, tuple(ledgers), count, _reason(error))


def _log_view(client: Client, described: LedgerDescription) -> LedgerView:
    names = described.cursors[:_CURSORS]
    try:
        return LedgerView(described.name, described, tuple(_cursor(client, described.name, name) for name in names))
    except Unavailable:
        raise
    except LedgerError as error:  # after the error of a damaged cursor, the ledger and other partitions are still shown
        return LedgerView(described.name, described, problem=_reason(error))


def _cursor(client: Client, ledger: str, cursor: str) -> CursorView:
    state = _ask(client, DescribeCursor(ledger, cursor, precise=False))
    leased = bool(state.lease_holder) and state.lease_until_ms > system_clock_ms()
    if not state.acknowledged_ranges:
        return CursorView(state, leased=leased)
    wanted = AskAckedRanges(ledger, cursor, PositionRange(state.next_position, LATEST))
    info = _ask(client, wanted).info
    ranges = decode_info(info, f"the acknowledged ranges of cursor {cursor!r}").acknowledged.runs() if info else ()
    return CursorView(state, tuple(ranges), leased)


def _described(client: Client, name: str, *, lists: bool = True) -> LedgerDescription:
    return _ask(client, DescribeLedger(name, lists))


def _ask(client: Client, request: Request[Reply]) -> Reply:
    return client.ask(request, deadline_ms=_DEADLINE_MS, attempt_seconds=_SECONDS)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, LedgerError) else f"{type(error).__name__}: {error}"
