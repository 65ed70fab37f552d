"""Stores that earlier versions wrote (`tests/fixtures/store`): functions that unpack and serve a store, and describe
its content as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.message.entry import is_marker, parse_entry
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import AskSettings, GetSchema, StopBroker
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, AskDelivery
from pyspark_ledger.ledger.protocol.ledgers import AskSequence
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.rows.metadata_columns import METADATA
from pyspark_ledger.ledger.segment.reader import iter_frames
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.offload.home_view import open_read_only

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "store"
ARCHIVE, EXPECTED = FIXTURE / "stores.tar.xz", FIXTURE / "expected.json"
# Address of the bucket in the stores: a folder of the broker's working directory, so that a test can copy the store.
BUCKET = "/proc/self/cwd/bucket"
LISTED_MAX = 30  # longest list that is described by its elements; a longer list by its length and its digest
_START_S = 60
_SKIP_MAX = 1024  # largest set of skipped rows, in bytes, that is described by its elements

# Ledger with thousands of rows, of which only the bytes of the entries are compared.
_UNREAD = {"public/default/persistent/large"}
_NAMED = ("name", "incarnation", "start", "end", "entries", "size_bytes", "rows", "schema_version", "terminated")
_COUNTED = (
    "next_position", "backlog_entries", "backlog_rows", "backlog_bytes", "replay_floor", "acknowledged_ranges",
    "acknowledged_entries", "partial_entries", "properties",
)  # fmt: skip


def unpacked(folder: Path) -> Path:
    """Unpack the archive: the stores `closed` and `killed`, a bucket, a table, a private key. Return the folder."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            member.mtime = time.time()  # as after a copy, because a broker deletes old staged parts
            archive.extract(member, folder, filter="tar")
    return folder


def expected() -> dict[str, Any]:
    """Return the expected answers, which were written when the stores were made."""
    told: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return told


@contextmanager
def served(folder: Path, name: str, *arguments: str) -> Iterator[tuple[LedgerStore, subprocess.Popen[bytes]]]:
    """Yield the store `folder/name` and its broker, which has a separate run directory, because copies share an id."""
    path = folder / name
    command = [
        sys.executable,
        "-m",
        "pyspark_ledger.offload.broker",
        "--store",
        str(path),
        "--idle",
        "120",
        *arguments,
    ]
    before = BrokerRecord.read(path)
    with tempfile.TemporaryDirectory(prefix="ledger-run-") as run, (folder / f"{name}.log").open("ab") as log:
        environment = {**os.environ, "XDG_RUNTIME_DIR": run}
        broker = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield LedgerStore(_answering(path, before, broker, folder / f"{name}.log")), broker
        finally:
            broker.kill()
            broker.wait()


def leave(api: LedgerStore, broker: subprocess.Popen[bytes]) -> None:
    """Shut the broker down. The broker may end before its answer arrives."""
    with suppress(Unavailable):
        api.client.ask(StopBroker())
    assert broker.wait(60) == 0


def _answering(path: Path, before: BrokerRecord | None, broker: subprocess.Popen[bytes], log: Path) -> Client:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and broker.poll() is None:
        record = BrokerRecord.read(path)
        if record is not None and record != before:
            client = Client(record.address, record.store_id)
            client.hello()
            return client
        time.sleep(0.01)
    raise AssertionError(f"no broker of {path} started: {log.read_text(encoding='utf-8')[-2000:]}")


def ledgers(api: LedgerStore) -> dict[str, Ledger]:
    """Return all logs of a store by name: ledgers without partitions, and the partitions of the others."""
    found: dict[str, Ledger] = {}
    for name in api.names():
        ledger = api.ledger(name)
        parts = (
            [partition.name for partition in ledger.describe().partitions]
            if isinstance(ledger, PartitionedLedger)
            else [name]
        )
        found |= {part: Ledger(api.client, part) for part in parts}
    return found


