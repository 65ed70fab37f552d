"""Optional retention of a published table: deletes the rows of segments that the log's retention deleted.

The page docs/concepts.md explains the words segment and log.

Rules
- One DELETE, marked as a commit of the publisher, deletes the rows of all segments before the log's start.
- A ledger with policy `deleteAfterPublish` is refused, because every row would be deleted from the log and then from
  the table.
"""

from __future__ import annotations

from pyspark_ledger.connector.publish.delta_table import DeltaTable, tagged_session
from pyspark_ledger.connector.publish.segments import SealedLog, StoreSegments
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.offload.table.commit_metadata import Publication


def require_no_deletion(source: StoreSegments) -> None:
    """Raise Refused if the ledger's segments are deleted after publication."""
    policy = source.connection.ask(ChangePolicy(source.name))
    if policy.effective["deleteAfterPublish"]:
        raise Refused(
            f"{source.name} has policy deleteAfterPublish, and follow_retention is set: all rows would be deleted",
            hint="Publish without follow_retention, or set the policy to 0",
        )


def delete_trimmed(table: DeltaTable, log: SealedLog) -> None:
    """Delete the table's rows of segments before the start of the log. Raises LostRace."""
    metadata = Publication("retention", log.name, log.incarnation).text()
    own_rows = f"__topic = {_literal(log.topic)} AND __incarnation = {_literal(log.incarnation)}"
    trimmed_rows = f"{own_rows} AND __position.ledgerId < {log.start.ledger_id}"
    with tagged_session(table.spark, metadata) as session:
        table.in_session(session).change(f"DELETE FROM {table.sql} WHERE {trimmed_rows}")  # noqa: S608


def _literal(text: str) -> str:
    """Return a text for SQL. Its bytes need no escapes, which depend on settings. Delta 4.2 refuses parameters."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"
