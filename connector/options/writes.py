"""Options of writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from pyspark_ledger.connector.options.option import DAY_MS, MIB, WRITES, flag, number, one_of, option, size, text

if TYPE_CHECKING:
    from pyspark_ledger.ledger.message.column_encoding import Compression
    from pyspark_ledger.ledger.protocol.commits import RepeatedBatches


def _action(value: str) -> Literal["ack", "nack"]:
    return "ack" if one_of("ack", "nack")(value) == "ack" else "nack"


def _compression(value: str) -> Compression:
    return cast("Compression", one_of("auto", "none", "lz4", "zstd")(value))


def _repeated_batches(value: str) -> RepeatedBatches:
    return cast("RepeatedBatches", one_of("refuse", "skip", "append")(value))


@dataclass(frozen=True)
class WriteOptions:
    """Writes."""

    merge_schema: bool = option(
        flag,
        WRITES,
        "Add columns, and fields of structs, that are missing in the ledger's schema. Write null for those that are "
        "missing in the rows. A column becomes wider if the rows need it, such as `int` to `bigint`.",
        default="false",
    )
    action: Literal["ack", "nack"] | None = option(
        _action,
        ("batch write",),
        "Acknowledge rows instead of writing them. `ack` acknowledges the rows for `subscription`. Column "
        "`__position` or `__messageId` has the positions of the rows. `nack` is for rows that were delivered with "
        "`ackMode` = `explicit`: they are redelivered at once.",
    )
    entry_bytes: int = option(
        size(1024, 64 * MIB),
        WRITES,
        "Approximate size of an entry. An entry must fit into a block (`ledgerBlockSizeBytes`).",
        default="4m",
    )
    compression: Compression = option(
        _compression,
        WRITES,
        "Encoding of an entry's columns. `lz4` and `zstd` compress them, with dictionaries. `auto` works like `lz4` "
        "if a sample shrinks by a fifth, else like `none`. `none` stores plain columns, which a reader on the "
        "broker's host maps without a copy.",
        default="auto",
    )
    create_ledgers: bool = option(
        flag,
        WRITES,
        "Create a missing ledger that a row names in column `__ledger`, instead of failing.",
        default="false",
    )
    txn_app_id: str | None = option(
        text,
        ("batch write",),
        "Name of an application that may repeat writes, for `foreachBatch`; needs `txnVersion`. A write is skipped if "
        "its version is not above the newest version of its application in the ledger. A streaming write is idempotent "
        "without this option.",
    )
    txn_version: int | None = option(
        number(0, 2**63 - 1),
        ("batch write",),
        "Version of this write. It must rise from write to write of a `txnAppId`. In `foreachBatch`, give the number "
        "of the batch.",
    )
    repeated_batches: RepeatedBatches = option(
        _repeated_batches,
        ("stream write",),
        "A way out after the checkpoint of a query went back, or was copied. `refuse` ends the query with an error. "
        "`skip` stores none of the rows of a batch whose number is not above the newest one. `append` stores the rows "
        "of each refused batch, also rows that are stored already. Remove the option after the next start of the "
        "query.",
        default="refuse",
    )
    commit_timeout_ms: int = option(
        number(1, DAY_MS),
        WRITES,
        "Longest time that a commit is retried while the broker is unreachable. A repeated commit appends its "
        "batch once.",
        default="60000",
    )