def described_logs(api: LedgerStore, *, stamped: bool = False) -> dict[str, Any]:
    """Return for each log its description, the digests of its entries, its schemas and its cursors.

    If `stamped` is not set, the digests leave out the broker's stamps and the markers. Their times differ if a broker
    finishes a commit after a kill.
    """
    return {name: _described_log(api, ledger, stamped=stamped) for name, ledger in ledgers(api).items()}


def _described_log(api: LedgerStore, ledger: Ledger, *, stamped: bool) -> dict[str, Any]:
    described = ledger.describe()
    schemas = [
        api.client.ask(GetSchema(ledger.name, version)).arrow_schema for version in range(described.schema_version + 1)
    ]
    return _plain(
        {
            **{name: getattr(described, name) for name in _NAMED},
            "properties": {name: text for name, text in described.properties.items() if not name.startswith("ledger.")},
            "segments": [(row.ledger_id, row.entries, row.rows) for row in described.segments if row.entries],
            "bytes": _answered(lambda: _digests(api, ledger.name, stamped=stamped)),
            "schemas": [hashlib.sha256(schema).hexdigest() for schema in schemas],
            "cursors": {name: _described_cursor(ledger, name) for name in sorted(described.cursors)},
        }
    )


def _digests(api: LedgerStore, name: str, *, stamped: bool) -> dict[str, str]:
    """Return a digest of the entries of each segment: of their bytes if `stamped`, else of metadata and payloads."""
    found: dict[int, Any] = {}
    for block in api.client.read_blocks(ReadRequest(name, PositionRange(EARLIEST, LATEST))):
        for number, frame in iter_frames(block.frames, block.ledger_id, block.first_entry, block.entries):
            digest = found.setdefault(block.ledger_id, hashlib.sha256())
            digest.update(f"{number} ".encode())
            if stamped:
                digest.update(frame)
                continue
            entry = parse_entry(frame, name)
            if not is_marker(entry.metadata):
                digest.update(entry.metadata.SerializeToString(deterministic=True) + entry.payload)
    return {str(ledger_id): digest.hexdigest() for ledger_id, digest in sorted(found.items())}


def _described_cursor(ledger: Ledger, name: str) -> dict[str, Any]:
    cursor = Cursor(ledger, name)
    state = cursor.state()
    holes = ledger.client.ask(AskAckedRanges(ledger.name, name, PositionRange(EARLIEST, LATEST), whole=True)).info
    info = decode_info(holes, f"cursor {name}")
    return {
        **{field: getattr(state, field) for field in _COUNTED},
        "mark_delete": info.mark_delete,
        "acknowledged": short(described_set(info.acknowledged)),
    }


def described_set(positions: PositionSet) -> list[list[int]]:
    """Return runs of whole entries as `[ledger, first, end]`, and other entries as `[ledger, entry, -1, words…]`."""
    runs = [
        [run.ledger_id, int(first), int(end)]
        for run in positions.runs()
        for first, end in zip(run.starts, run.ends, strict=True)
    ]
    left = [
        [ledger_id, int(entry), -1, *rows.words[rows.starts[at] : rows.starts[at + 1]].tolist()]
        for ledger_id in positions.ledgers()
        for rows in [positions.rows(ledger_id)]
        for at, entry in enumerate(rows.entries)
    ]
    return runs + left


def described_deliveries(api: LedgerStore, ledger: str, cursor: str) -> dict[str, Any]:
    """Return the newest record of a cursor's batches, and its record of dead letters."""
    newest = api.client.ask(AskDelivery(ledger, cursor, 0)).record
    ask = {"newest": newest, "dead letters": -1}
    return {
        name: _answered(lambda number=number: _described_delivery(api, ledger, cursor, number))
        for name, number in ask.items()
    }


def _described_delivery(api: LedgerStore, ledger: str, cursor: str, number: int) -> dict[str, Any]:
    found = api.client.ask(AskDelivery(ledger, cursor, number))
    shares = [[share.count, share.range, share.at_ms, _described_skip(share.skip)] for share in found.shares]
    return {"record": found.record, "position": found.position, "shares": shares}


