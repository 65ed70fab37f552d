"""The ledger without Spark: append rows, read them, follow them, keep a place among them.

    store = connect("./ledger-store")
    orders = store.ledger("orders")
    orders.append([{"id": 1, "total": 9.5}])
    orders.read()                               # a pyarrow.Table of everything
    for table in orders.tail(): ...             # what is there, then what comes
    billing = orders.cursor("billing")
    table, position = billing.read()
    billing.acknowledge(position)

Rules: the first append of rows registers their columns, later ones must have the same; a ledger first given bytes holds
Pulsar messages and nothing else. An append returns when it is durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from ledger.arrow_payload import arrow_metadata, decode_rows, encode_rows
from ledger.clock import monotonic_ms, new_id, system_clock_ms
from ledger.columns import ColumnFit, require_columns, schema_bytes, schema_from_bytes
from ledger.cursor_calls import (
    AskHoles,
    CursorProperties,
    Holes,
    MarkDelete,
    NameCursor,
    OpenCursor,
    ResetCursor,
    SkipEntries,
)
from ledger.entry import Buffer, ParsedEntry, encode_entry, is_arrow, is_marker, parse_entry
from ledger.errors import Refused
from ledger.ledger_life import LedgerLife, change_policy
from ledger.life_calls import ChangePolicy
from ledger.names import canonical_name
from ledger.offload_target import offload_to
from ledger.partitions import require_partitions
from ledger.payload_registry import register_payload_schemas, registered_rows, require_columns_registered
from ledger.payload_schema.documents import parse_schemas
from ledger.position import EARLIEST, Position, PositionRange
from ledger.proto.pulsar_messages_pb2 import MessageMetadata
from ledger.protocol import AskEnd, CreateLedger, Empty, GetSchema, NameLedger, ReadRequest, RegisterSchema
from ledger.row_selection import RowSelection
from ledger.segment_reader import iter_frames

if TYPE_CHECKING:
    from ledger.broker.client import Client
    from ledger.broker.message_producer import MessageProducer
    from ledger.cursor_calls import CursorState
    from ledger.life_calls import Policies
    from ledger.partitioned_ledger import PartitionedLedger
from ledger.protocol import LedgerDescription, LedgerEnd

_RAW = pa.schema([pa.field("value", pa.binary())])
_ENTRY_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024
_ALIGNMENT = 64
_TAIL_MS = 10_000  # one question of a reader that waits
_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://", "grpc+unix://")


def store_location(given: str | os.PathLike[str] | None = None) -> str:
    """Where the store is: what is given, else `LEDGER_STORE`, else `./ledger-store`. Directories become absolute."""
    if given is not None and not isinstance(given, str | os.PathLike):
        raise Refused(f"the store is {given!r}, expected a directory or a broker's address")
    text = os.fspath(given) if given else os.environ.get("LEDGER_STORE") or "ledger-store"
    text = text.removeprefix("file://")
    if text.startswith(_SCHEMES):
        _require_address(text)
        return text
    if "://" in text:
        raise Refused(
            f"store {text!r} is neither a directory of this host nor a broker's address",
            hint=f"An address begins with {', '.join(_SCHEMES)}",
        )
    return str(Path(text).expanduser().absolute())


def _require_address(text: str) -> None:
    """Refuse an address that no connection can be made to."""
    if text.startswith("grpc+unix://"):
        return
    try:
        parts = urlsplit(text)
        whole = bool(parts.hostname and parts.port)
    except ValueError:
        whole = False
    if not whole:
        raise Refused(
            f"the broker's address {text!r} has no host or no port that is a number",
            hint="Write grpc://HOST:PORT or grpc+tls://HOST:PORT",
        )


def connect(
    store: str | os.PathLike[str] | None = None,
    *,
    create: bool = True,
    ca: str = "",
    certificate: str = "",
    key: str = "",
    token: str = "",
) -> LedgerStore:
    """A store: a directory (its broker started if need be, itself made if `create`) or a broker's address.

    With an address `grpc+tls://…`: `ca` is the file of the authority that the broker's certificate is checked with,
    `certificate` and `key` are the client's files, `token` says where its token is, `file:/path` or `env:NAME`.
    """
    from ledger.broker.credentials import Credentials
    from ledger.broker.embedded import connect_store

    credentials = Credentials(ca, certificate, key, token)
    return LedgerStore(connect_store(store_location(store), create=create, start=True, credentials=credentials))


def open_read_only(store: str | os.PathLike[str] | None = None) -> LedgerStore:
    """A store's directory on this host, for reading: no broker is needed and none is started, nothing is changed."""
    from ledger.read_only_store import ReadOnlyStore

    location = store_location(store)
    if location.startswith(_SCHEMES):
        raise Refused(f"{location!r} is a broker's address", hint="Name the store's directory to read it without one")
    return LedgerStore(ReadOnlyStore(Path(location)))  # type: ignore[arg-type]  # the calls that read, no others


