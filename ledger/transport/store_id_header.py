"""gRPC header with the id of the store that a client means. The broker checks it before it runs the call.

A client checks the store's id in its first call only (`Hello`), and gRPC reconnects without notice. Later the broker of
another store could answer at the same TCP port, and have a ledger of the same name. So every call has the header, and a
broker refuses a call for another store. A client that does not know the id yet sends no header.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import flight

from pyspark_ledger.ledger.errors import Refused

HEADER = "ledger-store"
MIDDLEWARE = "wanted-store"


class StoreIdHeader(flight.ServerMiddleware):  # type: ignore[misc]
    """Store id in the header of one call; empty without the header."""

    def __init__(self, store_id: str) -> None:
        self.store_id = store_id


class StoreIdHeaderFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Factory that reads the header of each call."""

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> StoreIdHeader:
        """Read the header. The call itself checks it later, so that its reply is a `Refused` with a hint."""
        values = headers.get(HEADER) or [""]
        return StoreIdHeader(str(values[0]))


def call_options(
    store_id: str, *, timeout: float | None = None, headers: Sequence[tuple[bytes, bytes]] = ()
) -> flight.FlightCallOptions:
    """Return the options of a call to a store; `timeout` in seconds."""
    store_header = [(HEADER.encode(), store_id.encode())] if store_id else []
    return flight.FlightCallOptions(timeout=timeout, headers=[*store_header, *headers])


def require_store(context: flight.ServerCallContext, store_id: str) -> None:
    """Raise Refused if a call is meant for another store. The error names both store ids."""
    header = context.get_middleware(MIDDLEWARE)
    if header is not None and header.store_id and header.store_id != store_id:
        raise Refused(
            f"this broker serves store {store_id}, the client requests store {header.store_id}",
            hint="The broker of another store answers at this address: correct the address",
        )
