"""Acknowledgement of any number of entries and rows in one call. The reply is the cursor's state.

The call sends the positions as record batches. Each row has one position.

Rules
- If the broker refuses one position, it acknowledges no position of the call.
- If the client cannot reach the broker, it repeats the call until its deadline. Reason: a repeated acknowledgement has
  no second effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import Archived, Unavailable
from pyspark_ledger.ledger.positions.acknowledge_request import ACKNOWLEDGE_SCHEMA
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand
from pyspark_ledger.ledger.protocol.cursors import CursorState
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.errors import from_flight

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

_LINES_AT_ONCE = 64 * 1024
_RETRY_MS = 200
_STATE = msgspec.msgpack.Decoder(CursorState)


def acknowledge(
    client: Client, command: AcknowledgeCommand, batches: Sequence[pa.RecordBatch], *, deadline_ms: int = 30_000
) -> CursorState:
    """Send record batches with `ACKNOWLEDGE_SCHEMA`. Return the cursor's state when the positions are durable."""
    until = monotonic_ms() + deadline_ms
    while True:
        try:
            return _send(client, command, batches)
        except Unavailable as error:
            if isinstance(error, Archived) or monotonic_ms() >= until:
                raise
        if client.revive is not None:
            client.address = client.revive()
        pause(_RETRY_MS)


def _send(client: Client, command: AcknowledgeCommand, batches: Sequence[pa.RecordBatch]) -> CursorState:
    connection = client.connection()
    descriptor = flight.FlightDescriptor.for_command(request_body(command))
    try:
        writer, reader = connection.do_put(descriptor, ACKNOWLEDGE_SCHEMA, client.options())
        with writer:
            for batch in batches:
                for at in range(0, batch.num_rows, _LINES_AT_ONCE):
                    writer.write_batch(batch.slice(at, _LINES_AT_ONCE))
            writer.done_writing()
            reply = reader.read()
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        ours = from_flight(error, client.address, client.store_id)
        if isinstance(ours, Unavailable):
            client.disconnect(connection)
        raise ours from None
    if reply is None:
        raise Unavailable(
            f"the broker at {client.address} did not reply to an acknowledgement", hint="Send the acknowledgement again"
        )
    return _STATE.decode(reply.to_pybytes())
