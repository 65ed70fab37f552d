"""Target of a write: its ledgers, their registered columns, and the size of their entries.

Invariants
- Rows that do not fit a ledger's columns are refused before one is staged. The driver checks the ledger that the write
  names. The task checks partitions, and ledgers that a row names.
- The first write creates the ledger that it names. A ledger that a row names is created only with `createLedgers`, so a
  misspelt name is an error.
- Only the driver creates a store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.options.options import LedgerOptions, require_ledger
from pyspark_ledger.connector.schema import Ask, columns_to_write, require_writable, resolve_columns, spark_schema
from pyspark_ledger.connector.write.routing import LEDGER, own_columns
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.message.columns import schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.message.entry import STAMP_BYTES_MAX
from pyspark_ledger.ledger.names import canonical_name, partition_name, short_name
from pyspark_ledger.ledger.protocol.actions import (
    CreateLedger,
    GetSchema,
    LedgerDescription,
    NameLedger,
    RegisterSchema,
    SchemaVersion,
)
from pyspark_ledger.ledger.segment.format import entry_bytes_max
from pyspark_ledger.ledger.version import __version__

if TYPE_CHECKING:
    import msgspec
    from pyspark.sql.types import StructType

    from pyspark_ledger.ledger.client.credentials import Credentials
    from pyspark_ledger.ledger.message.column_encoding import Compression

_BLOCK_BYTES = "ledger.blockBytes"
_BLOCK_BYTES_DEFAULT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LedgerTarget:
    """Ledger to write to. `partitions` is 0 for one without; `columns` is its registered Arrow schema."""

    name: str
    incarnation: str
    columns: bytes
    schema_version: int
    entry_bytes_most: int
    partitions: int


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """Target and parameters of a write, as a task needs them. Pickled into every task.

    `named` is the ledger that the write names, None if every row names its own. `several`: the rows of one batch may
    have several ledgers. Tasks use `task_credentials`, whose token allows staging and expires. The commit connects
    to `location` with the `credentials` of the options, as the query did.
    """

    release: str = field(default=__version__, init=False)  # of the driver
    address: str
    store_id: str
    location: str
    named: LedgerTarget | None
    several: bool
    columns: bytes
    create_ledgers: bool
    merge_schema: bool
    entry_bytes: int
    compression: Compression
    commit_timeout_ms: int
    credentials: Credentials | None
    task_credentials: Credentials

    @property
    def ledger(self) -> str:
        """Target in words, for people."""
        return self.named.name if self.named is not None else f"the ledgers that {LEDGER!r} names"


def prepare_target(options: LedgerOptions, schema: StructType) -> SinkTarget:
    """Create the ledger and register its columns, or compare them, before anything is staged."""
    routed = LEDGER in schema.names
    name = "" if routed and not options.ledger else canonical_name(require_ledger(options))
    location = store_location(options.store)
    columns = columns_to_write(own_columns(schema), name)
    # Compared with themselves first: a type that is read as another one could never be written again.
    require_writable(spark_schema(columns, name), columns, name)
    credentials = options.credentials()
    connection = DriverConnection(location, create=True, credentials=credentials)

    def ask(action: str, request: msgspec.Struct) -> Any:
        return connection.call(lambda client: client.call(action, request))

    merge = options.merge_schema
    named = ledger_target(ask, name, columns, options.entry_bytes, create=True, merge=merge) if name else None
    several = routed or (named is not None and named.partitions > 0)
    client = connection.client
    writes = [] if several or named is None else [named.name]
    return SinkTarget(
        client.address, client.store_id, location, named, several, schema_bytes(columns), options.create_ledgers,
        merge, options.entry_bytes, options.compression, options.commit_timeout_ms, credentials,
        client.credentials.for_task("write", writes, system_clock_ms),
    )  # fmt: skip


def ledger_target(
    ask: Ask, name: str, columns: pa.Schema, entry_bytes: int, *, create: bool, merge: bool
) -> LedgerTarget:
    """Return a ledger that takes these columns: created if missing with `create`, extended with `merge`."""
    described = _described(ask, name, create=create)
    found = _registered(ask, described, columns)
    found = resolve_columns(ask, spark_schema(columns, name), found, name, merge=merge)
    return LedgerTarget(
        name,
        described.incarnation,
        found.arrow_schema,
        found.version,
        _entry_bytes_most(described, entry_bytes),
        len(described.partitions),
    )


class LedgerTargets:
    """Ledgers of a task, each requested once."""

    def __init__(self, target: SinkTarget, ask: Ask) -> None:
        self._target = target
        self._ask = ask
        self._columns = schema_from_bytes(target.columns)
        self._met: dict[str, LedgerTarget] = {}
        if target.named is not None:
            self._met[target.named.name] = target.named

    def of(self, text: str) -> LedgerTarget:
        name = canonical_name(text)
        return self._known(name, create=self._target.create_ledgers)

    def partition(self, whole: LedgerTarget, partition: int) -> LedgerTarget:
        return self._known(partition_name(whole.name, partition), create=False)

    def _known(self, name: str, *, create: bool) -> LedgerTarget:
        if name not in self._met:
            target = self._target
            self._met[name] = ledger_target(
                self._ask, name, self._columns, target.entry_bytes, create=create, merge=target.merge_schema
            )
        return self._met[name]


def _described(ask: Ask, name: str, *, create: bool) -> LedgerDescription:
    """Return the ledger's description. Every batch asks, and only the first one creates."""
    try:
        described: LedgerDescription = ask("describe", NameLedger(name))
    except NotFound as missing:
        if not create:
            raise NotFound(
                f"rows name ledger {short_name(name)!r} in {LEDGER!r}, and there is none",
                hint=f"Create it, or write with option 'createLedgers'. {missing.hint}",
            ) from None
        described = ask("create", CreateLedger(name, exist_ok=True, lists=False))
    return described


def _registered(ask: Ask, described: LedgerDescription, columns: pa.Schema) -> SchemaVersion:
    """Return the ledger's columns. The first rows' columns are registered."""
    name = described.name
    found: SchemaVersion = ask("schema.get", GetSchema(name))
    if found.version < 0:
        if described.entries:
            raise Refused(
                f"ledger {name} holds {described.entries} entries of messages without columns, "
                f"rows with columns {', '.join(columns.names)} were given",
                hint="Write rows to a ledger of their own",
            )
        found = ask("schema.register", RegisterSchema(name, schema_bytes(columns)))
    return found


def _entry_bytes_most(described: LedgerDescription, entry_bytes: int) -> int:
    """Return the largest entry of a ledger. A larger `entryBytes` is refused with both numbers."""
    block = int(described.properties.get(_BLOCK_BYTES, _BLOCK_BYTES_DEFAULT))
    most = entry_bytes_max(block) - STAMP_BYTES_MAX
    if entry_bytes > most:
        raise Refused(
            f"option 'entryBytes' is {entry_bytes}, blocks of {block} bytes of {described.name} hold entries of {most}",
            hint=f"Give at most {most}",
        )
    return most
