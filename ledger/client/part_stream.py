"""Writer of a task's staged part: a file in the store on the broker's host, or a stream to the broker.

The broker of another host writes the part itself, in frames. A *frame* is an entry with its length and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ownership import require_trusted
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, StageCommand
from pyspark_ledger.ledger.protocol.announcements import ANNOUNCED_FROM, announcement_of
from pyspark_ledger.ledger.protocol.commits import OpenStaging, PartRun, StagedPart, StagingPlace
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.transport.errors import from_flight
from pyspark_ledger.ledger.transport.part_writer import PART_NAME, PartCounts, PartWriter
from pyspark_ledger.ledger.transport.shared_ring import entry_batch

_STAGED = msgspec.msgpack.Decoder(StagedPart)
_FAULTS = (pa.ArrowException, flight.FlightError, OSError)


def staged_writer(client: BrokerConnection, query: str, batch: int, run: PartRun | None) -> PartWriter:
    """Return the writer of a new staged part. With a `run`, the part gets segment layout if the broker wants it."""
    token = client.same_host_token()
    if token:
        return PartWriter.to_file(_place(client, query, batch, token), run)
    return PartWriter(PartStream(client, query, batch), None, b"", "")


def _place(client: BrokerConnection, query: str, batch: int, token: str) -> StagingPlace:
    """Return the name of the part, and the path of its file. If the broker refuses the token, get the token again.

    Reason: a restarted broker has a new token.
    """
    try:
        place = client.ask(OpenStaging(query, batch, token))
    except Refused:
        fresh = client.same_host_token(stale=token)
        if fresh == token:
            raise
        place = client.ask(OpenStaging(query, batch, fresh))
    _require_place(place, Path(client.store_path), client)
    return place


def _require_place(place: StagingPlace, store: Path, client: BrokerConnection) -> None:
    """Raise Refused if a place is no part of the client's own store. A planted broker could name any file of the user.

    The check does not cover links below the store: `PartFile` follows none.
    """
    require_trusted(store)
    record = BrokerRecord.read(store)
    known = record is not None and record.store_id == client.store_id
    if not known or not PART_NAME.fullmatch(place.part) or place.path != str(store / "staging" / place.part):
        raise Refused(
            f"the broker at {client.address} names {place.path!r} as part {place.part!r} of {store}, which is no "
            f"staged part of store {client.store_id}",
            hint="Another program answers at this address: connect to the directory of the store",
        )


class PartStream:
    """Stream of a part to the broker, which writes the file.

    The description has the client's own number of entries and checksum. So the commit fails if the broker's file
    differs from the sent bytes.
    """

    def __init__(self, client: BrokerConnection, query: str, batch: int) -> None:
        self._meant = client.address, client.store_id
        self._announced = client.answers_announcements()
        command = StageCommand(query, batch, announced=self._announced)
        descriptor = flight.FlightDescriptor.for_command(request_body(command))
        connection = client.connection()
        try:
            self._writer, self._reader = connection.do_put(descriptor, ENTRY_SCHEMA, client.options())
        except _FAULTS as error:
            raise from_flight(error, *self._meant) from None

    def append(self, buffers: Sequence[Buffer], _size: int, _final: int) -> None:
        _, *entry = buffers  # the broker writes the frame itself
        data = entry[0] if len(entry) == 1 else b"".join(memoryview(buffer) for buffer in entry)
        try:
            batch = entry_batch([data])
            if self._announced and batch.nbytes >= ANNOUNCED_FROM:
                self._writer.write_with_metadata(entry_batch([]), announcement_of(batch.nbytes))
                self._reader.read()  # returns None if the broker has ended the stream; then `write_batch` raises
            self._writer.write_batch(batch)
        except _FAULTS as error:
            raise from_flight(error, *self._meant) from None

    def overwrite(self, _offset: int, _data: bytes) -> None:
        raise AssertionError("a part in frames has no byte that changes")

    def rest(self) -> None:
        """Do nothing, because there is no file to close."""

    def close(self, counts: PartCounts) -> StagedPart:
        try:
            self._writer.done_writing()
            reply = self._reader.read()
            self._writer.close()
        except _FAULTS as error:
            raise from_flight(error, *self._meant) from None
        part = _STAGED.decode(reply.to_pybytes())
        return msgspec.structs.replace(part, entries=counts.entries, crc32c=counts.crc32c)

    def abort(self) -> None:
        with suppress(*_FAULTS):  # the error that ended the part is more useful
            self._writer.close()
