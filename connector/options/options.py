"""Options of one use of the data source, parsed and checked together.

A *use* is a batch read, a batch write, a stream that reads or a stream that writes.

Rules
- Names are case-insensitive.
- An option is refused if its name is unknown, if its value is invalid, or if it has no meaning for the use. The error
  names the option and the expected form.
- Values are never logged.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.connector.options.address import AddressOptions
from pyspark_ledger.connector.options.bucket import BucketOptions, take_access_options, take_bucket_options
from pyspark_ledger.connector.options.checks import require_addressed, require_consistent, require_sense
from pyspark_ledger.connector.options.foreign_names import require_no_foreign_name
from pyspark_ledger.connector.options.history import HistoryOptions, take_history_options
from pyspark_ledger.connector.options.home import take_home_options
from pyspark_ledger.connector.options.option import Option, Use
from pyspark_ledger.connector.options.reads import ReadOptions
from pyspark_ledger.connector.options.table import OPTIONS
from pyspark_ledger.connector.options.writes import WriteOptions
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.hidden_characters import unencodable
from pyspark_ledger.ledger.ledger_selection import Addressing
from pyspark_ledger.ledger.location import bucket_of, is_address, store_location

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.credentials import Credentials

# Spark's own options, which Spark also passes to the source.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "asyncprogresstrackingcheckpointintervalms"})
_ASYNC_PROGRESS = "asyncProgressTrackingEnabled"
_BY_NAME = {option.name.lower(): option for option in OPTIONS}
_OPTIONS_HINT = f"The options are {', '.join(sorted(option.name for option in OPTIONS))}"
_HINTS = {
    "broker": "Only the store's broker can append. Leave 'broker' out: the driver then starts the broker, or uses the "
    "running one"
}
_KEY_CHARS_MAX = 64
_SHOWN = 300  # characters of a value in an error


@dataclass(frozen=True)
class LedgerOptions(AddressOptions, ReadOptions, WriteOptions):
    """Parsed options of one use. The value None means: the option is not set, and its default is determined later."""

    bucket: BucketOptions | None = None
    history: HistoryOptions | None = None
    home: BucketOptions | None = None
    """Access to the bucket of the store, for a read without a broker."""
    access: BucketOptions | None = None
    """Access to buckets in a read through the broker and in a write: of the driver to its store, and of tasks."""

    @property
    def direct(self) -> BucketOptions | None:
        """Access of tasks to buckets; None if `directReads` is `off`.

        In a read through the broker, a *direct read* is a read of a sealed segment that the task makes from the bucket.
        """
        return None if self.direct_reads == "off" else self.access

    def refuse_access(self, use: str, location: str) -> None:
        """Raise Refused if an option for access to a bucket is set, and `location` is a directory.

        The error names `use`, which needs no bucket then. A session may name the access for all uses of its store.
        """
        given = "" if self.access is None else self.access.given_access()
        if given and not is_address(location) and not bucket_of(Path(location)):
            raise Refused(
                f"option {given!r} has no meaning for {use} the store in {location}, which accesses no bucket",
                hint="Leave it out",
            )

    def require_acknowledger(self) -> None:
        """Raise Refused for `ackMode` = `explicit` without a subscription.

        Also raises Refused for an option that needs `ackMode` = `explicit`, if `ackMode` has another value.
        """
        explicit = self.ack_mode == "explicit"
        if explicit and self.subscription is None:
            hint = "Set 'subscription': its cursor stores the acknowledgements"
            raise Refused("option 'ackMode' is 'explicit' without a subscription", hint=hint)
        given = {"ackTimeout": self.ack_timeout, "maxRedeliveries": self.max_redeliveries}
        for name, value in given.items():
            if value is not None and not explicit:
                raise Refused(f"option {name!r} has no meaning for ackMode 'checkpoint'", hint="Give ackMode explicit")

    @property
    def application(self) -> tuple[str, int] | None:
        """Values of `txnAppId` and `txnVersion`; None if neither is set. Raises Refused if only one is set."""
        if self.txn_app_id is not None and self.txn_version is not None:
            return self.txn_app_id, self.txn_version
        if self.txn_app_id is None and self.txn_version is None:
            return None
        given, missing = ("txnAppId", "txnVersion") if self.txn_version is None else ("txnVersion", "txnAppId")
        raise Refused(f"option {given!r} is given without {missing!r}", hint="Set both options, or neither")

    @property
    def starting(self) -> list[str]:
        """Names of the set options that determine the start of a read."""
        given = {
            "startingPosition": self.starting_position is not None,
            "startingTimestamp": self.starting_timestamp is not None,
            "startingPositions": bool(self.starting_positions),
            "startingTimestamps": bool(self.starting_timestamps),
        }
        return [name for name, is_given in given.items() if is_given]

    def addressing(self) -> Addressing:
        """Return the ledgers to read. Raises Refused if no option names a ledger."""
        if not (self.ledgers or self.ledgers_pattern):
            require_ledger(self)
        return Addressing.of(self.ledger, self.ledgers, self.ledgers_pattern)

    def credentials(self) -> Credentials | None:
        """Return the credentials for the store; None if the options have none.

        They are those for a broker on another host, and the access to the bucket that names the broker.
        """
        from pyspark_ledger.ledger.client.credentials import Credentials
        from pyspark_ledger.ledger.objects.s3_options import S3Options

        named = self.access if self.history is None else self.history.bucket
        in_bucket = bool(self.store and bucket_of(Path(store_location(self.store))))
        given = Credentials(
            self.tls_trust_certs_file_path,
            self.tls_certificate_file_path,
            self.tls_key_file_path,
            self.auth_params,
            bucket=named.s3() if in_bucket and named is not None and named.given_access() else S3Options(),
        )
        return None if given == Credentials() else given


def read_options(given: Mapping[str, str], use: Use | None = None) -> LedgerOptions:
    """Parse and check options. With `use`, also check that each option has a meaning in this use.

    Raises Refused, which names the option.
    """
    values: dict[str, object] = {}
    for key, text in given.items():
        if key.lower() == _ASYNC_PROGRESS.lower():
            _require_no_async_progress(text)
            continue
        option = _known(key)
        if option is None:
            continue
        if use is not None and use not in option.uses:
            hint = _HINTS.get(option.name, f"It belongs to a {' or '.join(option.uses)}")
            raise Refused(f"option {option.name!r} has no meaning for a {use}", hint=hint)
        _require_readable(option, text)
        try:
            values[option.key] = option.parse(text)
        except ValueError as expected:
            quoted = _shown(text) if option.shown else "something else (not shown: it may be a secret)"
            raise Refused(f"option {option.name!r} is {quoted}, expected {expected}") from None
    options = _consistent(values)
    if use is not None:
        require_sense(values, use)
        if options.bucket is None:  # a topic in a bucket may have any name that Pulsar accepts
            require_addressed(values)
        if options.bucket is not None and use == "stream read":
            _require_endless(options)
    return options


def _require_no_async_progress(text: str) -> None:
    """Raise Refused if Spark would record the offsets of a batch after the batch, or not at all."""
    if text.strip().lower() != "false":
        raise Refused(
            f"option {_ASYNC_PROGRESS!r} is {_shown(text)}: Spark would repeat batches with other rows, and the sink "
            "needs the offsets of each batch in the checkpoint",
            hint="Leave it out",
        )


def _require_readable(option: Option, text: str) -> None:
    """Raise Refused for a value that is too long, or that UTF-8 cannot encode.

    Called before any other code reads the value.
    """
    if len(text) > option.chars_max:
        raise Refused(f"option {option.name!r} has {len(text)} characters, at most {option.chars_max} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError as wrong:
        where = f"option {option.name!r}"
        raise Refused(unencodable(wrong, where) if option.shown else f"{where} is not valid Unicode") from None


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}… ({len(text)} characters)"


def _known(key: str) -> Option | None:
    if len(key) > _KEY_CHARS_MAX:
        raise Refused(f"unknown option {key[:_KEY_CHARS_MAX]!r}… of {len(key)} characters", hint=_OPTIONS_HINT)
    lowered = key.lower()
    if lowered in SPARKS_OWN:
        return None
    if lowered not in _BY_NAME:
        require_no_foreign_name(key)
        near = difflib.get_close_matches(lowered, _BY_NAME, n=1, cutoff=0.5)
        hint = f"Did you mean {_BY_NAME[near[0]].name!r}?" if near else _OPTIONS_HINT
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


def _consistent(values: dict[str, object]) -> LedgerOptions:
    path = values.pop("path", None)
    if path is not None and values.get("ledger", path) != path:
        raise Refused(f"the ledger is named twice: {path!r} as the path and {values['ledger']!r} by option 'ledger'")
    if path is not None:
        values["ledger"] = path
    require_consistent(values)
    names = {option.key: option.name for option in OPTIONS}
    home = take_home_options(values, {option.key: option for option in OPTIONS})
    history = take_history_options(values, names)
    access = take_access_options(values) if home is None and history is None and "offload" not in values else None
    bucket = take_bucket_options(values, names)
    if values.get("ack_mode") == "explicit":
        values["include_metadata"] = True  # a write that acknowledges rows needs their positions
    if "min_partition_bytes" not in values and "target_partition_bytes" in values:  # the default may be too large
        least = int(str(values["target_partition_bytes"]))
        values["min_partition_bytes"] = min(least, LedgerOptions.min_partition_bytes)
    options = LedgerOptions(bucket=bucket, history=history, home=home, access=access, **values)  # type: ignore[arg-type]  # each option's parser returns the type of its field
    if options.min_partition_bytes > options.target_partition_bytes:
        raise Refused(
            f"option 'minPartitionBytes' ({options.min_partition_bytes}) exceeds "
            f"'targetPartitionBytes' ({options.target_partition_bytes})"
        )
    return options


def require_ledger(options: LedgerOptions) -> str:
    """Return the ledger's name as the user wrote it. Raises Refused if the options name no ledger."""
    if not options.ledger:
        raise Refused(
            "no ledger is named",
            hint="Name it in load(), start() or save(), or with option 'ledger'. Spark passes no options of a table of "
            "its catalog to the source: use CREATE TEMPORARY VIEW … USING ledger instead",
        )
    return options.ledger