class LedgerStore:
    """A store and the ledgers in it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __repr__(self) -> str:
        return f"LedgerStore({self.client.address})"

    def names(self) -> list[str]:
        """The canonical names of all ledgers, sorted."""
        names: list[str] = self.client.call("list", Empty()).names
        return names

    def offload_to(self, address: str | os.PathLike[str], **options: str) -> None:
        """Let sealed ledgers be offloaded to a bucket or directory from now on: see `ledger.offload_target`."""
        offload_to(self.client, address, **options)

    def ledger(self, name: str) -> Ledger:
        """A ledger, the whole of it if it is partitioned. Nothing is created before its first append."""
        name = canonical_name(name)
        if self.client.call("partitions", NameLedger(name)).partitions:
            return _partitioned(self.client, name)
        return Ledger(self.client, name)

    def create(self, name: str, *, deduplication: bool = False, durability: Literal["fsync", "os"] = "fsync") -> Ledger:
        """Create a ledger that has what an append would not give it; refused when there is one of the name.

        With `deduplication` a message that a producer of the same name sends again is not written again. With a
        `durability` of "os" an append returns before the device has it: a loss of power loses what is not sealed.
        """
        name = canonical_name(name)
        self.client.call("create", CreateLedger(name, deduplication=deduplication, durability=durability))
        return Ledger(self.client, name)

    def create_partitioned(
        self,
        name: str,
        partitions: int,
        *,
        deduplication: bool = False,
        durability: Literal["fsync", "os"] = "fsync",
    ) -> PartitionedLedger:
        """Create a ledger with partitions; one that has as many already is answered as it is."""
        name = canonical_name(name)
        require_partitions(partitions)
        request = CreateLedger(
            name, exist_ok=True, partitions=partitions, deduplication=deduplication, durability=durability
        )
        self.client.call("create", request)
        return _partitioned(self.client, name)

    def delete(self, name: str) -> None:
        """Delete a ledger with its partitions and cursors, for good."""
        self.client.call("delete", NameLedger(canonical_name(name)))

    def namespace_policy(self, namespace: str, forget: Iterable[str] = (), **values: int) -> Policies:
        """Set and forget policies for every ledger of a namespace, `tenant/namespace`; without either, look."""
        request = ChangePolicy(namespace, namespace=True, values=values, forget=list(forget))
        return change_policy(self.client, request)


def _partitioned(client: Client, name: str) -> PartitionedLedger:
    from ledger.partitioned_ledger import PartitionedLedger

    return PartitionedLedger(client, name)


class Ledger(LedgerLife):
    """One managed ledger."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._producer = f"ledger-api-{new_id()}"
        self._sequence = 0

    def __repr__(self) -> str:
        return f"Ledger({self.name})"

    def append(self, rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]] | bytes) -> Position:
        """Append rows, or one message as bytes; the position after it. Returns when it is durable."""
        if not isinstance(rows, (bytes, pa.Table, pa.RecordBatch)):
            rows = _listed(rows)
        self.client.call("create", CreateLedger(self.name, exist_ok=True))
        if isinstance(rows, bytes):
            return self._append_entries([self._message(rows)])
        if isinstance(rows, list) and not rows:
            return self.end().end
        given = rows_table(rows, self.schema())
        registered, version = self._registered(given.schema)
        fit = ColumnFit(registered)
        where = f"what is appended to {self.name}"
        entries = []
        for batch in given.combine_chunks().to_batches():
            for piece in _pieces(fit.fit(batch, where)):
                metadata = arrow_metadata(
                    self._producer, self._next(), system_clock_ms(), piece.num_rows, version, None
                )
                entries.append(encode_entry(metadata, encode_rows([piece], compression=None)))
        return self._append_entries(entries) if entries else self.end().end

    def producer(
        self,
        name: str | None = None,
        *,
        compression: str = "none",
        batching_max_messages: int = 1000,
        batching_max_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 1,
        max_pending_bytes: int = 64 * 1024 * 1024,
    ) -> MessageProducer:
        """A producer of messages, which gathers them into batches as a Pulsar client does. Close it, or use `with`."""
        from ledger.broker.message_producer import Batching, open_producer

        batching = Batching(batching_max_messages, batching_max_bytes, batching_max_publish_delay_ms)
        self.client.call("create", CreateLedger(self.name, exist_ok=True))
        return open_producer(
            self.client,
            self.name,
            name or f"ledger-api-{new_id()}",
            batching,
            compression=compression,
            max_pending_bytes=max_pending_bytes,
        )

    def read(self, start: Position = EARLIEST, end: Position | None = None) -> pa.Table:
        """The rows of `[start, end)` as one table; messages as a column `value`."""
        return pa.Table.from_batches(self.batches(start, end), self.schema() or _RAW)

    def batches(self, start: Position = EARLIEST, end: Position | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of `[start, end)`, entry by entry; `end` defaults to the end as it is now."""
        return self._batches(start, end, None)

    def _batches(
        self, start: Position, end: Position | None, selection: RowSelection | None
    ) -> Iterator[pa.RecordBatch]:
        _require_positions(start=start, **({} if end is None else {"end": end}))
        log = self.end()
        schema = self.schema()
        request = ReadRequest(
            self.name,
            PositionRange(start, log.end if end is None else end),
            incarnation=log.incarnation,
            max_block_bytes=_BLOCK_BYTES,
        )
        fit = None if schema is None else ColumnFit(schema)
        if not request.range:
            return
        for block in self.client.read_blocks(request):
            for entry_id, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
                position = Position(block.ledger_id, entry_id)
                if selection is not None and selection.passes_over(position):
                    continue
                where = f"entry {position} of {self.name}"
                rows = _rows(parse_entry(frame, where), fit, where)
                yield from rows if selection is None else selection.taken(position, rows)

    def tail(self, start: Position = EARLIEST, wait_ms: int | None = None) -> Iterator[pa.Table]:
        """What is there from `start`, then what comes, as tables.

        Ends after `wait_ms` of silence, if given, and at the end of a ledger that was terminated.
        """
        _require_positions(start=start)
        at = start
        until = None if wait_ms is None else monotonic_ms() + wait_ms
        while True:
            left = _TAIL_MS if until is None else max(until - monotonic_ms(), 0)
            log: LedgerEnd = self.client.call("end", AskEnd(self.name, at, min(left, _TAIL_MS)))
            if log.end > at:
                if log.rows_since:
                    yield self.read(at, log.end)
                until = None if wait_ms is None else monotonic_ms() + wait_ms
            elif log.terminated or (until is not None and monotonic_ms() >= until):
                return
            at = max(at, log.end)

    def cursor(self, name: str, start: Position = EARLIEST) -> Cursor:
        """A durable cursor, created at `start` when there is none of that name."""
        _require_positions(start=start)
        state: CursorState = self.client.call("cursor.open", OpenCursor(self.name, name, start))
        return Cursor(self, state.cursor)

    def end(self) -> LedgerEnd:
        """Where the log begins and ends."""
        found: LedgerEnd = self.client.call("end", AskEnd(self.name))
        return found

    def describe(self) -> LedgerDescription:
        """All there is to know about it."""
        found: LedgerDescription = self.client.call("describe", NameLedger(self.name))
        return found

    def schema(self) -> pa.Schema | None:
        """Its registered columns; None for a ledger of messages, or one without a first append."""
        return registered_rows(self.client, self.name)[0]

    def register_payload_schemas(self, schemas: str | bytes) -> int:
        """Register the schemas of its messages' payloads, such as Pulsar's `schemas.json`; the newest version.

        The ledger is created if need be. Messages state the version that they were encoded by.
        """
        self.client.call("create", CreateLedger(self.name, exist_ok=True))
        return register_payload_schemas(
            self.client, self.name, parse_schemas(schemas, f"what is given for {self.name}")
        )

    def _registered(self, given: pa.Schema) -> tuple[pa.Schema, int]:
        if not given.names:
            raise Refused(f"rows without columns cannot be appended to {self.name}", hint="Give at least one column")
        found = self.client.call("schema.get", GetSchema(self.name))
        if found.version < 0:
            held = self.describe().entries
            if held:
                raise Refused(f"ledger {self.name} holds {held} messages, rows of {len(given)} columns were given")
            columns = pa.schema([field.with_nullable(True) for field in given])
            found = self.client.call("schema.register", RegisterSchema(self.name, schema_bytes(columns)))
        require_columns_registered(found, self.name)
        registered = schema_from_bytes(found.arrow_schema)
        require_columns(given, registered, self.name)
        return registered, found.version

    def _message(self, value: bytes) -> list[Buffer]:
        columns = self.schema()
        if columns is not None:
            raise Refused(
                f"ledger {self.name} has the columns {', '.join(columns.names)}, {len(value)} bytes were given",
                hint="Append rows, or messages to a ledger of their own",
            )
        metadata = MessageMetadata(
            producer_name=self._producer, sequence_id=self._next(), publish_time=system_clock_ms()
        )
        metadata.uncompressed_size = len(value)
        return encode_entry(metadata, value)

    def _append_entries(self, entries: Sequence[Sequence[Buffer]]) -> Position:
        with self.client.producer(self.name) as producer:
            last = [producer.append(*entry) for entry in entries][-1]
            position: Position = last.result()
        return position.next()

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1


class Cursor:
    """A durable place in a ledger. Acknowledging is monotone; what is not acknowledged is kept."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def __repr__(self) -> str:
        return f"Cursor({self.ledger.name}, {self.name})"

    def state(self, *, precise: bool = True) -> CursorState:
        """Where it stands, and what it has left. Not `precise`: rows and bytes from averages, no file is read."""
        request = NameCursor(self.ledger.name, self.name, precise=precise)
        found: CursorState = self.ledger.client.call("cursor.describe", request)
        return found

    def read(self) -> tuple[pa.Table, Position]:
        """Everything not acknowledged, and the position to acknowledge when it is done with."""
        return self.read_between(self.state().next_position, self.ledger.end().end)

    def read_between(self, start: Position, end: Position) -> tuple[pa.Table, Position]:
        """What of a range is not acknowledged, read again as often as wanted; and the end of the range."""
        _require_positions(start=start, end=end)
        request = AskHoles(self.ledger.name, self.name, PositionRange(start, end))
        holes: Holes = self.ledger.client.call("cursor.holes", request)
        first = max(start, self.state().next_position)
        rows = self.ledger._batches(first, max(first, end), RowSelection(holes.info))  # noqa: SLF001 — of this file
        return pa.Table.from_batches(rows, self.ledger.schema() or _RAW), end

    def replay(self, positions: Iterable[Position]) -> tuple[pa.Table, set[Position]]:
        """The rows of these entries again, and which of the entries were left out: all of them is acknowledged.

        The cursor does not move. Of an entry that is acknowledged in part the other rows come.
        """
        wanted = sorted(set(positions))
        _require_positions(**{f"positions[{number}]": position for number, position in enumerate(wanted)})
        if not wanted:
            return pa.Table.from_batches([], self.ledger.schema() or _RAW), set()
        asked = AskHoles(self.ledger.name, self.name, PositionRange(wanted[0], wanted[-1].next()))
        selection = RowSelection(self.ledger.client.call("cursor.holes", asked).info)
        first = self.state(precise=False).next_position
        done = {position for position in wanted if position < first or selection.passes_over(position)}
        batches = [
            batch
            for position in wanted
            if position not in done
            for batch in self.ledger._batches(position, position.next(), selection)  # noqa: SLF001 — of this file
        ]
        return pa.Table.from_batches(batches, self.ledger.schema() or _RAW), done

    def acknowledge(self, position: Position) -> None:
        """Everything before `position` is done with."""
        _require_positions(position=position)
        self.ledger.client.call("cursor.mark_delete", MarkDelete(self.ledger.name, self.name, position))

    def acknowledge_rows(self, positions: Iterable[tuple[int, int] | tuple[int, int, int]]) -> CursorState:
        """Acknowledge entries `(ledger, entry)` and rows of entries `(ledger, entry, row)`, in any order.

        Durable when it returns. What is acknowledged already is ignored; what is not in the log is refused, and then
        nothing of the call is acknowledged.
        """
        import numpy as np

        from ledger.acknowledged_rows import acknowledge_batch
        from ledger.broker.acknowledge_stream import acknowledge
        from ledger.protocol import AcknowledgeCommand

        lines = np.array([(*place, -1)[:3] for place in positions], dtype=np.int64).reshape(-1, 3)
        command = AcknowledgeCommand(self.ledger.name, self.name)
        return acknowledge(self.ledger.client, command, [acknowledge_batch(*lines.T)])

    def skip(self, entries: int) -> CursorState:
        """Acknowledge the next `entries` entries that are left; -1 clears the whole backlog."""
        request = SkipEntries(self.ledger.name, self.name, entries)
        state: CursorState = self.ledger.client.call("cursor.skip", request)
        return state

    def set_properties(self, values: Mapping[str, str], remove: Iterable[str] = ()) -> dict[str, str]:
        """Note something with the cursor; answers all there is then."""
        request = CursorProperties(self.ledger.name, self.name, dict(values), list(remove))
        state: CursorState = self.ledger.client.call("cursor.properties", request)
        return state.properties

    def reset(self, position: Position) -> None:
        """Move it anywhere, backwards too. Refused below what was trimmed and beyond the end."""
        _require_positions(position=position)
        self.ledger.client.call("cursor.reset", ResetCursor(self.ledger.name, self.name, position))

    def seek(self, timestamp_ms: int) -> Position:
        """Move it to the first entry that the broker took at or after a time; where that is."""
        position = self.ledger.position_at(timestamp_ms)
        self.reset(position)
        return position

    def delete(self) -> None:
        """Forget it: it holds nothing back any more."""
        self.ledger.client.call("cursor.delete", NameCursor(self.ledger.name, self.name))


def rows_table(rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]], schema: pa.Schema | None) -> pa.Table:
    """The rows as a table whose columns are all keys of all rows; a row without a key has null there."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    rows = rows if isinstance(rows, list) else _listed(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    typed = {} if schema is None else {field.name: field for field in schema}
    if typed.keys() == names.keys():
        names = dict.fromkeys(typed)
    return pa.table({name: _column([row.get(name) for row in rows], name, typed.get(name)) for name in names})


def _listed(rows: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The rows, walked once: an iterator has them only once. Refused, by number, is what is no row."""
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
        raise Refused(f"rows are {type(rows).__name__}, expected mappings", hint='Give a list, as [{"id": 1}]')
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise Refused(f"row {number} is {type(row).__name__}, expected a mapping", hint='Give rows as {"id": 1}')
        for name in row:
            if not isinstance(name, str):
                raise Refused(f"row {number} has the column {name!r}, expected text", hint='Give rows as {"id": 1}')
    return listed


