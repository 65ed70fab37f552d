"""A client of one broker: every action as a method, reads and writes through their own small classes.

Rules
- What pickles is the address, the store's id and the names of the credentials. The connection is made by the process
  that first uses it, never before a fork.
- A call that finds no broker is made again, on a new connection, until its deadline: a broker that was killed is back
  at the same address within a second. Every action may be repeated.
- A broker of another store at the address is an error that names both ids, at every call: see `wanted_store`.
- gRPC does not work in a child that was forked from a process that used it. There a call is refused at once, where gRPC
  would hang, and what was inherited is never touched, because letting go of it aborts the process.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from ledger.broker.credentials import Credentials
from ledger.broker.wanted_store import call_options
from ledger.broker.wire_errors import from_flight
from ledger.clock import monotonic_ms, pause
from ledger.cursor_calls import CursorState, MarkDelete, OpenCursor
from ledger.errors import LedgerError, NotFound, Refused, Unavailable, Unsupported
from ledger.json_faults import JSON_FAULTS, json_fault
from ledger.position import Position, PositionRange
from ledger.protocol import (
    ACTIONS,
    DECODERS,
    AskEnd,
    CreateLedger,
    Empty,
    GetSchema,
    Hello,
    LedgerDescription,
    LedgerEnd,
    LedgerNames,
    NameLedger,
    RegisterSchema,
    SchemaVersion,
    Welcome,
)
from ledger.read_calls import Places, ReadRequest, SplitPart, SplitParts, SplitRequest
from ledger.run_calls import CommitRun, CommittedRun
from ledger.wire_names import request_body

if TYPE_CHECKING:
    from ledger.broker.block_source import FrameBlock
    from ledger.broker.part_writer import PartWriter
    from ledger.broker.producer import Producer

_RETRY_MS = 50
_GOING = {"delete", "cursor.delete"}  # which find nothing when they are repeated
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

_alive: weakref.WeakSet[Client] = weakref.WeakSet()
_inherited: list[flight.FlightClient | None] = []
_connected_in: set[int] = set()  # this process, once it has used gRPC
_forked_from: list[int] = []


class Client:
    """One broker, from one process or many. Any thread may call it."""

    def __init__(
        self, address: str, store_id: str = "", *, credentials: Credentials | None = None, deadline_ms: int = 30_000
    ) -> None:
        self.address = address
        self.credentials = credentials or Credentials()
        self.credentials.require_usable(address)
        self.store_id = store_id
        self.deadline_ms = deadline_ms
        # Where it is set, brings the broker of a directory back and answers its address: it leaves when it is idle.
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
        return f"Client({self.address!r}, store {self.store_id!r})"

    def call(
        self,
        action: str,
        request: msgspec.Struct,
        *,
        deadline_ms: int | None = None,
        attempt_seconds: float = _CALL_SECONDS,
    ) -> Any:
        """Make one call of the protocol's table; raises what the broker raised, Unavailable past the deadline.

        The deadline is for finding a broker; one that has taken the call has `attempt_seconds` to answer.
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
                    return Empty()  # the attempt whose answer was lost did it
                raise

    def hello(self, *, deadline_ms: int | None = None) -> Welcome:
        """Who answers; checked against the store's id that this client was made with, or learned."""
        deadline_ms = self.deadline_ms if deadline_ms is None else deadline_ms
        seconds = max(deadline_ms, _HELLO_MS_MIN) / 1000  # a broker that is stopped takes calls and answers none
        hello = Hello(store_id=self.store_id)
        welcome: Welcome = self.call("hello", hello, deadline_ms=deadline_ms, attempt_seconds=seconds)
        self.store_id = welcome.store_id
        return welcome

    def create(self, request: CreateLedger) -> LedgerDescription:
        """Create a managed ledger."""
        done: LedgerDescription = self.call("create", request)
        return done

    def describe(self, name: str) -> LedgerDescription:
        """A managed ledger as it stands."""
        done: LedgerDescription = self.call("describe", NameLedger(name))
        return done

    def delete(self, name: str) -> None:
        """Delete a managed ledger with all that belongs to it."""
        self.call("delete", NameLedger(name))

    def names(self) -> list[str]:
        """The canonical names of all managed ledgers."""
        done: LedgerNames = self.call("list", Empty())
        return done.names

    def end(self, name: str, since: Position | None = None, wait_ms: int = 0) -> LedgerEnd:
        """Where the log ends; with `wait_ms` as soon as that is past `since`."""
        done: LedgerEnd = self.call("end", AskEnd(name, since, wait_ms))
        return done

    def split(self, name: str, range_: PositionRange, target_bytes: int, max_parts: int = 1024) -> list[SplitPart]:
        """Cut a range into parts of about `target_bytes`."""
        done: SplitParts = self.call("split", SplitRequest(name, range_, target_bytes, max_parts))
        return done.parts

    def schema(self, name: str, version: int = -1) -> SchemaVersion:
        """A registered schema; version -1 in the answer when none is."""
        done: SchemaVersion = self.call("schema.get", GetSchema(name, version))
        return done

    def register_schema(self, name: str, arrow_schema: bytes) -> SchemaVersion:
        """Register a schema."""
        done: SchemaVersion = self.call("schema.register", RegisterSchema(name, arrow_schema))
        return done

    def open_cursor(self, request: OpenCursor) -> CursorState:
        """Open or create a durable cursor."""
        done: CursorState = self.call("cursor.open", request)
        return done

    def mark_delete(self, request: MarkDelete) -> CursorState:
        """Acknowledge everything before a position."""
        done: CursorState = self.call("cursor.mark_delete", request)
        return done

    def commit(self, request: CommitRun, *, deadline_ms: int | None = None) -> CommittedRun:
        """Commit staged parts as one run, exactly once."""
        done: CommittedRun = self.call("run.commit", request, deadline_ms=deadline_ms)
        return done

    def locate(self, request: ReadRequest) -> Places:
        """Where the blocks of a range are, if this process can map them."""
        token = self.same_host_token()
        done: Places = self.call("locate", msgspec.structs.replace(request, token=token, partly=True))
        if token and not done.mapped and (fresh := self.same_host_token(stale=token)) != token:
            done = self.call("locate", msgspec.structs.replace(request, token=fresh, partly=True))
        return done

    def producer(self, ledger: str, name: str | None = None, *, max_in_flight_bytes: int = 64 << 20) -> Producer:
        """A pipelined producer of one ledger."""
        from ledger.broker.producer import Producer

        return Producer(self, ledger, name, max_in_flight_bytes=max_in_flight_bytes)

    def read_blocks(self, request: ReadRequest, *, mapping: bool = True) -> Iterator[FrameBlock]:
        """The blocks of a range, in order; mapped where that is possible and `mapping` allows it."""
        from ledger.broker.block_source import read_blocks

        return read_blocks(self, request, mapping=mapping)

    def read_ranges(
        self, requests: Sequence[ReadRequest], *, mapping: bool = True
    ) -> Iterator[tuple[ReadRequest, Iterator[FrameBlock]]]:
        """The blocks of many ranges, one range after the other; places of all are asked for at once."""
        from ledger.broker.range_source import read_ranges

        return read_ranges(self, requests, mapping=mapping)

    def stage_part(self, query: str, batch: int) -> PartWriter:
        """A new staged part of a run."""
        from ledger.broker.part_writer import PartWriter

        return PartWriter(self, query, batch)

    def same_host_token(self, *, stale: str | None = None) -> str:
        """The broker's token, if this process can read it; empty on another host.

        A broker that was started anew has a new token, and gRPC may reconnect without a word: `stale` is the token
        that the broker did not know.
        """
        if self._token is None or self._token == stale:
            path = self.hello().token_path
            try:
                self._token = Path(path).read_text(encoding="ascii")
            except OSError:
                self._token = ""
        return self._token

    def connection(self) -> flight.FlightClient:
        """This process's connection, made when it is first needed; Refused in a child of a process that had one."""
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
        """What goes with every call of this client."""
        return call_options(self.store_id, timeout=timeout, headers=self.credentials.header())

    def disconnect(self, seen: flight.FlightClient) -> None:
        """Drop a connection that failed, unless somebody has replaced it already; its token goes with it."""
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
        """In a forked child: what was inherited is neither used nor let go of, and nobody holds the lock."""
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


