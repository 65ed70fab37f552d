"""Header with the store id that a call is meant for. Every client call carries it; the broker checks it first.

A client sends its greeting once, but gRPC reconnects silently. The broker of another store may then answer at the same
address, such as a TCP port, and have a ledger of the same name. The broker therefore refuses calls for another store. A
client that does not know the store's id yet sends none.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import flight

from pyspark_ledger.ledger.errors import Refused

HEADER = "ledger-store"
MIDDLEWARE = "wanted-store"


class StoreIdHeader(flight.ServerMiddleware):  # type: ignore[misc]
    """Store id that one call is meant for; empty if the client sent none."""

    def __init__(self, store_id: str) -> None:
        self.store_id = store_id


class StoreIdHeaderFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Factory that reads the header of each call."""

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> StoreIdHeader:
        """Read the header without a check, so that the call itself can answer with an error of this project."""
        values = headers.get(HEADER) or [""]
        return StoreIdHeader(str(values[0]))


def call_options(
    store_id: str, *, timeout: float | None = None, headers: Sequence[tuple[bytes, bytes]] = ()
) -> flight.FlightCallOptions:
    """Return the options of a call to a store; `timeout` in seconds."""
    meant = [(HEADER.encode(), store_id.encode())] if store_id else []
    return flight.FlightCallOptions(timeout=timeout, headers=[*meant, *headers])


def require_store(context: flight.ServerCallContext, store_id: str) -> None:
    """Raise Refused, naming both store ids, if a call is meant for another store."""
    wanted = context.get_middleware(MIDDLEWARE)
    if wanted is not None and wanted.store_id and wanted.store_id != store_id:
        raise Refused(
            f"this broker serves store {store_id}, the client wants {wanted.store_id}",
            hint="Another store's broker answers at this address: correct the address",
        )
