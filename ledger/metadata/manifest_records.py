"""Manifests of batches that write to several ledgers: a row of the metadata file for the newest batch of each query.

    manifest      query, batch, JSON of `Manifest`: the staged parts (files of rows) for each ledger, and whether all
                  parts are in their ledgers

Rules
- The write of a manifest commits its batch. The manifest is durable when the call returns. It replaces the manifest of
  the query's previous batch, whose rows are in all ledgers by then.
- The manifest stays after its batch is done, because it shows that a later commit is a repetition. The ledgers alone
  cannot show this: the repetition may write its rows to other ledgers.
- If a ledger is deleted, a manifest without parts keeps the newest batch of each streaming query that wrote to it. So
  the query learns that the ledger was created again. The key of this row is `deleted`, the ledger and the query. There
  are at most `_DELETED_MAX` such rows, and the oldest are deleted. An earlier version ignores them.
- Every ledger of a committed batch must accept the batch's rows. So a manifest with a terminated ledger (closed for
  ever) is refused. And no ledger is terminated while an unfinished manifest names it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Refused, Terminated
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RunOrigin, is_written
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.commits import StagedPart


class ManifestRun(msgspec.Struct, frozen=True):
    """Staged parts for one ledger, in order."""

    ledger: str
    incarnation: str
    parts: list[StagedPart]


class Manifest(msgspec.Struct, frozen=True):
    """Committed batch that writes to several ledgers. `done` means that all ledgers have their rows.

    `once` means a batch write, which has no later batch.
    """

    query: str
    batch: int
    txn_most: int
    txn_least: int
    runs: list[ManifestRun]
    done: bool = False
    once: bool = False
    committed_ms: int = 0
    origin: RunOrigin = RunOrigin()

    @property
    def rows(self) -> int:
        """The number of rows in all parts."""
        return sum(part.rows for run in self.runs for part in run.parts)


MANIFEST_TABLE = RecordTable(
    "manifest",
    ("query TEXT NOT NULL", "batch INTEGER NOT NULL", "body BLOB NOT NULL"),
    "PRIMARY KEY (query, batch)",
)
_MANIFEST = msgspec.json.Decoder(Manifest)
_DELETED, _DELETED_MAX = "deleted\n", 1000


class ManifestRecords(Records):
    """Manifests of a store. Any thread may call any method."""

    def newest(self, query: str) -> Manifest | None:
        """Return the manifest of a query's newest batch, or None."""
        row = self._file.read(
            lambda c: c.execute(
                "SELECT body FROM manifest WHERE query = ? ORDER BY batch DESC LIMIT 1", (query,)
            ).fetchone()
        )
        return None if row is None else _MANIFEST.decode(row[0])

    def pending(self) -> list[Manifest]:
        """Return the manifests that are not done, in any order."""
        rows = self._file.read(lambda c: c.execute("SELECT body FROM manifest").fetchall())
        found = [_MANIFEST.decode(row[0]) for row in rows]
        return [manifest for manifest in found if not manifest.done]

    def put(self, manifest: Manifest) -> None:
        """Write a manifest, which commits its batch. Raises Refused while an earlier batch of the query is not done."""

        def put(c: sqlite3.Connection) -> None:
            rows = c.execute("SELECT batch, body FROM manifest WHERE query = ?", (manifest.query,)).fetchall()
            for batch, body in rows:
                earlier = _MANIFEST.decode(body)
                if is_written(manifest.batch, manifest.origin, earlier) or not earlier.done:
                    raise Refused(
                        f"batch {manifest.batch} of query {manifest.query!r} cannot be committed: batch {batch} is "
                        "newer, or not finished",
                        hint="Commit the batches of a query one after another",
                    )
            for run in manifest.runs:
                _require_not_terminated(c, run.ledger)
            c.execute("DELETE FROM manifest_row WHERE query = ?", (manifest.query,))
            c.execute(
                "INSERT INTO manifest_row VALUES (?, ?, ?)",
                (manifest.query, manifest.batch, msgspec.json.encode(manifest)),
            )

        self._file.change(put)

    def deleted_run(self, ledger: str, query: str) -> tuple[int, str] | None:
        """Return the newest batch of a query in the deleted ledger of this name, and the incarnation of this ledger."""
        row = self._file.read(
            lambda c: c.execute("SELECT body FROM manifest WHERE query = ?", (_deleted_key(ledger, query),)).fetchone()
        )
        if row is None:
            return None
        found = _MANIFEST.decode(row[0])
        return found.batch, found.runs[0].incarnation

    def finish(self, manifest: Manifest) -> None:
        """Record that a batch is done."""
        body = msgspec.json.encode(msgspec.structs.replace(manifest, done=True))
        key = (manifest.query, manifest.batch)
        self._file.change(
            lambda c: c.execute("UPDATE manifest_row SET body = ? WHERE query = ? AND batch = ?", (body, *key))
        )

    def forget_before(self, cutoff_ms: int) -> None:
        """Delete the manifests of finished batch writes that were committed before `cutoff_ms`."""
        rows = self._file.read(lambda c: c.execute("SELECT body FROM manifest").fetchall())
        found = [_MANIFEST.decode(row[0]) for row in rows]
        past = [(m.query,) for m in found if m.once and m.done and m.committed_ms < cutoff_ms]
        if past:
            self._file.change(lambda c: c.executemany("DELETE FROM manifest_row WHERE query = ?", past))


def put_deleted(c: sqlite3.Connection, ledger: str, batches: Iterable[CommittedBatch], now_ms: int) -> None:
    """Keep the newest batches of the streaming queries of a ledger that is deleted within this transaction.

    The column `batch` has the time of the deletion, by which the oldest rows are found.
    """
    row = c.execute("SELECT incarnation FROM ledger WHERE name = ?", (ledger,)).fetchone()
    for batch in batches:
        key = _deleted_key(ledger, batch.query)
        run = ManifestRun(ledger, row[0], [])
        manifest = Manifest(key, batch.batch, 0, 0, [run], done=True, committed_ms=now_ms, origin=batch.origin)
        c.execute("DELETE FROM manifest_row WHERE query = ?", (key,))
        c.execute("INSERT INTO manifest_row VALUES (?, ?, ?)", (key, now_ms, msgspec.json.encode(manifest)))
    c.execute(
        "DELETE FROM manifest_row WHERE (query, batch) IN (SELECT query, batch FROM manifest "
        "WHERE query > ? AND query < ? ORDER BY batch DESC LIMIT -1 OFFSET ?)",
        (_DELETED, _DELETED + "~", _DELETED_MAX),
    )


def _deleted_key(ledger: str, query: str) -> str:
    return f"{_DELETED}{ledger}\n{query}"


def require_none_pending(c: sqlite3.Connection, ledger: str) -> None:
    """Raise Refused if a committed batch must still be written to the ledger. Called within a transaction."""
    for (body,) in c.execute("SELECT body FROM manifest"):
        manifest = _MANIFEST.decode(body)
        if not manifest.done and any(run.ledger == ledger for run in manifest.runs):
            raise Refused(
                f"{ledger!r} cannot be terminated: batch {manifest.batch} of query {manifest.query!r} is committed and "
                "not written to it yet",
                hint="Terminate the ledger again in a moment",
            )


def _require_not_terminated(c: sqlite3.Connection, ledger: str) -> None:
    row = c.execute("SELECT info FROM ledger WHERE name = ?", (ledger,)).fetchone()
    if row is not None and ManagedLedgerInfo.FromString(row[0]).HasField("terminatedPosition"):
        raise Terminated(f"{ledger!r} was terminated: no batch can be committed to it", hint="Write to another ledger")
