"""Connection of one process to one broker. It makes the calls of the protocol, and retries them until their deadline.

Rules
- A pickled connection has the address, the store's id and the references to the credentials. A process that unpickles
  the connection opens a gRPC connection of its own, at its first call.
- A call that reaches no broker is retried on a new connection until its deadline. Reason: a killed broker is restarted
  at the same address within a second. A repetition of an action has no second effect.
- If the broker at the address has another store, every call fails. The error names the ids of both stores. A copy has
  the id of its original, so a client of a directory or a bucket also sends its live place.
- After a fork, gRPC does not work in the child: a call would never return. So if the parent has used gRPC, the
  connection refuses every call in the child.
- The child never closes a gRPC connection of its parent, because a close would abort the child.
- The broker of a directory or a bucket can be replaced by a broker at another address or place, with other credentials.
  The connection then continues with that broker (`follow`). It does the same if the files of its credentials were
  deleted, because they are in the cache of a store in a bucket.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import (
    Archived,
    Fenced,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
    Unsupported,
    closed_error,
)
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.location import bucket_of
from pyspark_ledger.ledger.logs.batch import batch_header
from pyspark_ledger.ledger.ownership import live_place, own_token
from pyspark_ledger.ledger.protocol.actions import (
    DECODERS,
    DeleteLedger,
    Hello,
    Welcome,
)
from pyspark_ledger.ledger.protocol.cursors import DeleteCursor
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.protocol.reads import OpenedRead, OpenRead, Places, ReadRequest
from pyspark_ledger.ledger.protocol.request import Empty, Reply, Request
from pyspark_ledger.ledger.transport.discovery import address_token
from pyspark_ledger.ledger.transport.errors import from_flight
from pyspark_ledger.ledger.transport.store_id_header import call_options, require_meant
from pyspark_ledger.ledger.transport.tokens import token_header

_RETRY_MS = 50
_CALL_SECONDS = 120.0
_HELLO_MS_MIN = 1000
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
T = TypeVar("T")

_alive: weakref.WeakSet[BrokerConnection] = weakref.WeakSet()
_inherited: list[flight.FlightClient | None] = []
_connected_in: set[int] = set()  # the id of this process, if it has used gRPC
_forked_from: list[int] = []


class BrokerConnection:
    """Connection to one broker. Any thread may call any method."""

    def __init__(
        self,
        address: str,
        store_id: str = "",
        *,
        credentials: Credentials | None = None,
        deadline_ms: int = 30_000,
        place: str = "",
    ) -> None:
        self.address = address
        self.place = place
        """Live place of the store that the user named; empty if the user named a broker's address."""
        self.credentials = credentials or Credentials()
        self.credentials.require_usable(address)
        self.store_id = store_id
        self.deadline_ms = deadline_ms
        # Function that starts the broker of a directory again and returns its address. Reason: an idle broker exits.
        self.revive: Callable[[], str] | None = None
        self.can_move = False
        """Whether the store's next broker may be on another host. If so, a failed call makes the client look for it."""
        self._lock = threading.RLock()
        self._connection: flight.FlightClient | None = None
        self._token: str | None = None
        self._retired_with = ""
        self.store_path = ""
        """Path of the store's directory, as the broker names it. Unset until `same_host_token` is called."""
        _alive.add(self)

    def __getstate__(self) -> dict[str, Any]:
        pickled = ("address", "store_id", "credentials", "deadline_ms", "place")
        return {name: getattr(self, name) for name in pickled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        address, store_id = state.pop("address"), state.pop("store_id")
        self.__init__(address, store_id, **state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, store {self.store_id!r})"

    def ask(
        self, request: Request[Reply], *, deadline_ms: int | None = None, attempt_seconds: float = _CALL_SECONDS
    ) -> Reply:
        """Send a request and return its reply. Raises the broker's error, or Unavailable.

        A broker that has accepted the call has `attempt_seconds` to reply. If no broker accepts the call, it is retried
        until the deadline. With `can_move`, the call is also retried after another broker took the store over.

        If the broker does not trust this client, the call is retried once. Reason: the store's next broker, with
        another token, may have the address now.
        """
        body = request_body(request)
        until = monotonic_ms() + (self.deadline_ms if deadline_ms is None else deadline_ms)
        repeated = False
        while True:
            try:
                return self._ask_once(request, body, attempt_seconds)
            except (Unavailable, Fenced, Unauthenticated) as error:
                if isinstance(error, Archived):
                    raise
                if self._retired_with:
                    raise closed_error(self._retired_with) from None
                may_have_moved = self.can_move and (isinstance(error, Fenced) or not repeated)
                if not (isinstance(error, Unavailable) or may_have_moved) or monotonic_ms() >= until:
                    raise
                if self.revive is not None and (not repeated or self.can_move):
                    self.address = self.revive()
                repeated = True
                pause(_RETRY_MS)
            except NotFound:
                if repeated and isinstance(request, DeleteLedger | DeleteCursor):
                    return cast("Reply", Empty())  # an earlier attempt succeeded, and its reply was lost
                raise

    def hello(self, *, deadline_ms: int | None = None) -> Welcome:
        """Return the broker's identity.

        Raises Refused if the broker's store has another id than the given id, or than the id of an earlier call. Also
        raises Refused if the broker serves another directory or bucket, such as the original of a copy.
        """
        deadline_ms = self.deadline_ms if deadline_ms is None else deadline_ms
        seconds = max(deadline_ms, _HELLO_MS_MIN) / 1000  # a suspended process accepts a call, and does not reply
        hello = Hello(store_id=self.store_id, place=self.place)
        welcome = self.ask(hello, deadline_ms=deadline_ms, attempt_seconds=seconds)
        if self.place and not welcome.place:  # a broker of an earlier release, which did not compare
            served = Path(welcome.store_path)
            found = live_place(served) if bucket_of(served) or served.is_dir() else "nothing on this host"
            require_meant(self.store_id, self.place, welcome.store_id, found, welcome.store_path)
        self.store_id = welcome.store_id
        return welcome

    def answers_announcements(self) -> bool:
        """Return whether the broker answers announcements of large batches.

        The broker is asked each time, because gRPC connects again by itself, perhaps to a broker of an earlier release.
        """
        return self.hello().announcements

    def locate(self, request: ReadRequest) -> Places:
        """Return the locations of a range's blocks, if this process can map them."""
        token = self.same_host_token()
        places = self.ask(msgspec.structs.replace(request, token=token, partly=True))
        if token and not places.mapped and (fresh := self.same_host_token(stale=token)) != token:
            places = self.ask(msgspec.structs.replace(request, token=fresh, partly=True))
        return places

    def open_read(self, request: OpenRead) -> OpenedRead:
        """Return the range and the schema of a read, and the first blocks' locations if this process can map them."""
        token = self.same_host_token()
        opened = self.ask(msgspec.structs.replace(request, token=token))
        if token and not opened.same_host:
            fresh = self.same_host_token(stale=token)
            opened = self.ask(msgspec.structs.replace(request, token=fresh))
        return opened

    def same_host_token(self, *, stale: str | None = None) -> str:
        """Return the broker's token if this user's run directory has the file; empty on another host.

        `stale` is a token that the broker did not accept. The file is then read again. Reason: a restarted broker has a
        new token, and gRPC reconnects without notice.
        """
        if self._token is None or self._token == stale:
            welcome = self.hello()
            self.store_path = welcome.store_path
            self._token = own_token(Path(welcome.token_path))
        return self._token

    def connection(self) -> flight.FlightClient:
        """Return this process's gRPC connection, created on first use.

        Raises Refused after `retire`, and in a process that was forked from a process with a connection.
        """
        if _forked_from:
            raise Refused(
                f"process {os.getpid()} was forked from {_forked_from[-1]}, which was connected to a broker",
                hint="Start processes with the method 'spawn', or connect only after the fork",
            )
        with self._lock:
            if self._retired_with:
                raise closed_error(self._retired_with)
            if self._connection is None:
                secured = self._from_files(lambda given: given.connection(self.address))
                self._connection = flight.connect(self.address, generic_options=_OPTIONS, **secured)
                _connected_in.add(os.getpid())
                self._token = None
            return self._connection

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        """Return the options of every call of this client."""
        headers = [*self._token_header(), *batch_header()]
        return call_options(self.store_id, self.place, timeout=timeout, headers=headers)

    def _token_header(self) -> list[tuple[bytes, bytes]]:
        """Return the header with the token. Without credentials, it has the token of this user's own broker."""
        return self._from_files(Credentials.header) or token_header("", address_token(self.address))

    def _from_files(self, read: Callable[[Credentials], T]) -> T:
        """Return the result of `read`, which reads files of the credentials. If a file was deleted, get it again."""
        try:
            return read(self.credentials)
        except NotFound:
            if self.revive is None or not self.can_move:
                raise
            self.address = self.revive()
            return read(self.credentials)

    def follow(self, found: BrokerConnection) -> str:
        """Take over credentials and place of a connection to the broker that replaces a lost broker.

        Return the address of that broker.
        """
        if found.address != self.address:
            self.close()
        self.credentials, self.place = found.credentials, found.place
        return found.address

    def disconnect(self, failed: flight.FlightClient) -> None:
        """Forget a failed connection and its token, unless another thread has replaced the connection."""
        with self._lock:
            if self._connection is failed:
                self._connection = None
                self._token = None

    def close(self) -> None:
        """Close the connection. A later call opens a new connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def retire(self, handle: str) -> None:
        """Close the connection for good. Later calls raise Refused, which names `handle`, the closed object."""
        with self._lock:
            self._retired_with = handle
        self.close()

    def _leave_to_parent(self) -> None:
        """Keep the parent's connection open and unused, and create a new lock. Called in the child after a fork."""
        _inherited.append(self._connection)
        self._connection = None
        self._token = None
        self._lock = threading.RLock()

    def _ask_once(self, request: Request[Reply], body: bytes, seconds: float) -> Reply:
        connection = self.connection()
        try:
            (result,) = connection.do_action(flight.Action(request.call.name, body), self.options(seconds))
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            ours = from_flight(error, self.address, self.store_id)
            if isinstance(ours, Unavailable):
                self.disconnect(connection)
                ours = self.credentials.failure(self.address) or ours
            raise ours from None
        answer = request.call.reply
        try:
            reply: Reply = DECODERS[answer].decode(result.body.to_pybytes())
        except JSON_FAULTS as wrong:
            raise Unsupported(
                f"the broker at {self.address} replied to {request.call.name!r} with no valid {answer.__name__}: "
                f"{json_fault(wrong)}",
                hint="Install the same release of pyspark-ledger as the broker's",
            ) from wrong
        return reply


def _after_fork_in_child() -> None:
    _forked_from.extend(_connected_in)
    _connected_in.clear()
    for connection in list(_alive):
        connection._leave_to_parent()  # noqa: SLF001 — a method of this module


os.register_at_fork(after_in_child=_after_fork_in_child)
