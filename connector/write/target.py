"""Target of a write: its ledgers, their registered columns, and the size of their entries.

To *stage* rows is to write them to files that readers do not see before the commit.

Invariants
- Rows that do not fit a ledger's columns are refused before any row is staged. The driver checks the ledger that the
  write names. The task checks partitions, and ledgers that a row names.
- The first write creates the ledger that the write names. A ledger that a row names is created only if option
  `createLedgers` is set, because the name may be misspelt.
- Only the driver creates a store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.connection import DriverConnection
from pyspark_ledger.connector.options.options import LedgerOptions, require_ledger
from pyspark_ledger.connector.schema import columns_to_write, require_writable, resolve_columns, spark_schema
from pyspark_ledger.connector.write.routing import LEDGER, own_columns
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.location import store_location
from pyspark_ledger.ledger.message.columns import schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.message.entry import STAMP_BYTES_MAX
from pyspark_ledger.ledger.names import canonical_name, partition_name, short_name
from pyspark_ledger.ledger.protocol.actions import (
    CreateLedger,
    DescribeLedger,
    GetSchema,
    LedgerDescription,
    RegisterSchema,
    SchemaVersion,
)
from pyspark_ledger.ledger.protocol.request import Ask
from pyspark_ledger.ledger.segment.format import entry_bytes_max
from pyspark_ledger.ledger.version import __version__

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_ledger.ledger.client.credentials import Credentials
    from pyspark_ledger.ledger.message.column_encoding import Compression
    from pyspark_ledger.ledger.objects.s3_options import S3Options

_BLOCK_BYTES = "ledger.blockBytes"
_BLOCK_BYTES_DEFAULT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LedgerTarget:
    """Ledger to write to. `columns` is its registered Arrow schema. `partitions` is 0 if it has no partitions.

    A task writes its rows to the store's bucket itself if they have at least `upload_from` bytes. -1 means never.
    """

    name: str
    incarnation: str
    columns: bytes
    schema_version: int
    entry_bytes_most: int
    partitions: int
    block_bytes: int
    upload_from: int


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """Target and parameters of a write. Pickled into every task.

    `named` is the ledger that the write names, None if every row names its ledger. `several` is set if the rows of one
    batch may belong to several ledgers. Tasks use `task_credentials`, whose token allows only staging, and expires. The
    commit connects to `location` with `credentials`, the credentials in the options. `uploads` are the options for
    access to the bucket of the store.
    """

    release: str = field(default=__version__, init=False)  # the driver's version of this package
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
    uploads: S3Options | None = None

    @property
    def ledger(self) -> str:
        """The target in words, for errors."""
        return self.named.name if self.named is not None else f"the ledgers that {LEDGER!r} names"


def prepare_target(options: LedgerOptions, schema: StructType) -> SinkTarget:
    """Return the target of a write. Creates a missing ledger, and registers or compares its columns."""
    routed = LEDGER in schema.names
    name = "" if routed and not options.ledger else canonical_name(require_ledger(options))
    location = store_location(options.store)
    columns = columns_to_write(own_columns(schema), name)
    # Refuses a type that Spark would read back as another type.
    require_writable(spark_schema(columns, name), columns, name)
    credentials = options.credentials()
    connection = DriverConnection(location, create=True, credentials=credentials)

    merge = options.merge_schema
    named = (
        ledger_target(connection.ask, name, columns, options.entry_bytes, create=True, merge=merge) if name else None
    )
    several = routed or (named is not None and named.partitions > 0)
    client = connection.client
    writes = [] if several or named is None else [named.name]
    return SinkTarget(
        client.address, client.store_id, location, named, several, schema_bytes(columns), options.create_ledgers,
        merge, options.entry_bytes, options.compression, options.commit_timeout_ms, credentials,
        client.credentials.for_task(
            "write", writes, system_clock_ms, store_id=client.store_id, creates=options.create_ledgers
        ),
        None if options.direct is None else options.direct.s3(),
    )  # fmt: skip


def ledger_target(
    ask: Ask, name: str, columns: pa.Schema, entry_bytes: int, *, create: bool, merge: bool
) -> LedgerTarget:
    """Return the target for a ledger and rows with these columns.

    If `create` is set, a missing ledger is created. If `merge` is set, columns that the ledger lacks are added to it.
    """
    description = _describe(ask, name, create=create)
    schema = _registered_schema(ask, description, columns)
    schema = resolve_columns(ask, spark_schema(columns, name), schema, name, merge=merge)
    return LedgerTarget(
        name,
        description.incarnation,
        schema.arrow_schema,
        schema.version,
        _entry_bytes_most(description, entry_bytes),
        len(description.partitions),
        _block_bytes(description),
        description.upload_from,
    )


class LedgerTargets:
    """Ledgers of a task. The broker is asked once for each ledger."""

    def __init__(self, target: SinkTarget, ask: Ask) -> None:
        self._target = target
        self._ask = ask
        self._columns = schema_from_bytes(target.columns)
        self._targets: dict[str, LedgerTarget] = {}
        if target.named is not None:
            self._targets[target.named.name] = target.named

    def of(self, text: str) -> LedgerTarget:
        name, target = canonical_name(text), self._target
        if name not in self._targets:
            create, merge = target.create_ledgers, target.merge_schema
            self._targets[name] = ledger_target(
                self._ask, name, self._columns, target.entry_bytes, create=create, merge=merge
            )
        return self._targets[name]

    def partition(self, whole: LedgerTarget, partition: int) -> LedgerTarget:
        """Return a partition. It gets the whole ledger's columns, because its first rows may have narrower types."""
        name = partition_name(whole.name, partition)
        if name not in self._targets:
            columns = schema_from_bytes(whole.columns, whole.name)
            self._targets[name] = ledger_target(
                self._ask, name, columns, self._target.entry_bytes, create=False, merge=True
            )
        return self._targets[name]


