"""Calls of the data source as Spark makes them, without a JVM, with brokers in this process.

A test has a table of `OptionDrive`, one for each option, which states the effect of the option.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.broker import actions
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.times import iso_text
from tests.rigs.certificates import certificates, tls
from tests.rigs.driven_broker import DrivenBroker
from tests.rigs.recording_s3 import RecordingS3

Given = Mapping[str, str]
_numbers = itertools.count()
TLS = ("tlsCertificateFilePath", "tlsKeyFilePath", "tlsTrustCertsFilePath", "authenticationTokens")


@dataclass(frozen=True)
class OptionDrive:
    """Effect of an option. Without the option, `observe` returns `default`. `seen` has the result for each text.

    `also` are options that the effect needs. A name in braces in a text stands for a value of `World.places`.
    """

    observe: Callable[[World, Given], object]
    default: object
    seen: Mapping[str, object]
    also: Given = field(default_factory=dict)


OptionDrives = dict[str, Sequence[OptionDrive]]


class World:
    """Broker on loopback, a second broker with TLS, an S3 server that records its requests, and new ledgers.

    `places` has the values for texts of options. `{name}` is the newest ledger, `{p5}` the position of its entry 5, and
    `{t5}` and `{iso5}` are the time of that entry. `{folder}` is the bucket, and `{port}` the port of the S3 server.
    `{ca}`, `{client}`, `{client_key}` and `{token}` are the certificates and the token of a client.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.s3 = RecordingS3(folder, patch)
        patch.setattr(actions, "system_clock_ms", lambda: self.broker.wall_ms)
        self.places: dict[str, Any] = {"port": self.s3.port, **certificates()}
        given = {name: str(value).format(**self.places) for name, value in tls(*TLS).items()}
        self.guarded = DrivenBroker(folder / "guarded", given, patch)

        self.broker = DrivenBroker(folder / "plain", {}, patch)
        self.store: LedgerStore = connect(self.broker.record.address)

    def close(self) -> None:
        self.store.client.close()
        self.broker.close()
        self.guarded.close()
        self.s3.close()

    def ledger(self, rows: int = 10, entries: int = 0) -> Ledger:
        """Return a new ledger with `rows` entries of one row, each appended a second after the one before.

        The column `n` counts from 0. A segment has at most `entries` entries. 0: the default.
        """
        name = f"orders{next(_numbers)}"
        ledger = self.store.ledger(name)
        self.places |= {"name": name, "folder": str(self.folder / name)}
        if entries:
            self.broker.store.create_ledger(CreateLedger(name, max_entries_per_ledger=entries))
        for number in range(rows):
            self.broker.pass_ms(1000)
            self.places |= {f"t{number}": self.broker.wall_ms, f"iso{number}": iso_text(self.broker.wall_ms)}
            table = pa.table({"n": pa.array([number], pa.int64()), "s": pa.array([f"r{number}"])})
            ledger.append(table)
        for number in range(rows):
            self.places[f"p{number}"] = f"{ledger.describe().start.ledger_id}:{number}"
        return ledger

    def options(self, given: Given, **more: str) -> dict[str, str]:
        known = {"store": self.broker.record.address, "path": "{name}", **more, **given}
        return {name: text.format(**self.places) for name, text in known.items() if text}

    def source(self, given: Given, **more: str) -> DefaultSource:
        return DefaultSource(self.options(given, **more))

    def names(self, given: Given, **more: str) -> list[str]:
        """Return the names of the columns of a read."""
        return list(self.source(given, **more).schema().names)

    def rows(self, given: Given, before: Callable[[], object] = lambda: None, **more: str) -> list[dict[str, Any]]:
        """Return the rows of a bounded read. `before` is called between the planning and the tasks."""
        source = self.source(given, **more)
        reader = source.reader(source.schema())
        parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions() or []]  # noqa: S301 — our own bytes
        before()
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    def numbers(self, given: Given, **more: str) -> list[int]:
        return [row["n"] for row in self.rows(given, **more)]

    def tasks(self, given: Given, **more: str) -> int:
        source = self.source(given, **more)
        return len(source.reader(source.schema()).partitions())

    def stream(self, given: Given, before: Callable[[], object] = lambda: None, **more: str) -> list[int]:
        """Return the first batch of a stream. It starts at the earliest position unless options set its start.

        `before` is called before the batch is planned.
        """
        begun = "subscription" in given or any(name.startswith("starting") for name in given)
        source = self.source(given, **({} if begun else {"startingPosition": "earliest"}), **more)
        reader = source.streamReader(source.schema())
        try:
            start = reader.initialOffset()
            before()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            parts = reader.partitions(start, end) if end != start else []
            batches = [batch for part in parts for batch in reader.read(part)]
            return [row["n"] for batch in batches for row in batch.to_pylist() if "n" in row]
        finally:
            reader.stop()

    def places_of_rows(self) -> pa.RecordBatch:
        """Return the positions of the rows of the ledger."""
        rows = self.rows({"includeMetadata": "true", "columns": "__position"})
        kind = pa.struct([("ledgerId", pa.int64()), ("entryId", pa.int64()), ("batchIndex", pa.int32())])
        return pa.RecordBatch.from_pylist(rows, schema=pa.schema([("__position", kind)]))

    def write(self, rows: Sequence[Mapping[str, Any]] | pa.RecordBatch, given: Given, **more: str) -> None:
        """Write rows by a bounded write of one task."""
        batch = rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist([dict(row) for row in rows])
        columns = spark_schema(batch.schema, "rows")
        writer = self.source(given, **more).writer(columns, overwrite=False)
        writer.commit([writer.write(iter([batch]))])

    def entries(self, name: str) -> list[int]:
        """Return the bytes of each entry of a ledger."""
        log = self.broker.store.ledger(name)
        return [block.length for block in log.blocks(PositionRange(EARLIEST, LATEST), 1)]


def said(call: Callable[[], object]) -> object:
    """Return the result of a call, or the class of its error."""
    try:
        return call()
    except LedgerError as error:
        return type(error).__name__
