"""Options of reads: start and end, columns, size of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_ledger.connector.options.option import (
    DAY_MS,
    LONG_CHARS_MAX,
    READS,
    columns,
    duration,
    flag,
    ledger,
    number,
    one_of,
    option,
    position,
    size,
    text,
    time,
)
from pyspark_ledger.connector.options.positions import parse_positions, parse_timestamps
from pyspark_ledger.ledger.position import Position

_BYTES_MOST = 2**50


@dataclass(frozen=True)
class EveryReadOptions:
    """Options of every read, from a ledger or from a bucket."""

    ending_timestamp: int | None = option(
        time,
        READS,
        "End before the first entry that the broker stored at or after this time. The forms are those of "
        "`startingTimestamp`. Cannot be combined with `endingPosition`.",
    )
    fail_on_data_loss: bool = option(
        flag,
        READS,
        "Fail if entries to be read are missing. `false` reads the remaining entries, and counts and reports the lost "
        "ones.",
        default="true",
    )


@dataclass(frozen=True)
class ReadOptions(EveryReadOptions):
    """Options of a read of ledgers."""

    starting_position: Position | None = option(
        position,
        READS,
        "Start of the read: `earliest`, `latest` (streams only) or, for one ledger, `SEGMENT:ENTRY`, inclusive. A "
        "checkpoint or an existing cursor of the `subscription` takes precedence over this option and the next three.",
        otherwise="earliest (batch), latest (stream)",
    )
    starting_timestamp: int | None = option(
        time,
        READS,
        "Start at the first entry that the broker stored at or after this time: milliseconds since 1970, or ISO 8601 "
        "with a zone, such as `2026-11-22T10:15:00Z` or `2026-11-22 10:15:00.123+01:00`. If all entries are older, "
        "start at the end.",
    )
    starting_positions: Mapping[str, Position] = option(
        parse_positions,
        READS,
        'Start of single ledgers, as JSON by name: `{"orders": "3:17", "clicks": "earliest"}`. Takes '
        "precedence over `startingPosition` and `startingTimestamp`. `pyspark_ledger.positions_json` builds the "
        "text.",
        absent={},
        chars_max=LONG_CHARS_MAX,
    )
    starting_timestamps: Mapping[str, int] = option(
        parse_timestamps,
        READS,
        'Start of single ledgers by time: `{"orders": 1700000000000, "clicks": "2026-11-22T10:15:00Z"}`. A ledger may '
        "be in `startingPositions` or here, not in both. `pyspark_ledger.timestamps_json` builds the text.",
        absent={},
        chars_max=LONG_CHARS_MAX,
    )
    ending_position: Position | None = option(
        position,
        READS,
        "End of the read: `latest`, or for one ledger a position `SEGMENT:ENTRY`. The read ends before this position. "
        "`latest`, for batch reads only, is the end of the ledger when Spark plans the read.",
        otherwise="latest (batch), none (stream)",
    )
    table: str | None = option(
        one_of("ledgers", "segments", "cursors", "holes", "cache"),
        ("batch read",),
        "Return a table about the store instead of rows: `ledgers`, `segments`, `cursors`, `cache` or `holes`. `holes` "
        "has the ranges that cursors have acknowledged out of order. The table covers the ledger of `load()`, or all "
        "ledgers if `load()` names no ledger.",
    )
    ending_positions: Mapping[str, Position] = option(
        parse_positions,
        READS,
        "End of single ledgers, in the form of `startingPositions`. Takes precedence over `endingPosition` "
        "and `endingTimestamp`.",
        absent={},
        chars_max=LONG_CHARS_MAX,
    )
    ending_timestamps: Mapping[str, int] = option(
        parse_timestamps,
        READS,
        "End of single ledgers by time, in the form of `startingTimestamps`.",
        absent={},
        chars_max=LONG_CHARS_MAX,
    )
    wait_for_ledger: bool = option(
        flag,
        READS,
        "Wait if a ledger does not exist yet or has no columns yet, instead of failing.",
        default="false",
    )
    wait_timeout_ms: int = option(number(1, DAY_MS), READS, "Longest wait of `waitForLedger`.", default="300000")
    include_metadata: bool = option(
        flag,
        READS,
        "Add the columns `__key`, `__topic`, `__messageId`, `__publishTime`, `__eventTime`, `__messageProperties` "
        "and `__position`.",
        default="false",
    )
    columns: tuple[str, ...] | None = option(
        columns,
        READS,
        "The columns to read, separated by commas. Other columns are not decoded. The list may contain metadata "
        "columns, which come last.",
        otherwise="all",
        chars_max=LONG_CHARS_MAX,
    )
    payload_schema: str | None = option(
        text,
        READS,
        "For a ledger that contains messages (raw bytes) instead of rows: the schemas of the messages, so that the "
        "read returns typed columns. Give JSON (an Avro schema, or Pulsar's list of a topic's schemas), the path of a "
        "file on the driver with such JSON, or a type such as `STRING`.",
        otherwise="the ledger's registered schemas",
        chars_max=LONG_CHARS_MAX,
    )
    rescued_data_column: str | None = option(
        text,
        READS,
        "Add a text column of this name. The text is JSON: an undecodable payload with reason and position, or the "
        "values of columns that were added after Spark planned the query. Without this option, an undecodable payload "
        "fails the read.",
    )
    dead_letter_ledger: str = option(
        ledger,
        ("stream read",),
        "Write each undecodable payload once to this ledger, with reason and position, instead of "
        "failing. The query creates a missing ledger, with de-duplication. Cannot be combined with "
        "`rescuedDataColumn`.",
        absent="",
    )
    ack_mode: str = option(
        one_of("checkpoint", "explicit"),
        ("stream read",),
        "`checkpoint`: a micro-batch is acknowledged after Spark has committed it. `explicit`: you acknowledge each "
        "row by a write with `action` = `ack`; other rows are redelivered. `explicit` needs a `subscription`, and adds "
        "the columns of `includeMetadata` and `__redeliveryCount`.",
        default="checkpoint",
    )
    ack_timeout: int | None = option(
        duration,
        ("stream read",),
        "With `explicit`: a row that is not acknowledged within this time is redelivered. Milliseconds, or `30s`, "
        "`5m`, `1h`.",
        otherwise="5m",
    )
    max_redeliveries: int | None = option(
        number(0, 2**31 - 1),
        ("stream read",),
        "With `explicit`: after so many redeliveries, a row is moved to the ledger `<ledger>-<subscription>-DLQ`. "
        "Without this option a row is redelivered without limit.",
    )
    max_bytes_per_trigger: int | None = option(
        size(1, _BYTES_MOST),
        ("stream read",),
        "Most bytes of entries in one micro-batch. At least one entry is always read. `Trigger.Once` ignores this "
        "limit.",
    )
    max_rows_per_trigger: int | None = option(
        number(1, 2**63 - 1),
        ("stream read",),
        "Most rows in one micro-batch. At least one entry is always read. `Trigger.Once` ignores this limit.",
    )
    min_rows_per_trigger: int | None = option(
        number(1, 2**63 - 1),
        ("stream read",),
        "Fewest rows in one micro-batch: the query waits for them, up to `maxTriggerDelay`. `Trigger.AvailableNow` "
        "and `Trigger.Once` ignore this limit.",
    )
    max_trigger_delay: int = option(
        duration,
        ("stream read",),
        "Longest time that an unread row waits for `minRowsPerTrigger`, counted from the time at which the broker "
        "stored the row.",
        default="15m",
    )
    first_batch: str = option(
        one_of("limited", "everything"),
        ("stream read",),
        "Only for Spark 4.0 and 4.1, which run `Trigger.AvailableNow` as one micro-batch. `everything`: the first "
        "micro-batch after a start ignores the limits and reads all rows, so such a run leaves none. Its cost is one "
        "batch as large as the backlog, and a failure repeats all of it. The first start after such a failure only "
        "repeats that batch. Newer releases ignore this option.",
        default="limited",
    )
    min_partition_bytes: int = option(
        size(1, _BYTES_MOST),
        READS,
        "Smallest size of a planned Spark partition. A batch up to this size is one partition.",
        default="8m",
    )
    target_partition_bytes: int = option(
        size(1, _BYTES_MOST), READS, "Approximate size of a Spark partition if the read is large.", default="64m"
    )
    mapping: str = option(
        one_of("auto", "off"),
        READS,
        "`auto` maps the store's files into memory when reader and broker share a host. `off` always reads over "
        "the network protocol Arrow Flight.",
        default="auto",
    )
    direct_reads: str = option(
        one_of("auto", "off"),
        READS,
        "`auto`: tasks fetch sealed segments from the bucket by themselves, unless another query needs the rows or "
        "the broker's cache has them. `off`: tasks read through the broker only.",
        default="auto",
    )
    pacing: bool = option(
        flag,
        ("stream read",),
        "Let a query that reads old entries from object storage wait for others that read the same, for at most a "
        "fifth of its time. One download then serves all.",
        default="true",
    )
