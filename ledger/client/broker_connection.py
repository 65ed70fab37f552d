"""Connection to one broker from one process: calls of the protocol's table, retried until their deadline.

Rules
- What pickles is the address, the store's id and the names of the credentials. The process that first uses the
  connection creates it, never before a fork.
- A call that finds no broker is retried on a new connection until its deadline. Reason: a killed broker restarts at the
  same address within a second. Every action may be repeated.
- A broker of another store at the address is an error of every call, which names both ids: see `store_id_header`.
- gRPC does not work in a child that was forked from a process with gRPC. There a call is refused at once, where gRPC
  would hang. Inherited connections are never touched, because their release aborts the process.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import monotonic_ms, pause
from pyspark_ledger.ledger.errors import NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.protocol.actions import (
    ACTIONS,
    DECODERS,
    Empty,
    Hello,
    Welcome,
)
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.protocol.reads import OpenedRead, OpenRead, Places, ReadRequest
from pyspark_ledger.ledger.transport.errors import from_flight
from pyspark_ledger.ledger.transport.store_id_header import call_options

_RETRY_MS = 50
_GOING = {"delete", "cursor.delete"}  # a repeated call finds nothing to do
_CALL_SECONDS = 120.0
_HELLO_MS_MIN = 1000
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
T = TypeVar("T", bound=msgspec.Struct)

_alive: weakref.WeakSet[BrokerConnection] = weakref.WeakSet()
_inherited: list[flight.FlightClient | None] = []
_connected_in: set[int] = set()  # the process id, once the process has used gRPC
_forked_from: list[int] = []


class BrokerConnection:
    """Connection to one broker. Any thread may call it."""

    def __init__(
        self, address: str, store_id: str = "", *, credentials: Credentials | None = None, deadline_ms: int = 30_000
    ) -> None:
        self.address = address
        self.credentials = credentials or Credentials()
        self.credentials.require_usable(address)
        self.store_id = store_id
        self.deadline_ms = deadline_ms
        # If set, restarts the broker of a directory, which exits when it is idle, and returns its address.
        self.revive: Callable[[], str] | None = None
        self._lock = threading.Lock()
        self._connection: flight.FlightClient | None = None
        self._token: str | None = None
        _alive.add(self)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("address", "store_id", "credentials", "deadline_ms")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        address, store_id = state.pop("address"), state.pop("store_id")
        self.__init__(address, store_id, **state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, store {self.store_id!r})"

    def call(
        self,
        action: str,
        request: msgspec.Struct,
        *,
        deadline_ms: int | None = None,
        attempt_seconds: float = _CALL_SECONDS,
    ) -> Any:
        """Make one call of the protocol's table. Raises the broker's error, Unavailable after the deadline.

        The deadline is for finding a broker. A broker that has accepted the call has `attempt_seconds` to answer.
        """
        body = request_body(request)
        until = monotonic_ms() + (self.deadline_ms if deadline_ms is None else deadline_ms)
        repeated = False
        while True:
            try:
                return self._call_once(action, body, attempt_seconds)
            except Unavailable:
                if monotonic_ms() >= until:
                    raise
                if self.revive is not None and not repeated:
                    self.address = self.revive()
                repeated = True
                pause(_RETRY_MS)
            except NotFound:
                if repeated and action in _GOING:
                    return Empty()  # the attempt with the lost answer succeeded
                raise

    def hello(self, *, deadline_ms: int | None = None) -> Welcome:
        """Return the broker's identity, checked against the store's id that this client was created with or learned."""
        deadline_ms = self.deadline_ms if deadline_ms is None else deadline_ms
        seconds = max(deadline_ms, _HELLO_MS_MIN) / 1000  # a suspended broker accepts calls and answers none
        hello = Hello(store_id=self.store_id)
        welcome: Welcome = self.call("hello", hello, deadline_ms=deadline_ms, attempt_seconds=seconds)
        self.store_id = welcome.store_id
        return welcome

    def locate(self, request: ReadRequest) -> Places:
        """Return the locations of a range's blocks, if this process can map them."""
        token = self.same_host_token()
        done: Places = self.call("locate", msgspec.structs.replace(request, token=token, partly=True))
        if token and not done.mapped and (fresh := self.same_host_token(stale=token)) != token:
            done = self.call("locate", msgspec.structs.replace(request, token=fresh, partly=True))
        return done

    def open_read(self, request: OpenRead) -> OpenedRead:
        """Return what a read needs before its blocks, and their locations if this process can map them."""
        token = self.same_host_token()
        done: OpenedRead = self.call("read.open", msgspec.structs.replace(request, token=token))
        if token and not done.same_host:
            fresh = self.same_host_token(stale=token)
            done = self.call("read.open", msgspec.structs.replace(request, token=fresh))
        return done

    def same_host_token(self, *, stale: str | None = None) -> str:
        """Return the broker's token if this process can read it; empty on another host.

        A restarted broker has a new token, and gRPC may reconnect silently: `stale` is the token that the broker did
        not know.
        """
        if self._token is None or self._token == stale:
            path = self.hello().token_path
            try:
                self._token = Path(path).read_text(encoding="ascii")
            except OSError:
                self._token = ""
        return self._token

    def connection(self) -> flight.FlightClient:
        """Return this process's connection, created on first use. Raises Refused in a fork of a process that
        had one.
        """
        if _forked_from:
            raise Refused(
                f"process {os.getpid()} was forked from {_forked_from[-1]}, which was connected to a broker",
                hint="Start processes by 'spawn', or connect after the fork only",
            )
        with self._lock:
            if self._connection is None:
                secured = self.credentials.connection(self.address)
                self._connection = flight.connect(self.address, generic_options=_OPTIONS, **secured)
                _connected_in.add(os.getpid())
                self._token = None
            return self._connection

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        """Return the options of every call of this client."""
        return call_options(self.store_id, timeout=timeout, headers=self.credentials.header())

    def disconnect(self, seen: flight.FlightClient) -> None:
        """Drop a failed connection and its token, unless another thread has replaced it."""
        with self._lock:
            if self._connection is seen:
                self._connection = None
                self._token = None

    def close(self) -> None:
        """Drop the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _leave_to_parent(self) -> None:
        """In a forked child, leave inherited connections untouched and reset the lock."""
        _inherited.append(self._connection)
        self._connection = None
        self._token = None
        self._lock = threading.Lock()

    def _call_once(self, action: str, body: bytes, seconds: float) -> Any:
        connection = self.connection()
        try:
            (result,) = connection.do_action(flight.Action(action, body), self.options(seconds))
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            ours = from_flight(error, self.address, self.store_id)
            if isinstance(ours, Unavailable):
                self.disconnect(connection)
                ours = self.credentials.failure(self.address) or ours
            raise ours from None
        answer = ACTIONS[action][1]
        try:
            return DECODERS[answer].decode(result.body.to_pybytes())
        except JSON_FAULTS as wrong:
            raise Unsupported(
                f"the broker at {self.address} answered {action!r} with no {answer.__name__}: {json_fault(wrong)}",
                hint="Connect with the release of the broker",
            ) from wrong


def _after_fork_in_child() -> None:
    _forked_from.extend(_connected_in)
    _connected_in.clear()
    for connection in list(_alive):
        connection._leave_to_parent()  # noqa: SLF001 — the module's own


os.register_at_fork(after_in_child=_after_fork_in_child)
