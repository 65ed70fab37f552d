"""Writer of a staged part: the rows of one Spark task for one ledger, which no reader sees before the commit.

On the broker's host the writer writes to a file in the store. On another host it sends the rows to the broker, which
writes a part in frames. A *frame* is an entry with its length and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.checksum import Buffer, crc32c
from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ownership import require_trusted
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, StageCommand
from pyspark_ledger.ledger.protocol.announcements import ANNOUNCED_FROM, announcement_of
from pyspark_ledger.ledger.protocol.commits import OpenStaging, PartRun, StagedPart, StagingPlace
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.transport.errors import from_flight
from pyspark_ledger.ledger.transport.part_file import PART_NAME, PartFile, frame_header
from pyspark_ledger.ledger.transport.shared_ring import entry_batch

_STAGED = msgspec.msgpack.Decoder(StagedPart)


class PartWriter:
    """Writer of one part. The task sends the result of `close` in its commit message."""

    def __init__(self, client: BrokerConnection, query: str, batch: int, run: PartRun | None = None) -> None:
        token = client.same_host_token()
        self._sink: PartFile | _RemotePart
        if token:
            self._sink = PartFile(_place(client, query, batch, token), run)
        else:
            self._sink = _RemotePart(client, query, batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.__exit__()

    def write(self, entry: Sequence[Buffer], rows: int) -> None:
        """Write one entry with `rows` rows. `entry` has its bytes as a list of buffers."""
        self._sink.write(entry, rows)

    def rest(self) -> None:
        """Close the file until the next write, to free its descriptor."""
        self._sink.rest()

    def close(self) -> StagedPart:
        """End the part. Return its description."""
        return self._sink.close()


def _place(client: BrokerConnection, query: str, batch: int, token: str) -> StagingPlace:
    """Return the name of the part, and the path of its file. If the broker refuses the token, get the token again.

    Reason: a restarted broker has a new token.
    """
    try:
        place: StagingPlace = client.call("stage.open", OpenStaging(query, batch, token))
    except Refused:
        fresh = client.same_host_token(stale=token)
        if fresh == token:
            raise
        place = client.call("stage.open", OpenStaging(query, batch, fresh))
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


class _RemotePart:
    """Part that is sent to the broker, which writes the file.

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
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise from_flight(error, *self._meant) from None
        self._crc = self._entries = 0

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def rest(self) -> None:
        """Do nothing, because there is no file to close."""

    def write(self, entry: Sequence[Buffer], _rows: int) -> None:
        data = entry[0] if len(entry) == 1 else b"".join(memoryview(buffer) for buffer in entry)
        for buffer in (frame_header(memoryview(data).nbytes, self._entries), data):
            self._crc = crc32c(buffer, self._crc)
        self._entries += 1
        try:
            batch = entry_batch([data])
            if self._announced and batch.nbytes >= ANNOUNCED_FROM:
                self._writer.write_with_metadata(entry_batch([]), announcement_of(batch.nbytes))
                self._reader.read()  # returns None if the broker has ended the stream; then `write_batch` raises
            self._writer.write_batch(batch)
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise from_flight(error, *self._meant) from None

    def close(self) -> StagedPart:
        try:
            self._writer.done_writing()
            reply = self._reader.read()
            self._writer.close()
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise from_flight(error, *self._meant) from None
        part = _STAGED.decode(reply.to_pybytes())
        return msgspec.structs.replace(part, entries=self._entries, crc32c=self._crc)
