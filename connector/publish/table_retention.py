"""What retention took from a log goes from its published table, too, where the user wants that.

Rules: rows of segments before the log's beginning go, in one DELETE that says what it is. A log whose segments go
because they are published keeps its table: the two together would delete everything, and are refused.
"""

from __future__ import annotations

from pyspark_ledger.connector.publish.delta_table import DeltaTable, tagged_session
from pyspark_ledger.connector.publish.segments import SealedLog, StoreSegments
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.offload.table.commit_metadata import Publication


def require_no_deletion(source: StoreSegments) -> None:
    """Refuse a ledger that is deleted as it is published."""
    found = source.connection.call(lambda client: client.call("policy", ChangePolicy(source.name)))
    if found.effective["deleteAfterPublish"]:
        raise Refused(
            f"{source.name} has policy deleteAfterPublish, and its table was to follow its retention: all would go",
            hint="Publish without follow_retention, or set the policy to 0",
        )


def delete_trimmed(table: DeltaTable, log: SealedLog) -> None:
    """Delete the rows of a log that lie before its beginning."""
    said = Publication("retention", log.name, log.incarnation).text()
    topic, incarnation = (text.replace("\\", "\\\\").replace("'", "\\'") for text in (log.topic, log.incarnation))
    gone = (
        f"`__topic` = '{topic}' AND `__incarnation` = '{incarnation}' "
        f"AND `__position`.`ledgerId` < {log.start.ledger_id}"
    )
    apart = table.in_session(tagged_session(table.spark, said))
    apart.run(f"DELETE FROM {table.sql} WHERE {gone}")  # noqa: S608  # a quoted name and numbers
