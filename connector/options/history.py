"""Option `history`: a table to which a ledger is published, and the access to its bucket.

Rules: the access options are those of `offload`. Options that only a log supports are refused: a subscription keeps a
position in the log, and a table is of one ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.options.bucket import BucketOptions
from pyspark_ledger.connector.options.option import READS, option, text
from pyspark_ledger.ledger.errors import Refused

if TYPE_CHECKING:
    from pyspark_ledger.offload.table.table_address import TableAddress

_OF_A_BUCKET = frozenset(
    {
        "offload_endpoint", "offload_region", "offload_path_style", "offload_profile", "offload_role",
        "offload_role_external_id", "offload_bucket_owner", "credential_provider",
    }
)  # fmt: skip
_STRANGE: Mapping[str, tuple[str, str]] = {
    "subscription": ("a subscription's place is in the log, and a table has none", "The checkpoint keeps the place"),
    "ledgers": ("a table is of one ledger", "Read each ledger with its table, and union them"),
    "ledgers_pattern": ("a table is of one ledger", "Read each ledger with its table, and union them"),
    "table": ("what a store knows of itself is in no table", "Leave 'history' out"),
}


@dataclass(frozen=True)
class HistoryOptions:
    """Table to which a ledger is published."""

    bucket: BucketOptions
    table: str = option(
        text,
        READS,
        "The Delta table to which the ledger is published, as a path or `s3://` address. The read takes published "
        "rows from the table and later rows from the log, each row once. A batch with `offload` takes later rows "
        "from the bucket. The bucket's access options apply to the table, too. A stream with this option begins at "
        "`earliest`.",
        absent="",
        name="history",
    )

    def address(self) -> TableAddress:
        """Return the address. Raises Refused for an invalid one."""
        from pyspark_ledger.offload.table.table_address import TableAddress

        return TableAddress.of(self.table, self.bucket.s3())


def take_history_options(values: dict[str, object], names: Mapping[str, str]) -> HistoryOptions | None:
    """Take the options of a table out of `values`; None if there is none. `names` spells fields for errors."""
    if "history" not in values:
        return None
    strange = sorted(set(values) & _STRANGE.keys())
    if strange or values.get("ack_mode") == "explicit":
        why, hint = _STRANGE[strange[0] if strange else "subscription"]
        name = names[strange[0]] if strange else "ackMode"
        raise Refused(f"option {name!r} has no meaning with 'history': {why}", hint=hint)
    if "offload" in values and "ledger" not in values:
        raise Refused("option 'history' has no meaning for what a bucket lists", hint="Name the ledger in load()")
    taken = values.get if "offload" in values else values.pop
    reached = {name: taken(name) for name in list(values) if name in _OF_A_BUCKET}
    return HistoryOptions(BucketOptions(**reached), str(values.pop("history")))  # type: ignore[arg-type]  # see options
