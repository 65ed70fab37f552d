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
)
from pyspark_ledger.connector.options.positions import parse_positions, parse_timestamps
from pyspark_ledger.ledger.position import Position

_BYTES_MOST = 2**50


@dataclass(frozen=True)
class EveryReadOptions:
    """Every read, also of a bucket."""

    ending_timestamp: int | None = option(
        number(0, 2**62),
        READS,
        "End before the first entry that the broker stored at or after this time, in milliseconds since 1970. Excludes "
        "`endingPosition`.",
    )
    fail_on_data_loss: bool = option(
        flag,
        READS,
        "Fail when entries that were to be read are gone: trimmed, deleted, of a ledger that was made again, or of a "
        "file or object that is missing. `false` goes on with what is left, and counts and reports what is not.",
        default="true",
    )


@dataclass(frozen=True)
class ReadOptions(EveryReadOptions):
    """Reads."""

    starting_position: Position | None = option(
        position,
        READS,
        "Where to begin: `earliest`, `latest` (of a stream) or, for one ledger, `LEDGER:ENTRY`, inclusive. A "
        "checkpoint, and a subscription that exists, go before it and the next three.",
        otherwise="earliest (batch), latest (stream)",
    )
    starting_timestamp: int | None = option(
        number(0, 2**62),
        READS,
        "Begin with the first entry that the broker stored at or after this time, in milliseconds since 1970; at the "
        "end, if there is none. Excludes `startingPosition`.",
    )
    starting_positions: Mapping[str, Position] = option(
        parse_positions,
        READS,
        'Where to begin in some of the ledgers, as JSON by name: `{"orders": "3:17", "clicks": "earliest"}`. Goes '
        "before `startingPosition` and `startingTimestamp`. `pyspark_ledger.positions_json` builds it.",
        absent={},
        chars_max=LONG_CHARS_MAX,
    )
    starting_timestamps: Mapping[str, int] = option(
        parse_timestamps,
        READS,
        'The same by time: `{"orders": 1700000000000}`. A ledger is in one of the two.',
        absent={},
        chars_max=LONG_CHARS_MAX,
    )
    ending_position: Position | None = option(
        position,
        READS,
        "Where to end: `latest`, when a batch read is planned, or, for one ledger, `LEDGER:ENTRY`, exclusive. A stream "
        "delivers nothing from there on.",
        otherwise="latest (batch), none (stream)",
    )
    table: str | None = option(
        one_of("ledgers", "segments", "cursors", "holes", "cache"),
        ("batch read",),
        "Read what the store knows of itself instead of rows: `ledgers`, `segments`, `cursors`, `holes` or `cache`; of "
        "the ledger that is loaded, or of all.",
    )
    ending_positions: Mapping[str, Position] = option(
        parse_positions,
        READS,
        "Where to end in some of the ledgers, as `startingPositions`; goes before the options for all.",
        absent={},
        chars_max=LONG_CHARS_MAX,
    )
    ending_timestamps: Mapping[str, int] = option(
        parse_timestamps, READS, "The same by time, as `startingTimestamps`.", absent={}, chars_max=LONG_CHARS_MAX
    )
    wait_for_ledger: bool = option(
        flag,
        READS,
        "Wait for a ledger that does not exist yet, or has no columns yet, instead of failing.",
        default="false",
    )
    wait_timeout_ms: int = option(number(1, DAY_MS), READS, "How long `waitForLedger` waits.", default="300000")
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
        "The columns to read, with commas between them; others are not decoded. Metadata columns may be among them and "
        "come last.",
        otherwise="all",
        chars_max=LONG_CHARS_MAX,
    )
    payload_schema: str | None = option(
        text,
        READS,
        "For a ledger of messages: the schemas of its payloads, which make typed columns of them. The JSON itself "
        "(Pulsar's `schemas.json`, an Avro schema), the path of a file on the driver, or a type such as `STRING`.",
        otherwise="what is registered with the ledger",
        chars_max=LONG_CHARS_MAX,
    )
    rescued_data_column: str | None = option(
        text,
        READS,
        "Add a text column of this name, which holds as JSON what could not be decoded, with reason and position, and "
        "columns that were added after the query was planned. Without it the former fail and the latter are left out.",
    )
    dead_letter_ledger: str = option(
        ledger,
        ("stream read",),
        "Send what cannot be decoded to this ledger, once for each micro-batch, with reason and position, instead of "
        "failing. It is made if need be, with de-duplication. Excludes `rescuedDataColumn`.",
        absent="",
    )
    ack_mode: str = option(
        one_of("checkpoint", "explicit"),
        ("stream read",),
        "`checkpoint`: a batch is acknowledged once Spark has committed it. `explicit`: every row stays outstanding "
        "until it is acknowledged by a write with `action` `ack`, and comes back otherwise; brings `includeMetadata` "
        "and the column `__redeliveryCount`. Needs a `subscription`.",
        default="checkpoint",
    )
    ack_timeout: int | None = option(
        duration,
        ("stream read",),
        "With `explicit`: a row that is not acknowledged within this time comes back. Milliseconds, or `30s`, `5m`, "
        "`1h`.",
        otherwise="5m",
    )
    max_redeliveries: int | None = option(
        number(0, 2**31 - 1),
        ("stream read",),
        "With `explicit`: a row that was redelivered so often and is not acknowledged goes to the ledger "
        "`<ledger>-<subscription>-DLQ` and is acknowledged. Without it rows come back for ever.",
    )
    max_bytes_per_trigger: int | None = option(
        size(1, _BYTES_MOST),
        ("stream read",),
        "Most bytes of entries in one micro-batch; at least one entry is always read. Ignored by `Trigger.Once`.",
    )
    max_rows_per_trigger: int | None = option(
        number(1, 2**63 - 1),
        ("stream read",),
        "Most rows in one micro-batch; at least one entry is always read. Ignored by `Trigger.Once`.",
    )
    min_rows_per_trigger: int | None = option(
        number(1, 2**63 - 1),
        ("stream read",),
        "Wait for so many rows before the next micro-batch, up to `maxTriggerDelay`. Ignored by `Trigger.AvailableNow` "
        "and `Trigger.Once`.",
    )
    max_trigger_delay: int = option(
        duration,
        ("stream read",),
        "How long an unread row waits for `minRowsPerTrigger`, at most; the time since the broker stored it counts.",
        default="15m",
    )
    min_partition_bytes: int = option(
        size(1, _BYTES_MOST),
        READS,
        "A batch up to this size is one partition, and none is planned smaller: a task costs tens of milliseconds.",
        default="8m",
    )
    target_partition_bytes: int = option(
        size(1, _BYTES_MOST), READS, "About how much one partition of a catch-up reads.", default="64m"
    )
    mapping: str = option(
        one_of("auto", "off"),
        READS,
        "`auto` maps the store's files when reader and broker share a host; `off` always reads over Flight.",
        default="auto",
    )
    pacing: bool = option(
        flag,
        ("stream read",),
        "While it catches up from object storage, the query may wait for others close behind it, a fifth of its time "
        "at most, so that what is read there serves all of them.",
        default="true",
    )
