"""Client of one broker: requests, reads, producers and staged parts.

`ledger.client.broker_connection` makes and retries the calls, and refuses them in forked processes. A *block* is a part
of a segment file with whole entries.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.client.end_watch import EndWatch
from pyspark_ledger.ledger.client.kept_producer import KeptProducers
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.protocol.commits import PartRun
from pyspark_ledger.ledger.protocol.reads import Places, ReadRequest

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.block_reader import FrameBlock
    from pyspark_ledger.ledger.client.producer import Producer
    from pyspark_ledger.ledger.transport.part_writer import PartWriter


class Client(BrokerConnection):
    """Client of one broker. It can be pickled to another process. Any thread may call any method."""

    def __init__(
        self,
        address: str,
        store_id: str = "",
        *,
        credentials: Credentials | None = None,
        deadline_ms: int = 30_000,
        place: str = "",
    ) -> None:
        super().__init__(address, store_id, credentials=credentials, deadline_ms=deadline_ms, place=place)
        self.kept = KeptProducers()
        self.producers: weakref.WeakSet[AbstractContextManager[object]] = weakref.WeakSet()
        """Open producers of messages."""
        self.unclosed: weakref.finalize[Any, Any] | None = None
        """Warning that a user has not closed the store of this client."""
        self.watch = EndWatch(self.ask)

    def close(self) -> None:
        """End the producers that `append` has kept open, and close the connection."""
        self.kept.close()
        super().close()

    def retire(self, handle: str) -> None:
        """Close all producers and the connection for good.

        Waits until the messages of the producers are durable. Raises the error of a producer after all is closed.
        """
        if self.unclosed is not None:
            self.unclosed.detach()
        with ExitStack() as closing:
            closing.callback(super().retire, handle)
            closing.callback(self.kept.retire)
            for producer in list(self.producers):
                closing.push(producer)

    def producer(self, ledger: str, name: str | None = None, *, max_in_flight_bytes: int = 64 << 20) -> Producer:
        """Open a producer of one ledger. It sends further entries before earlier entries are acknowledged."""
        from pyspark_ledger.ledger.client.producer import Producer

        return Producer(self, ledger, name, max_in_flight_bytes=max_in_flight_bytes)

    def read_blocks(
        self, request: ReadRequest, *, mapping: bool = True, places: Places | None = None
    ) -> Iterator[FrameBlock]:
        """Yield the blocks of a range, in order. With `mapping`, a client on the broker's host maps the files."""
        from pyspark_ledger.ledger.client.block_reader import read_blocks

        return read_blocks(self, request, mapping=mapping, places=places)

    def read_ranges(
        self, requests: Sequence[ReadRequest], *, mapping: bool = True
    ) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
        """Yield each request with the blocks of its range. One call locates many ranges."""
        from pyspark_ledger.ledger.client.block_reader import read_ranges

        return read_ranges(self, requests, mapping=mapping)

    def _leave_to_parent(self) -> None:
        _inherited.append(self.kept)
        self.kept = KeptProducers()
        self.producers = weakref.WeakSet()
        self.watch = EndWatch(self.ask)
        super()._leave_to_parent()

    def stage_part(self, query: str, batch: int, run: PartRun | None = None) -> PartWriter:
        """Open a new staged part: a file with the rows of one task of a batch.

        `run` has the values of the run's marker. Only with `run` can a large part become a segment of its ledger.
        """
        from pyspark_ledger.ledger.client.part_stream import staged_writer

        return staged_writer(self, query, batch, run)


_inherited: list[KeptProducers] = []
_clients: dict[tuple[str, str, Credentials], Client] = {}
_clients_lock = threading.Lock()
Prepare = Callable[[Client], None]


def client_for(
    address: str, store_id: str, credentials: Credentials | None = None, prepare: Prepare | None = None
) -> Client:
    """Return this process's client of a broker. The first call connects and checks the store's id.

    `client_for` calls `prepare` with a new client before the client's first call.

    Raises Unavailable if no broker answers, or Refused if the broker has another store. The error names the address and
    the store.
    """
    credentials = credentials or Credentials()
    key = (address, store_id, credentials)
    with _clients_lock:
        client = _clients.get(key)
    if client is not None:
        if client.address == address:
            client.credentials = credentials  # a later task can have a newer token
        return client
    client = Client(address, store_id, credentials=credentials)
    if prepare is not None:
        prepare(client)
    try:
        client.hello()
    except LedgerError as error:
        if address in error.message and store_id in error.message:
            raise
        raise type(error)(f"store {store_id} at {address}: {error.message}", hint=error.hint) from None
    with _clients_lock:
        return _clients.setdefault(key, client)


def _after_fork_in_child() -> None:
    global _clients_lock  # noqa: PLW0603 — a thread that the child does not have may hold the old lock
    _clients_lock = threading.Lock()
    # `clear` must free no connection, because a freed connection would wait for threads that the child does not have.
    # The fork handler of `broker_connection` has run before, and references all connections of the parent.
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
