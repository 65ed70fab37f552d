"""The options of the data source, in one table: what each is called, means, defaults to, and how its text is read.

Rules: names are case-insensitive; a name that is not in the table, a value that cannot be read and an option without
meaning for what is being done are refused, naming both. `docs/options.md` is generated from this table. Values are
never put into a log.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from connector.addressing import Addressing
from connector.bucket_options import BUCKET_OPTIONS, BucketOptions, take_bucket_options
from connector.history_options import HISTORY_OPTIONS, HistoryOptions, take_history_options
from connector.ledger_positions import parse_positions, parse_timestamps
from connector.option_checks import require_addressed, require_consistent, require_sense
from connector.option_kinds import DAY_MS, EVERYWHERE, MIB, READS, WRITES, Option, Use
from connector.option_kinds import columns as _columns
from connector.option_kinds import duration as _duration
from connector.option_kinds import flag as _flag
from connector.option_kinds import ledger as _ledger
from connector.option_kinds import names as _names
from connector.option_kinds import number as _number
from connector.option_kinds import one_of as _one_of
from connector.option_kinds import pattern as _pattern
from connector.option_kinds import position as _position
from connector.option_kinds import reference as _reference
from connector.option_kinds import size as _size
from connector.option_kinds import text as _text
from ledger.errors import Refused
from ledger.position import Position

if TYPE_CHECKING:
    from ledger.broker.credentials import Credentials

# Spark hands these over with ours; they are its own business.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
_REFUSED = {
    "paths": "name several ledgers by option 'ledgers'",
    "overwriteschema": "columns are added with 'mergeSchema' and never replaced: a log keeps what was written",
}


_BYTES_MOST = 2**50

OPTIONS: tuple[Option, ...] = (
    Option("path", "", EVERYWHERE, "The ledger: what `load()`, `start()` and `save()` are given.", _text),
    Option("ledger", "", EVERYWHERE, "The ledger, where there is no argument to name it.", _text),
    Option("ledgers", "", READS, "Several ledgers, with commas between them, instead of one.", _names),
    Option(
        "ledgersPattern",
        "",
        READS,
        "All ledgers whose whole name matches this regular expression, instead of one; also those that come while a "
        "query runs, from their beginning.",
        _pattern,
    ),
    Option(
        "store",
        "$LEDGER_STORE, else ./ledger-store",
        EVERYWHERE,
        "A directory of this host, whose broker is started when none runs, or a broker's address: "
        "`grpc://host:port`, `grpc+tls://host:port`, `grpc+unix:///path`.",
        _text,
    ),
    Option(
        "tlsTrustCertsFilePath",
        "the system's authorities",
        EVERYWHERE,
        "For a store at `grpc+tls://`: the authority that the broker's certificate is checked with, PEM. This file and "
        "those of the next two options are read by the driver and by every task, each on its own host: at this path, "
        "or among the files that Spark ships.",
        _text,
    ),
    Option("tlsCertificateFilePath", "", EVERYWHERE, "The certificate to show to the broker, PEM.", _text),
    Option("tlsKeyFilePath", "", EVERYWHERE, "The key of that certificate, PEM.", _text),
    Option(
        "authParams",
        "",
        EVERYWHERE,
        "Where the bearer token is: `file:/path` or `env:NAME`. Never the token itself: plans and logs show options. "
        "It is read by the driver; each task is given one of its own, which runs out.",
        _reference,
        shown=False,
    ),
    Option(
        "subscription",
        "",
        ("stream read", "batch write"),
        "A durable cursor of the ledger to read with: it keeps its place over lost checkpoints, and holds back "
        "whatever it has not acknowledged. One live query at a time.",
        _text,
    ),
    Option(
        "startingPosition",
        "earliest (batch), latest (stream)",
        READS,
        "Where to begin: `earliest`, `latest` (of a stream) or, for one ledger, `LEDGER:ENTRY`, inclusive. A "
        "checkpoint, and a subscription that exists, go before it and the next three.",
        _position,
    ),
    Option(
        "startingTimestamp",
        "",
        READS,
        "Begin with the first entry that the broker stored at or after this time, in milliseconds since 1970; at the "
        "end, if there is none. Excludes `startingPosition`.",
        _number(0, 2**62),
    ),
    Option(
        "startingPositions",
        "",
        READS,
        'Where to begin in some of the ledgers, as JSON by name: `{"orders": "3:17", "clicks": "earliest"}`. Goes '
        "before `startingPosition` and `startingTimestamp`. `pyspark_ledger.positions_json` builds it.",
        parse_positions,
    ),
    Option(
        "startingTimestamps",
        "",
        READS,
        'The same by time: `{"orders": 1700000000000}`. A ledger is in one of the two.',
        parse_timestamps,
    ),
    Option(
        "endingPosition",
        "latest (batch), none (stream)",
        READS,
        "Where to end: `latest`, when a batch read is planned, or, for one ledger, `LEDGER:ENTRY`, exclusive. A stream "
        "delivers nothing from there on.",
        _position,
    ),
    Option(
        "table",
        "",
        ("batch read",),
        "Read what the store knows of itself instead of rows: `ledgers`, `segments`, `cursors`, `holes` or `cache`; of "
        "the ledger that is loaded, or of all.",
        _one_of("ledgers", "segments", "cursors", "holes", "cache"),
    ),
    Option(
        "endingTimestamp",
        "",
        READS,
        "End before the first entry that the broker stored at or after this time, in milliseconds since 1970. Excludes "
        "`endingPosition`.",
        _number(0, 2**62),
    ),
    Option(
        "endingPositions",
        "",
        READS,
        "Where to end in some of the ledgers, as `startingPositions`; goes before the options for all.",
        parse_positions,
    ),
    Option("endingTimestamps", "", READS, "The same by time, as `startingTimestamps`.", parse_timestamps),
    Option(
        "failOnDataLoss",
        "true",
        READS,
        "Fail when entries that were to be read are gone: trimmed, deleted, of a ledger that was made again, or of a "
        "file or object that is missing. `false` goes on with what is left, and counts and reports what is not.",
        _flag,
    ),
    Option(
        "waitForLedger",
        "false",
        READS,
        "Wait for a ledger that does not exist yet, or has no columns yet, instead of failing.",
        _flag,
    ),
    Option("waitTimeoutMs", "300000", READS, "How long `waitForLedger` waits.", _number(1, DAY_MS)),
    Option(
        "includeMetadata",
        "false",
        READS,
        "Add the columns `__key`, `__topic`, `__messageId`, `__publishTime`, `__eventTime`, `__messageProperties` "
        "and `__position`.",
        _flag,
    ),
    Option(
        "columns",
        "all",
        READS,
        "The columns to read, with commas between them; others are not decoded. Metadata columns may be among them and "
        "come last.",
        _columns,
    ),
    Option(
        "payloadSchema",
        "what is registered with the ledger",
        READS,
        "For a ledger of messages: the schemas of its payloads, which make typed columns of them. The JSON itself "
        "(Pulsar's `schemas.json`, an Avro schema), the path of a file on the driver, or a type such as `STRING`.",
        _text,
    ),
    Option(
        "rescuedDataColumn",
        "",
        READS,
        "Add a text column of this name, which holds as JSON what could not be decoded, with reason and position, and "
        "columns that were added after the query was planned. Without it the former fail and the latter are left out.",
        _text,
    ),
    Option(
        "deadLetterLedger",
        "",
        ("stream read",),
        "Send what cannot be decoded to this ledger, once for each micro-batch, with reason and position, instead of "
        "failing. It is made if need be, with de-duplication. Excludes `rescuedDataColumn`.",
        _ledger,
    ),
    Option(
        "ackMode",
        "checkpoint",
        ("stream read",),
        "`checkpoint`: a batch is acknowledged once Spark has committed it. `explicit`: every row stays outstanding "
        "until it is acknowledged by a write with `action` `ack`, and comes back otherwise; brings `includeMetadata` "
        "and the column `__redeliveryCount`. Needs a `subscription`.",
        _one_of("checkpoint", "explicit"),
    ),
    Option(
        "ackTimeout",
        "5m",
        ("stream read",),
        "With `explicit`: a row that is not acknowledged within this time comes back. Milliseconds, or `30s`, `5m`, "
        "`1h`.",
        _duration,
    ),
    Option(
        "maxRedeliveries",
        "",
        ("stream read",),
        "With `explicit`: a row that was redelivered so often and is not acknowledged goes to the ledger "
        "`<ledger>-<subscription>-DLQ` and is acknowledged. Without it rows come back for ever.",
        _number(0, 2**31 - 1),
    ),
    Option(
        "maxBytesPerTrigger",
        "",
        ("stream read",),
        "Most bytes of entries in one micro-batch; at least one entry is always read. Ignored by `Trigger.Once`.",
        _size(1, _BYTES_MOST),
    ),
    Option(
        "maxRowsPerTrigger",
        "",
        ("stream read",),
        "Most rows in one micro-batch; at least one entry is always read. Ignored by `Trigger.Once`.",
        _number(1, 2**62),
    ),
    Option(
        "minRowsPerTrigger",
        "",
        ("stream read",),
        "Wait for so many rows before the next micro-batch, up to `maxTriggerDelay`. Ignored by `Trigger.AvailableNow` "
        "and `Trigger.Once`.",
        _number(1, 2**62),
    ),
    Option(
        "maxTriggerDelay",
        "15m",
        ("stream read",),
        "How long an unread row waits for `minRowsPerTrigger`, at most; the time since the broker stored it counts.",
        _duration,
    ),
    Option(
        "minPartitionBytes",
        "8m",
        READS,
        "A batch up to this size is one partition, and none is planned smaller: a task costs tens of milliseconds.",
        _size(1, _BYTES_MOST),
    ),
    Option(
        "targetPartitionBytes", "64m", READS, "About how much one partition of a catch-up reads.", _size(1, _BYTES_MOST)
    ),
    Option(
        "mapping",
        "auto",
        READS,
        "`auto` maps the store's files when reader and broker share a host; `off` always reads over Flight.",
        _one_of("auto", "off"),
    ),
    Option(
        "pacing",
        "true",
        ("stream read",),
        "While it catches up from object storage, the query may wait for others close behind it, a fifth of its time "
        "at most, so that what is read there serves all of them.",
        _flag,
    ),
    Option(
        "mergeSchema",
        "false",
        WRITES,
        "Add columns that the ledger has not to its schema, and let columns that are not written be null. Types of "
        "columns never change.",
        _flag,
    ),
    Option(
        "action",
        "",
        ("batch write",),
        "Write nothing, and say something of the rows that `__position` or `__messageId` name: `ack` acknowledges them "
        "for `subscription`, for good; `nack` gives back at once what was delivered with `ackMode` explicit.",
        _one_of("ack", "nack"),
    ),
    Option(
        "entryBytes",
        "4m",
        WRITES,
        "About how many bytes of rows make one entry. An entry must fit a block of the ledger.",
        _size(1024, 64 * MIB),
    ),
    Option(
        "compression",
        "none",
        WRITES,
        "How the columns of an entry are compressed: `none` (mapped reads copy nothing), `lz4` or `zstd`.",
        _one_of("none", "lz4", "zstd"),
    ),
    Option(
        "createLedgers",
        "false",
        WRITES,
        "Create a ledger that a row names in `__ledger` and that is not there, instead of failing.",
        _flag,
    ),
    Option(
        "txnAppId",
        "",
        ("batch write",),
        "With `txnVersion`: makes a write idempotent, for `foreachBatch`. Of one application, a version that is not "
        "above the newest in the ledger is skipped. A stream is so by itself.",
        _text,
    ),
    Option(
        "txnVersion",
        "",
        ("batch write",),
        "The version of this write, rising within its `txnAppId`: in `foreachBatch` the number of the batch.",
        _number(0, 2**63 - 1),
    ),
    Option(
        "commitTimeoutMs",
        "60000",
        WRITES,
        "How long a commit is retried while the broker cannot be reached. Repeating is safe: a batch is appended once.",
        _number(1, DAY_MS),
    ),
    *HISTORY_OPTIONS,
    *BUCKET_OPTIONS,
)
_BY_NAME = {option.name.lower(): option for option in OPTIONS}


_PARTITION_BYTES_MIN = 8 * MIB


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """The options of one use, read. None: not given, and the default depends on something else."""

    ledger: str = ""
    bucket: BucketOptions | None = None
    history: HistoryOptions | None = None
    ledgers: tuple[str, ...] = ()
    ledgers_pattern: str | None = None
    store: str | None = None
    tls_trust_certs_file_path: str = ""
    tls_certificate_file_path: str = ""
    tls_key_file_path: str = ""
    auth_params: str = ""
    subscription: str | None = None
    starting_position: Position | None = None
    starting_timestamp: int | None = None
    table: str | None = None
    starting_positions: Mapping[str, Position] = field(default_factory=dict)
    starting_timestamps: Mapping[str, int] = field(default_factory=dict)
    ending_position: Position | None = None
    ending_timestamp: int | None = None
    ending_positions: Mapping[str, Position] = field(default_factory=dict)
    ending_timestamps: Mapping[str, int] = field(default_factory=dict)
    fail_on_data_loss: bool = True
    wait_for_ledger: bool = False
    wait_timeout_ms: int = 300_000
    include_metadata: bool = False
    columns: tuple[str, ...] | None = None
    payload_schema: str | None = None
    rescued_data_column: str | None = None
    dead_letter_ledger: str = ""
    ack_mode: str = "checkpoint"
    ack_timeout: int | None = None
    max_redeliveries: int | None = None
    max_bytes_per_trigger: int | None = None
    max_rows_per_trigger: int | None = None
    min_rows_per_trigger: int | None = None
    max_trigger_delay: int = 15 * 60_000
    min_partition_bytes: int = _PARTITION_BYTES_MIN
    target_partition_bytes: int = 64 * MIB
    mapping: str = "auto"
    pacing: bool = True
    merge_schema: bool = False
    action: Literal["ack", "nack"] | None = None
    entry_bytes: int = 4 * MIB
    compression: Literal["lz4", "zstd"] | None = None
    create_ledgers: bool = False
    txn_app_id: str | None = None
    txn_version: int | None = None
    commit_timeout_ms: int = 60_000

    def require_acknowledger(self) -> None:
        """Refused where rows are to be acknowledged one by one, and nobody is named to do it; or the reverse."""
        explicit = self.ack_mode == "explicit"
        if explicit and self.subscription is None:
            hint = "Name a subscription: whose acknowledgements they are"
            raise Refused("option 'ackMode' is 'explicit' without a subscription", hint=hint)
        given = {"ackTimeout": self.ack_timeout, "maxRedeliveries": self.max_redeliveries}
        for name, value in given.items():
            if value is not None and not explicit:
                raise Refused(f"option {name!r} has no meaning for ackMode 'checkpoint'", hint="Give ackMode explicit")

    @property
    def application(self) -> tuple[str, int] | None:
        """`txnAppId` and `txnVersion`, None for a write that has neither; Refused where one is missing."""
        if self.txn_app_id is not None and self.txn_version is not None:
            return self.txn_app_id, self.txn_version
        if self.txn_app_id is None and self.txn_version is None:
            return None
        given, missing = ("txnAppId", "txnVersion") if self.txn_version is None else ("txnVersion", "txnAppId")
        raise Refused(f"option {given!r} is given without {missing!r}", hint="A write is known by both, or by neither")

    def addressing(self) -> Addressing:
        """The ledgers to read; refused when none is named."""
        if not (self.ledgers or self.ledgers_pattern):
            require_ledger(self)
        return Addressing.of(self.ledger, self.ledgers, self.ledgers_pattern)

    def credentials(self) -> Credentials | None:
        """What is shown to a broker elsewhere; None when nothing was given."""
        from ledger.broker.credentials import Credentials

        given = Credentials(
            self.tls_trust_certs_file_path,
            self.tls_certificate_file_path,
            self.tls_key_file_path,
            self.auth_params,
        )
        return None if given.empty else given


def read_options(given: Mapping[str, str], use: Use | None = None) -> LedgerOptions:
    """Read and check options; with `use`, also that each has a meaning there. Raises Refused naming the option."""
    values: dict[str, object] = {}
    for key, text in given.items():
        option = _known(key)
        if option is None:
            continue
        if use is not None and use not in option.uses:
            raise Refused(
                f"option {option.name!r} has no meaning for a {use}", hint=f"It belongs to a {' or '.join(option.uses)}"
            )
        try:
            values[_field(option.name)] = option.parse(text)
        except ValueError as expected:
            said = repr(text) if option.shown else "something else (not shown: it may be a secret)"
            raise Refused(f"option {option.name!r} is {said}, expected {expected}") from None
    options = _consistent(values)
    if use is not None:
        require_sense(values, use)
        if options.bucket is None:  # whose topics have other people's names
            require_addressed(values)
        if options.bucket is not None and use == "stream read":
            _require_endless(options)
    return options


def _known(key: str) -> Option | None:
    lowered = key.lower()
    if lowered in SPARKS_OWN:
        return None
    if lowered in _REFUSED:
        raise Refused(f"option {key!r} is not supported: {_REFUSED[lowered]}")
    if lowered not in _BY_NAME:
        near = difflib.get_close_matches(lowered, _BY_NAME, n=1, cutoff=0.5)
        names = ", ".join(sorted(option.name for option in OPTIONS))
        hint = f"Did you mean {_BY_NAME[near[0]].name!r}?" if near else f"The options are {names}"
        raise Refused(f"unknown option {key!r}", hint=hint)
    return _BY_NAME[lowered]


def _require_endless(options: LedgerOptions) -> None:
    ends = {
        "endingPosition": options.ending_position,
        "endingTimestamp": options.bucket and options.bucket.ending_timestamp,
    }
    for name, at in ends.items():
        if at is not None:
            raise Refused(
                f"option {name!r} has no meaning for a stream from a bucket", hint="It belongs to a batch read"
            )


def _field(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _consistent(values: dict[str, object]) -> LedgerOptions:
    path = values.pop("path", None)
    if path is not None and values.get("ledger", path) != path:
        raise Refused(f"the ledger is named twice: {path!r} as the path and {values['ledger']!r} by option 'ledger'")
    if path is not None:
        values["ledger"] = path
    require_consistent(values)
    names = {_field(option.name): option.name for option in OPTIONS}
    history = take_history_options(values, names)
    bucket = take_bucket_options(values, names)
    if values.get("compression") == "none":
        del values["compression"]
    if values.get("ack_mode") == "explicit":
        values["include_metadata"] = True  # else nobody could say which rows are done with
    if "min_partition_bytes" not in values and "target_partition_bytes" in values:  # nobody asked for more
        least = int(str(values["target_partition_bytes"]))
        values["min_partition_bytes"] = min(least, _PARTITION_BYTES_MIN)
    options = LedgerOptions(bucket=bucket, history=history, **values)  # type: ignore[arg-type]  # each parser answers its field's type
    if options.min_partition_bytes > options.target_partition_bytes:
        raise Refused(
            f"option 'minPartitionBytes' ({options.min_partition_bytes}) exceeds "
            f"'targetPartitionBytes' ({options.target_partition_bytes})"
        )
    return options


def require_ledger(options: LedgerOptions) -> str:
    """The ledger's name as it was given; refused when it was not."""
    if not options.ledger:
        raise Refused(
            "no ledger is named",
            hint="Name it in load(), start() or save(), or by option 'ledger'. Spark hands the options of a table of "
            "its catalog to nobody: use CREATE TEMPORARY VIEW … USING ledger instead",
        )
    return options.ledger


def options_reference() -> str:
    """`docs/options.md`: regenerate it with `python -m connector.options > docs/options.md`."""
    lines = [
        "# Options",
        "",
        "Generated from `connector/options.py` by `python -m connector.options > docs/options.md`.",
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