def _described_skip(skip: bytes) -> Any:
    if len(skip) > _SKIP_MAX:
        return {"bytes": len(skip), "sha256": hashlib.sha256(skip).hexdigest()}
    return described_set(decode_info(skip, "a share").acknowledged) if skip else []


def described_sequences(api: LedgerStore, ledger: str, producers: Iterable[str]) -> dict[str, int]:
    """Return the last sequence id of each producer."""
    return {producer: api.client.ask(AskSequence(ledger, producer)).sequence_id for producer in producers}


def described_rows(**options: str) -> Any:
    """Return the rows of a bounded read in the order of the log. It is planned and run as by Spark."""

    def read() -> Any:
        given = {"includeMetadata": "true", **options}
        source = LedgerSource(given, "0.1.0")
        reader = source.batch_reader(source.schema())
        rows = [
            _plain(row)
            for part in reader.partitions() or []
            for batch in reader.read(part)
            for row in batch.to_pylist(maps_as_pydicts="strict")
        ]
        return short(sorted(rows, key=_place))

    return _answered(read)


def short(rows: list[Any]) -> Any:
    """Return the rows, or the number and the digest of many rows."""
    if len(rows) <= LISTED_MAX:
        return rows
    text = "\n".join(json.dumps(_plain(row), sort_keys=True) for row in rows)
    return {"count": len(rows), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _answered(ask: Callable[[], Any]) -> Any:
    """Return the answer, or the code of the error that was raised."""
    try:
        return ask()
    except LedgerError as error:
        return f"error: {error.code}"


def _plain(value: Any) -> Any:
    """Return the value with types of JSON only. Bytes become base64."""
    return json.loads(msgspec.json.encode(value, enc_hook=repr, order="sorted"))


def described_live(api: LedgerStore, folder: Path) -> dict[str, Any]:
    """Return the description of a store by its broker."""
    path = api.client.hello().store_path
    names = list(ledgers(api))
    policies = {name: api.ledger(name).policy() for name in api.names()}
    changed = {setting.name: setting.value for setting in api.client.ask(AskSettings()).settings if setting.changed}
    return _plain(
        {
            "names": api.names(),
            "logs": described_logs(api),
            "rows": {name: described_rows(path=name, store=path) for name in names if name not in _UNREAD},
            "policies": {name: [policy.stated, policy.inherited] for name, policy in policies.items()},
            "settings": changed,
            "deliveries": {name: described_deliveries(api, name, "s") for name in ("delivered", "large")},
            "sequences": described_sequences(api, "once", ("first", "second", "third")),
            "history": described_rows(path="published", store=path, history=str(folder / "table")),
        }
    )


def described_read_only(store: Path) -> dict[str, Any]:
    """Return the description of a store that is read without a broker."""
    api = open_read_only(store)
    logs = described_logs(api, stamped=True)
    rows = {
        name: _answered(lambda ledger=ledger: short(_without_metadata(ledger.read()).to_pylist()))
        for name, ledger in ledgers(api).items()
        if name not in _UNREAD
    }
    return _plain({"names": api.names(), "logs": logs, "rows": rows})


def _without_metadata(rows: pa.Table) -> pa.Table:
    """Return the columns without the metadata columns of messages."""
    return rows.select([name for name in rows.column_names if name not in METADATA.names])


def described_bucket(folder: Path) -> dict[str, Any]:
    """Return the rows of all ledgers in the bucket, read from its objects alone."""
    where = {"offload": str(folder / "bucket")}
    given = {"both": {}, "archive": {}, "secret": {"cryptoKeys": f"file:{folder / 'secret.pem'}"}}
    return {name: described_rows(path=name, **where, **more) for name, more in given.items()}


def described_table(folder: Path) -> Any:
    """Return the rows of the published table, read by the library `deltalake`."""
    rows = DeltaTable(str(folder / "table")).to_pyarrow_table().to_pylist()
    return _plain(sorted(rows, key=_place))


def _place(row: dict[str, Any]) -> list[int]:
    return [row["__position"][name] for name in ("ledgerId", "entryId", "batchIndex")]
