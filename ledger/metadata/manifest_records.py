"""Manifests of batches over several ledgers, as rows of the metadata file: the newest one of each query.

    manifest      query, batch, JSON of `Manifest`: which staged parts go to which ledger, and whether all are there

Rules
- Writing a manifest is the commit point of its batch, durable when it returns. It replaces the manifest of the query's
  batch before, which was done.
- A finished manifest is kept, because the ledgers alone do not show that the batch was committed. A repeated run may
  route its rows to others.
- A manifest names no terminated ledger, and no ledger is terminated while an unfinished manifest names it. Reason: a
  committed batch must be writable.
"""

from __future__ import annotations

import sqlite3

import msgspec

from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Refused, Terminated
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.commits import StagedPart


class ManifestRun(msgspec.Struct, frozen=True):
    """Parts of one ledger, in order."""

    ledger: str
    incarnation: str
    parts: list[StagedPart]


class Manifest(msgspec.Struct, frozen=True):
    """Committed batch over several ledgers. `done`: all of its runs are in their ledgers.

    `once`: its query has no other batch.
    """

    query: str
    batch: int
    txn_most: int
    txn_least: int
    runs: list[ManifestRun]
    done: bool = False
    once: bool = False
    committed_ms: int = 0


MANIFEST_TABLE = RecordTable(
    "manifest",
    ("query TEXT NOT NULL", "batch INTEGER NOT NULL", "body BLOB NOT NULL"),
    "PRIMARY KEY (query, batch)",
)
_MANIFEST = msgspec.json.Decoder(Manifest)


class ManifestRecords(Records):
    """All manifests of a store. Any thread may call any method."""

    def newest(self, query: str) -> Manifest | None:
        """Return the manifest of a query's newest batch over several ledgers."""
        row = self._file.read(
            lambda c: c.execute(
                "SELECT body FROM manifest WHERE query = ? ORDER BY batch DESC LIMIT 1", (query,)
            ).fetchone()
        )
        return None if row is None else _MANIFEST.decode(row[0])

    def pending(self) -> list[Manifest]:
        """Return the manifests whose runs are not all known to be in their ledgers, in no order."""
        rows = self._file.read(lambda c: c.execute("SELECT body FROM manifest").fetchall())
        found = [_MANIFEST.decode(row[0]) for row in rows]
        return [manifest for manifest in found if not manifest.done]

    def put(self, manifest: Manifest) -> None:
        """Write the commit point of a batch. Refused while an earlier manifest of the query is not done."""

        def put(c: sqlite3.Connection) -> None:
            rows = c.execute("SELECT batch, body FROM manifest WHERE query = ?", (manifest.query,)).fetchall()
            for batch, body in rows:
                if batch >= manifest.batch or not _MANIFEST.decode(body).done:
                    raise Refused(
                        f"batch {manifest.batch} of query {manifest.query!r} comes behind batch {batch}",
                        hint="Commit the batches of a query one after the other",
                    )
            for run in manifest.runs:
                _require_going(c, run.ledger)
            c.execute("DELETE FROM manifest_row WHERE query = ?", (manifest.query,))
            c.execute(
                "INSERT INTO manifest_row VALUES (?, ?, ?)",
                (manifest.query, manifest.batch, msgspec.json.encode(manifest)),
            )

        self._file.change(put)

    def finish(self, manifest: Manifest) -> None:
        body = msgspec.json.encode(msgspec.structs.replace(manifest, done=True))
        key = (manifest.query, manifest.batch)
        self._file.change(
            lambda c: c.execute("UPDATE manifest_row SET body = ? WHERE query = ? AND batch = ?", (body, *key))
        )

    def forget_before(self, cutoff_ms: int) -> None:
        """Delete finished manifests of queries without another batch, whose staged parts are gone."""
        rows = self._file.read(lambda c: c.execute("SELECT body FROM manifest").fetchall())
        found = [_MANIFEST.decode(row[0]) for row in rows]
        past = [(m.query,) for m in found if m.once and m.done and m.committed_ms < cutoff_ms]
        if past:
            self._file.change(lambda c: c.executemany("DELETE FROM manifest_row WHERE query = ?", past))


def require_none_pending(c: sqlite3.Connection, ledger: str) -> None:
    """Refuse, within a change, to end a ledger that a committed batch still has to be written to."""
    for (body,) in c.execute("SELECT body FROM manifest"):
        manifest = _MANIFEST.decode(body)
        if not manifest.done and any(run.ledger == ledger for run in manifest.runs):
            raise Refused(
                f"{ledger!r} cannot be terminated: batch {manifest.batch} of query {manifest.query!r} is committed to "
                "it and not written yet",
                hint="Terminate it again in a moment",
            )


def _require_going(c: sqlite3.Connection, ledger: str) -> None:
    row = c.execute("SELECT info FROM ledger WHERE name = ?", (ledger,)).fetchone()
    if row is not None and ManagedLedgerInfo.FromString(row[0]).HasField("terminatedPosition"):
        raise Terminated(f"{ledger!r} was terminated: no batch can be committed to it", hint="Write to another ledger")
