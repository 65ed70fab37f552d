"""Header of a call with the id of the query's batch, for the broker's log. `ledger.logs.batch` explains the id."""

from __future__ import annotations

from pyarrow import flight

from pyspark_ledger.ledger.logs.batch import HEADER, BatchId, batch_of_header

MIDDLEWARE = "batch"


class BatchHeader(flight.ServerMiddleware):  # type: ignore[misc]
    """Batch of one call, None without the header."""

    def __init__(self, batch: BatchId | None) -> None:
        self.batch = batch


class BatchHeaderFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Factory that reads the header of each call."""

    def start_call(self, _info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> BatchHeader:
        """Read the header. A header that is no text counts as missing."""
        value = (headers.get(HEADER) or [""])[0]
        return BatchHeader(batch_of_header(value) if isinstance(value, str) else None)


def batch_of(context: flight.ServerCallContext) -> BatchId | None:
    """Return the batch that a call belongs to."""
    middleware = context.get_middleware(MIDDLEWARE)
    return None if middleware is None else middleware.batch
