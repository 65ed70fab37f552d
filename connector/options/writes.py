"""Options of writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark_ledger.connector.options.option import DAY_MS, MIB, WRITES, flag, number, one_of, option, size, text


def _compression(value: str) -> Literal["lz4", "zstd"] | None:
    """Return the name of a codec; None for none."""
    known: dict[str, Literal["lz4", "zstd"] | None] = {"none": None, "lz4": "lz4", "zstd": "zstd"}
    return known[one_of(*known)(value)]


def _action(value: str) -> Literal["ack", "nack"]:
    return "ack" if one_of("ack", "nack")(value) == "ack" else "nack"


@dataclass(frozen=True)
class WriteOptions:
    """Writes."""

    merge_schema: bool = option(
        flag,
        WRITES,
        "Add columns that the ledger has not to its schema, and let columns that are not written be null. Types of "
        "columns never change.",
        default="false",
    )
    action: Literal["ack", "nack"] | None = option(
        _action,
        ("batch write",),
        "Write nothing, and say something of the rows that `__position` or `__messageId` name: `ack` acknowledges them "
        "for `subscription`, for good; `nack` gives back at once what was delivered with `ackMode` explicit.",
    )
    entry_bytes: int = option(
        size(1024, 64 * MIB),
        WRITES,
        "About how many bytes of rows make one entry. An entry must fit a block of the ledger.",
        default="4m",
    )
    compression: Literal["lz4", "zstd"] | None = option(
        _compression,
        WRITES,
        "How the columns of an entry are compressed: `none` (mapped reads copy nothing), `lz4` or `zstd`.",
        default="none",
    )
    create_ledgers: bool = option(
        flag,
        WRITES,
        "Create a ledger that a row names in `__ledger` and that is not there, instead of failing.",
        default="false",
    )
    txn_app_id: str | None = option(
        text,
        ("batch write",),
        "With `txnVersion`: makes a write idempotent, for `foreachBatch`. Of one application, a version that is not "
        "above the newest in the ledger is skipped. A stream is so by itself.",
    )
    txn_version: int | None = option(
        number(0, 2**63 - 1),
        ("batch write",),
        "The version of this write, rising within its `txnAppId`: in `foreachBatch` the number of the batch.",
    )
    commit_timeout_ms: int = option(
        number(1, DAY_MS),
        WRITES,
        "How long a commit is retried while the broker cannot be reached. Repeating is safe: a batch is appended once.",
        default="60000",
    )
