"""Option `history`: the Delta table to which a ledger is published, and the access to the table's bucket.

Rules
- The options for access to the table's bucket are the same as for the bucket of option `offload`.
- `subscription` is refused, because a subscription keeps a position in the log, not in the table.
- `ledgers` and `ledgersPattern` are refused, because a table contains one ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_ledger.connector.options.bucket import ACCESS, BucketOptions
from pyspark_ledger.connector.options.option import READS, option, text
from pyspark_ledger.ledger.errors import Refused

if TYPE_CHECKING:
    from pyspark_ledger.offload.table.table_address import TableAddress

_STRANGE: Mapping[str, tuple[str, str]] = {
    "subscription": (
        "a subscription keeps a position in the log, and not in a table",
        "Leave it out: the checkpoint keeps the position",
    ),
    "ledgers": ("a table contains one ledger", "Read each ledger with its table, and union the results"),
    "ledgers_pattern": ("a table contains one ledger", "Read each ledger with its table, and union the results"),
    "table": (
        "the option reads data about the store, such as the list of ledgers, and a published table has only rows",
        "Leave 'history' out",
    ),
}


@dataclass(frozen=True)
class HistoryOptions:
    """Table to which a ledger is published."""

    bucket: BucketOptions
    table: str = option(
        text,
        READS,
        "The Delta table to which the ledger is published, as a path or `s3://` address. The read takes published "
        "rows from the table and later rows from the log, each row once. A batch read with `offload` takes later rows "
        "from the bucket. The options for access to a bucket also apply to the table. A stream with this option begins "
        "at `earliest` by default.",
        absent="",
        name="history",
    )

    def address(self) -> TableAddress:
        """Return the address. Raises Refused for an invalid address."""
        from pyspark_ledger.offload.table.table_address import TableAddress

        return TableAddress.of(self.table, self.bucket.s3())


def take_history_options(values: dict[str, object], names: Mapping[str, str]) -> HistoryOptions | None:
    """Remove the options of a table from `values`, and return them; None without option `history`.

    `names` maps fields to the names of options, for errors.
    """
    if "history" not in values:
        return None
    strange = sorted(set(values) & _STRANGE.keys())
    if strange or values.get("ack_mode") == "explicit":
        why, hint = _STRANGE[strange[0] if strange else "subscription"]
        name = names[strange[0]] if strange else "ackMode"
        raise Refused(f"option {name!r} has no meaning with 'history': {why}", hint=hint)
    if "offload" in values and "ledger" not in values:
        raise Refused(
            "option 'history' has no meaning for a read that lists a bucket", hint="Name the ledger in load()"
        )
    taken = values.get if "offload" in values else values.pop
    reached = {name: taken(name) for name in list(values) if name in ACCESS}
    return HistoryOptions(BucketOptions(**reached), str(values.pop("history")))  # type: ignore[arg-type]  # see options