def _column(values: list[object], name: str, field: pa.Field | None) -> pa.Array:
    """The values of a column, as the ledger's type where it has one; refused where one does not fit or is cut."""
    wanted = None if field is None else field.type
    try:
        if wanted is not None and pa.types.is_integer(wanted) and any(isinstance(value, float) for value in values):
            pa.array(values).cast(wanted)  # which refuses 1.5; the conversion below makes it 1
        return pa.array(values, wanted)
    except (pa.ArrowException, OverflowError) as wrong:
        text = f"column {name!r} of what is appended cannot be {wanted or 'of one type'}: {wrong}"
        raise Refused(text, hint="Correct the value; nothing was appended") from wrong


def _require_positions(**given: object) -> None:
    """Refuse what is no position, by the name of its argument."""
    for name, value in given.items():
        if not isinstance(value, Position):
            raise Refused(
                f"{name} is {value!r}, expected a position",
                hint="Import Position, EARLIEST or LATEST from ledger.position; Position.parse('0:5') reads text",
            )


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of about one entry's bytes."""
    rows = max(1, batch.num_rows * _ENTRY_BYTES // max(batch.nbytes, 1))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def _aligned(payload: memoryview) -> pa.Buffer:
    """The payload where Arrow's own joins and sums want it; in a segment it begins at any byte."""
    buffer = pa.py_buffer(payload)
    if buffer.address % _ALIGNMENT == 0:
        return buffer
    copy = pa.allocate_buffer(buffer.size)
    np.frombuffer(copy, dtype=np.uint8)[:] = np.frombuffer(buffer, dtype=np.uint8)
    return copy


def _rows(entry: ParsedEntry, fit: ColumnFit | None, where: str) -> Iterator[pa.RecordBatch]:
    if is_marker(entry.metadata):
        return
    if is_arrow(entry.metadata) != (fit is not None):
        kinds = ("Arrow columns", "Pulsar messages")
        held, wanted = kinds if is_arrow(entry.metadata) else kinds[::-1]
        raise Refused(f"{where} holds {held}, the ledger is one of {wanted}")
    if fit is not None:
        for batch in decode_rows(_aligned(entry.payload), where):
            yield fit.fit(batch, where)
        return
    from ledger.pulsar_payload import decode_messages

    values = [message.value for message in decode_messages(entry, where)]
    yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=_RAW)
