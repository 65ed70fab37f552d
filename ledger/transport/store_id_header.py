"""gRPC headers with the id and the place of the store that a client means. The broker checks them before the call.

A client checks the store's id in its first call only (`Hello`), and gRPC reconnects without notice. Later the broker of
another store could answer at the same TCP port, and have a ledger of the same name. So every call has the headers, and
a broker refuses a call for another store. A client that does not know the id yet sends no id.

A copy of a store has the same id as its original. So a client of a directory or a bucket also sends the live place of
this directory or bucket (`ledger.ownership.live_place`). A client of a broker's address knows no place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import flight

from pyspark_ledger.ledger.errors import Refused

HEADER, PLACE_HEADER = "ledger-store", "ledger-place"
MIDDLEWARE = "wanted-store"


class StoreIdHeader(flight.ServerMiddleware):  # type: ignore[misc]
    """Store id and live place in the headers of one call; empty without the header."""

    def __init__(self, store_id: str, place: str) -> None:
        self.store_id = store_id
        self.place = place


class StoreIdHeaderFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Factory that reads the header of each call."""

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> StoreIdHeader:
        """Read the headers. The call itself checks them later, so that its reply is a `Refused` with a hint."""
        store_id, place = (str((headers.get(name) or [""])[0]) for name in (HEADER, PLACE_HEADER))
        return StoreIdHeader(store_id, place)


def call_options(
    store_id: str, place: str, *, timeout: float | None, headers: Sequence[tuple[bytes, bytes]]
) -> flight.FlightCallOptions:
    """Return the options of a call to a store; `timeout` in seconds."""
    given = [(name.encode(), value.encode()) for name, value in ((HEADER, store_id), (PLACE_HEADER, place)) if value]
    return flight.FlightCallOptions(timeout=timeout, headers=[*given, *headers])


def require_store(context: flight.ServerCallContext, store_id: str, place: str, path: str) -> None:
    """Raise Refused if a call is meant for another store. `path` is the directory of this broker's store."""
    header = context.get_middleware(MIDDLEWARE)
    if header is not None:
        require_meant(header.store_id, header.place, store_id, place, path)


def require_meant(wanted_id: str, wanted_place: str, store_id: str, place: str, path: str) -> None:
    """Raise Refused if a client means another store. The error names both ids or both places."""
    if wanted_id and wanted_id != store_id:
        raise Refused(
            f"this broker serves store {store_id}, the client requests store {wanted_id}",
            hint="The broker of another store answers at this address: correct the address",
        )
    if wanted_place and wanted_place != place:
        raise Refused(
            f"this broker serves {path} ({place}), the client requests the store at {wanted_place}, and both have the "
            f"id {store_id}",
            hint="One of both is a copy. Stop its broker, then run once: ledger serve --take-over copied --store COPY",
        )
