"""Conversion of the project's errors to Flight errors and back. The client raises the class that the broker raised.

Rules for an error of Flight or gRPC itself
- The error becomes `Unavailable` if the connection or the broker process is gone, so that callers can retry. Otherwise
  it becomes a `LedgerError` with the first line of its text.
- The new error also names the address and the requested store, and says what the user can do.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.json_errors import JSON_FAULTS
from pyspark_ledger.ledger.protocol.ends import WireError

_ERROR = msgspec.json.Decoder(WireError)


def to_flight(error: LedgerError) -> flight.FlightError:
    body = msgspec.json.encode(WireError.of(error))
    return flight.FlightServerError(str(error), extra_info=body)


def from_flight(error: BaseException, address: str, store_id: str = "") -> LedgerError:
    """Return the project's error for an exception of a Flight call. `store_id` is the requested store, if known."""
    extra = getattr(error, "extra_info", b"")
    if extra:
        try:
            wire = _ERROR.decode(extra)
        except JSON_FAULTS:
            return LedgerError(f"the broker at {address} answered with an error that this client cannot read: {error}")
        return wire.error()
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(
        error,
        (
            flight.FlightUnavailableError,
            flight.FlightTimedOutError,
            flight.FlightCancelledError,
            pa.ArrowIOError,
            OSError,
        ),
    ):
        broker = f"broker of store {store_id}" if store_id else "broker"
        return Unavailable(
            f"no {broker} answers at {address}: {first}", hint="Check that it is running; see broker.log in the store"
        )
    return LedgerError(f"the broker at {address} failed: {first}", hint="See broker.log in the store")
