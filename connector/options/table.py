"""The options of the data source, in one table: what each is called, means, defaults to, and how its text is read.

Rules: one table for all uses. `docs/options.md` is generated from it.
"""

from __future__ import annotations

from pyspark_ledger.connector.options.bucket import BUCKET_OPTIONS
from pyspark_ledger.connector.options.history import HISTORY_OPTIONS
from pyspark_ledger.connector.options.option import (
    DAY_MS,
    EVERYWHERE,
    LONG_CHARS_MAX,
    MIB,
    READS,
    WRITES,
    Option,
    columns,
    duration,
    flag,
    ledger,
    names,
    number,
    one_of,
    pattern,
    position,
    reference,
    size,
    text,
)
from pyspark_ledger.connector.options.positions import parse_positions, parse_timestamps

_BYTES_MOST = 2**50

OPTIONS: tuple[Option, ...] = (
    Option("path", "", EVERYWHERE, "The ledger: what `load()`, `start()` and `save()` are given.", text),
    Option("ledger", "", EVERYWHERE, "The ledger, where there is no argument to name it.", text),
    Option(
        "ledgers",
        "",
        READS,
        "Several ledgers, with commas between them, instead of one.",
        names,
        chars_max=LONG_CHARS_MAX,
    ),
    Option(
        "ledgersPattern",
        "",
        READS,
        "All ledgers whose whole name matches this regular expression, instead of one; also those that come while a "
        "query runs, from their beginning.",
        pattern,
    ),
    Option(
        "store",
        "$LEDGER_STORE, else ./ledger-store",
        EVERYWHERE,
        "A directory of this host, whose broker is started when none runs, or a broker's address: "
        "`grpc://host:port`, `grpc+tls://host:port`, `grpc+unix:///path`.",
        text,
    ),
    Option(
        "tlsTrustCertsFilePath",
        "the system's authorities",
        EVERYWHERE,
        "For a store at `grpc+tls://`: the authority that the broker's certificate is checked with, PEM. This file and "
        "those of the next two options are read by the driver and by every task, each on its own host: at this path, "
        "or among the files that Spark ships.",
        text,
    ),
    Option("tlsCertificateFilePath", "", EVERYWHERE, "The certificate to show to the broker, PEM.", text),
    Option("tlsKeyFilePath", "", EVERYWHERE, "The key of that certificate, PEM.", text),
    Option(
        "authParams",
        "",
        EVERYWHERE,
        "Where the bearer token is: `file:/path` or `env:NAME`. Never the token itself: plans and logs show options. "
        "It is read by the driver; each task is given one of its own, which runs out.",
        reference,
        shown=False,
    ),
    Option(
        "subscription",
        "",
        ("stream read", "batch write"),
        "A durable cursor of the ledger to read with: it keeps its place over lost checkpoints, and holds back "
        "whatever it has not acknowledged. One live query at a time.",
        text,
    ),
    Option(
        "startingPosition",
        "earliest (batch), latest (stream)",
        READS,
        "Where to begin: `earliest`, `latest` (of a stream) or, for one ledger, `LEDGER:ENTRY`, inclusive. A "
        "checkpoint, and a subscription that exists, go before it and the next three.",
        position,
    ),
    Option(
        "startingTimestamp",
        "",
        READS,
        "Begin with the first entry that the broker stored at or after this time, in milliseconds since 1970; at the "
        "end, if there is none. Excludes `startingPosition`.",
        number(0, 2**62),
    ),
    Option(
        "startingPositions",
        "",
        READS,
        'Where to begin in some of the ledgers, as JSON by name: `{"orders": "3:17", "clicks": "earliest"}`. Goes '
        "before `startingPosition` and `startingTimestamp`. `pyspark_ledger.positions_json` builds it.",
        parse_positions,
        chars_max=LONG_CHARS_MAX,
    ),
    Option(
        "startingTimestamps",
        "",
        READS,
        'The same by time: `{"orders": 1700000000000}`. A ledger is in one of the two.',
        parse_timestamps,
        chars_max=LONG_CHARS_MAX,
    ),
    Option(
        "endingPosition",
        "latest (batch), none (stream)",
        READS,
        "Where to end: `latest`, when a batch read is planned, or, for one ledger, `LEDGER:ENTRY`, exclusive. A stream "
        "delivers nothing from there on.",
        position,
    ),
    Option(
        "table",
        "",
        ("batch read",),
        "Read what the store knows of itself instead of rows: `ledgers`, `segments`, `cursors`, `holes` or `cache`; of "
        "the ledger that is loaded, or of all.",
        one_of("ledgers", "segments", "cursors", "holes", "cache"),
    ),
    Option(
        "endingTimestamp",
        "",
        READS,
        "End before the first entry that the broker stored at or after this time, in milliseconds since 1970. Excludes "
        "`endingPosition`.",
        number(0, 2**62),
    ),
    Option(
        "endingPositions",
        "",
        READS,
        "Where to end in some of the ledgers, as `startingPositions`; goes before the options for all.",
        parse_positions,
        chars_max=LONG_CHARS_MAX,
    ),
    Option(
        "endingTimestamps",
        "",
        READS,
        "The same by time, as `startingTimestamps`.",
        parse_timestamps,
        chars_max=LONG_CHARS_MAX,
    ),
    Option(
        "failOnDataLoss",
        "true",
        READS,
        "Fail when entries that were to be read are gone: trimmed, deleted, of a ledger that was made again, or of a "
        "file or object that is missing. `false` goes on with what is left, and counts and reports what is not.",
        flag,
    ),
    Option(
        "waitForLedger",
        "false",
        READS,
        "Wait for a ledger that does not exist yet, or has no columns yet, instead of failing.",
        flag,
    ),
    Option("waitTimeoutMs", "300000", READS, "How long `waitForLedger` waits.", number(1, DAY_MS)),
    Option(
        "includeMetadata",
        "false",
        READS,
        "Add the columns `__key`, `__topic`, `__messageId`, `__publishTime`, `__eventTime`, `__messageProperties` "
        "and `__position`.",
        flag,
    ),
    Option(
        "columns",
        "all",
        READS,
        "The columns to read, with commas between them; others are not decoded. Metadata columns may be among them and "
        "come last.",
        columns,
        chars_max=LONG_CHARS_MAX,
    ),
    Option(
        "payloadSchema",
        "what is registered with the ledger",
        READS,
        "For a ledger of messages: the schemas of its payloads, which make typed columns of them. The JSON itself "
        "(Pulsar's `schemas.json`, an Avro schema), the path of a file on the driver, or a type such as `STRING`.",
        text,
        chars_max=LONG_CHARS_MAX,
    ),
    Option(
        "rescuedDataColumn",
        "",
        READS,
        "Add a text column of this name, which holds as JSON what could not be decoded, with reason and position, and "
        "columns that were added after the query was planned. Without it the former fail and the latter are left out.",
        text,
    ),
    Option(
        "deadLetterLedger",
        "",
        ("stream read",),
        "Send what cannot be decoded to this ledger, once for each micro-batch, with reason and position, instead of "
        "failing. It is made if need be, with de-duplication. Excludes `rescuedDataColumn`.",
        ledger,
    ),
    Option(
        "ackMode",
        "checkpoint",
        ("stream read",),
        "`checkpoint`: a batch is acknowledged once Spark has committed it. `explicit`: every row stays outstanding "
        "until it is acknowledged by a write with `action` `ack`, and comes back otherwise; brings `includeMetadata` "
        "and the column `__redeliveryCount`. Needs a `subscription`.",
        one_of("checkpoint", "explicit"),
    ),
    Option(
        "ackTimeout",
        "5m",
        ("stream read",),
        "With `explicit`: a row that is not acknowledged within this time comes back. Milliseconds, or `30s`, `5m`, "
        "`1h`.",
        duration,
    ),
    Option(
        "maxRedeliveries",
        "",
        ("stream read",),
        "With `explicit`: a row that was redelivered so often and is not acknowledged goes to the ledger "
        "`<ledger>-<subscription>-DLQ` and is acknowledged. Without it rows come back for ever.",
        number(0, 2**31 - 1),
    ),
    Option(
        "maxBytesPerTrigger",
        "",
        ("stream read",),
        "Most bytes of entries in one micro-batch; at least one entry is always read. Ignored by `Trigger.Once`.",
        size(1, _BYTES_MOST),
    ),
    Option(
        "maxRowsPerTrigger",
        "",
        ("stream read",),
        "Most rows in one micro-batch; at least one entry is always read. Ignored by `Trigger.Once`.",
        number(1, 2**63 - 1),
    ),
    Option(
        "minRowsPerTrigger",
        "",
        ("stream read",),
        "Wait for so many rows before the next micro-batch, up to `maxTriggerDelay`. Ignored by `Trigger.AvailableNow` "
        "and `Trigger.Once`.",
        number(1, 2**63 - 1),
    ),
    Option(
        "maxTriggerDelay",
        "15m",
        ("stream read",),
        "How long an unread row waits for `minRowsPerTrigger`, at most; the time since the broker stored it counts.",
        duration,
    ),
    Option(
        "minPartitionBytes",
        "8m",
        READS,
        "A batch up to this size is one partition, and none is planned smaller: a task costs tens of milliseconds.",
        size(1, _BYTES_MOST),
    ),
    Option(
        "targetPartitionBytes", "64m", READS, "About how much one partition of a catch-up reads.", size(1, _BYTES_MOST)
    ),
    Option(
        "mapping",
        "auto",
        READS,
        "`auto` maps the store's files when reader and broker share a host; `off` always reads over Flight.",
        one_of("auto", "off"),
    ),
    Option(
        "pacing",
        "true",
        ("stream read",),
        "While it catches up from object storage, the query may wait for others close behind it, a fifth of its time "
        "at most, so that what is read there serves all of them.",
        flag,
    ),
    Option(
        "mergeSchema",
        "false",
        WRITES,
        "Add columns that the ledger has not to its schema, and let columns that are not written be null. Types of "
        "columns never change.",
        flag,
    ),
    Option(
        "action",
        "",
        ("batch write",),
        "Write nothing, and say something of the rows that `__position` or `__messageId` name: `ack` acknowledges them "
        "for `subscription`, for good; `nack` gives back at once what was delivered with `ackMode` explicit.",
        one_of("ack", "nack"),
    ),
    Option(
        "entryBytes",
        "4m",
        WRITES,
        "About how many bytes of rows make one entry. An entry must fit a block of the ledger.",
        size(1024, 64 * MIB),
    ),
    Option(
        "compression",
        "none",
        WRITES,
        "How the columns of an entry are compressed: `none` (mapped reads copy nothing), `lz4` or `zstd`.",
        one_of("none", "lz4", "zstd"),
    ),
    Option(
        "createLedgers",
        "false",
        WRITES,
        "Create a ledger that a row names in `__ledger` and that is not there, instead of failing.",
        flag,
    ),
    Option(
        "txnAppId",
        "",
        ("batch write",),
        "With `txnVersion`: makes a write idempotent, for `foreachBatch`. Of one application, a version that is not "
        "above the newest in the ledger is skipped. A stream is so by itself.",
        text,
    ),
    Option(
        "txnVersion",
        "",
        ("batch write",),
        "The version of this write, rising within its `txnAppId`: in `foreachBatch` the number of the batch.",
        number(0, 2**63 - 1),
    ),
    Option(
        "commitTimeoutMs",
        "60000",
        WRITES,
        "How long a commit is retried while the broker cannot be reached. Repeating is safe: a batch is appended once.",
        number(1, DAY_MS),
    ),
    *HISTORY_OPTIONS,
    *BUCKET_OPTIONS,
)


def options_reference() -> str:
    """`docs/options.md`: regenerate it with `python -m pyspark_ledger.connector.options.table > docs/options.md`."""
    lines = [
        "# Options",
        "",
        "Generated by `python -m pyspark_ledger.connector.options.table > docs/options.md`.",
        "",
        "Names are case-insensitive. Sizes take `k`, `m` and `g`. Spark's `checkpointLocation` and `queryName` pass.",
        "An unknown option, a value that cannot be read and an option without meaning for the use are refused.",
        "",
        "| Option | Default | For | Meaning |",
        "|---|---|---|---|",
    ]
    for option in OPTIONS:
        uses = "all" if option.uses == EVERYWHERE else ", ".join(option.uses)
        uses = {", ".join(READS): "reads", ", ".join(WRITES): "writes"}.get(uses, uses)
        lines.append(f"| `{option.name}` | {option.default or '-'} | {uses} | {option.meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_reference(), end="")  # noqa: T201  # its purpose
