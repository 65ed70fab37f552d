"""Which store a call is meant for: a header that every call of a client carries, checked before anything is done.

A client greets a broker once, but gRPC connects again without a word. At an address that can be given to somebody
else, such as a TCP port, the broker of another store may answer by then, with a ledger of the same name. So the store's
id goes with each call, and the broker refuses what is not meant for it. A client that knows no id yet sends none.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import flight

from pyspark_ledger.ledger.errors import Refused

HEADER = "ledger-store"
MIDDLEWARE = "wanted-store"


class StoreIdHeader(flight.ServerMiddleware):  # type: ignore[misc]
    """The store that one call is meant for; empty when the client did not say."""

    def __init__(self, store_id: str) -> None:
        self.store_id = store_id


class StoreIdHeaderFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Reads the header of each call."""

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> StoreIdHeader:
        """Only takes the header down: what refuses it must be able to answer an error of ours."""
        values = headers.get(HEADER) or [""]
        return StoreIdHeader(str(values[0]))


def call_options(
    store_id: str, *, timeout: float | None = None, headers: Sequence[tuple[bytes, bytes]] = ()
) -> flight.FlightCallOptions:
    """The options of a call that is meant for a store; `timeout` in seconds."""
    meant = [(HEADER.encode(), store_id.encode())] if store_id else []
    return flight.FlightCallOptions(timeout=timeout, headers=[*meant, *headers])


def require_store(context: flight.ServerCallContext, store_id: str) -> None:
    """Raises Refused, naming both, when a call is meant for another store than ours."""
    wanted = context.get_middleware(MIDDLEWARE)
    if wanted is not None and wanted.store_id and wanted.store_id != store_id:
        raise Refused(
            f"this broker serves store {store_id}, the client wants {wanted.store_id}",
            hint="Another store's broker answers at this address: correct the address",
        )