_clients: dict[tuple[str, str, Credentials], Client] = {}
_clients_lock = threading.Lock()


def client_for(address: str, store_id: str, credentials: Credentials | None = None) -> Client:
    """This process's client of a broker: connected once, checked for the store's id, and kept.

    Raises Unavailable or Refused, naming the address and the store, when the broker is not there.
    """
    credentials = credentials or Credentials()
    key = (address, store_id, credentials)
    with _clients_lock:
        client = _clients.get(key)
    if client is not None:
        client.credentials = credentials  # of a task, perhaps with a newer token
        return client
    client = Client(address, store_id, credentials=credentials)
    try:
        client.hello()
    except LedgerError as error:
        if address in error.message and store_id in error.message:
            raise
        raise type(error)(f"store {store_id} at {address}: {error.message}", hint=error.hint) from None
    with _clients_lock:
        return _clients.setdefault(key, client)


def _after_fork_in_child() -> None:
    global _clients_lock  # noqa: PLW0603 — a lock held by a thread that the child does not have
    _clients_lock = threading.Lock()
    _forked_from.extend(_connected_in)
    _connected_in.clear()
    for client in list(_alive):
        client._leave_to_parent()  # noqa: SLF001 — the module's own
    # Last: to free a client that still has its connection waits for threads that the child does not have.
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