def _describe(ask: Ask, name: str, *, create: bool) -> LedgerDescription:
    """Return the ledger's description. If `create` is set, create a missing ledger."""
    try:
        description = ask(DescribeLedger(name))
    except NotFound as missing:
        if not create:
            raise NotFound(
                f"rows name ledger {short_name(name)!r} in {LEDGER!r}, but this ledger does not exist",
                hint=f"Create the ledger, or write with option 'createLedgers'. {missing.hint}",
            ) from None
        description = ask(CreateLedger(name, exist_ok=True, lists=False))
    return description


def _registered_schema(ask: Ask, description: LedgerDescription, columns: pa.Schema) -> SchemaVersion:
    """Return the ledger's registered columns. If there are none, register `columns`."""
    name = description.name
    schema = ask(GetSchema(name))
    if schema.version < 0:
        if description.entries:
            raise Refused(
                f"ledger {name} holds {description.entries} entries of messages without columns, "
                f"rows with columns {', '.join(columns.names)} were given",
                hint="Write rows to another ledger",
            )
        schema = ask(RegisterSchema(name, schema_bytes(columns)))
    return schema


def _entry_bytes_most(description: LedgerDescription, entry_bytes: int) -> int:
    """Return the largest size of an entry. Raises Refused if option `entryBytes` is larger."""
    block = _block_bytes(description)
    most = entry_bytes_max(block) - STAMP_BYTES_MAX
    if entry_bytes > most:
        raise Refused(
            f"option 'entryBytes' is {entry_bytes}, but an entry of {description.name} has at most {most} bytes, "
            f"because its blocks have {block} bytes",
            hint=f"Give at most {most}",
        )
    return most


def _block_bytes(description: LedgerDescription) -> int:
    return int(description.properties.get(_BLOCK_BYTES, _BLOCK_BYTES_DEFAULT))
