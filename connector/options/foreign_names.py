"""Options of other Spark connectors, each with the hint that names the option of this source.

Rules
- A foreign option is never an alias. It is refused even if an option here has the same meaning.
- A name that ends in `*` means every option that begins with the text before the `*`. If several such names match,
  the longest applies.
- A hint puts the options of this source in quotes: 'store'. An example of a value follows the words `such as`, and ends
  at a semicolon.
- An error contains the option's name and never its value, which may be a secret.

docs/from-kafka.md, docs/from-pulsar.md and docs/from-delta.md have the same names in their tables.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Refused


class Origin(Enum):
    """Other connectors: each with its name in errors, and the page for its users."""

    KAFKA = ("Kafka's connector", ("docs/from-kafka.md",))
    PULSAR = ("Pulsar's connector", ("docs/from-pulsar.md",))
    KAFKA_AND_PULSAR = ("the connectors of Kafka and Pulsar", ("docs/from-kafka.md", "docs/from-pulsar.md"))
    DELTA = ("Delta's connector", ("docs/from-delta.md",))
    DELTA_AND_FILES = ("Delta's connector and Spark's file sources", ("docs/from-delta.md",))

    def __init__(self, owner: str, pages: tuple[str, ...]) -> None:
        self.owner = owner
        self.pages = pages


class ForeignName(NamedTuple):
    """Name of a foreign option, and the hint for its users. A name with a final `*` is a prefix."""

    name: str
    origin: Origin
    words: str


_PLACES = '{"orders": "3:17"}'
_TIMES = '{"orders": 1700000000000}'
_RETRIES = "Leave it out: calls to the broker are retried until their deadline"
_POLLS = "Leave it out: a task reads stored entries and does not poll"
_UNCHANGED = "Leave it out: no write changes or deletes a row of a log"
_APPEND_ONLY = "Leave it out: a write only appends"
_COLUMNS_KEPT = "Leave it out: a query keeps its columns until its restart"
_ENTRY = "Use 'entryBytes', such as 4m; a log has entries, not files"
_BEARER = "Use 'authParams' with the place of the token, such as env:LEDGER_TOKEN; never give the token itself"
_ONE_ADDRESS = "Leave it out: 'store' is the only address"

FOREIGN_NAMES: tuple[ForeignName, ...] = (
    ForeignName(
        "topic",
        Origin.KAFKA_AND_PULSAR,
        "Name the ledger in load(), start() or save(), or use 'ledger', such as orders; a column __ledger routes rows",
    ),
    ForeignName(
        "startingOffsets",
        Origin.KAFKA_AND_PULSAR,
        f"Use 'startingPosition' (earliest, latest or 3:17), or by ledger 'startingPositions', such as {_PLACES}",
    ),
    ForeignName(
        "endingOffsets",
        Origin.KAFKA_AND_PULSAR,
        f"Use 'endingPosition' (latest or 3:17), or by ledger 'endingPositions', such as {_PLACES}",
    ),
    ForeignName("subscribe", Origin.KAFKA, "Use 'ledgers', such as orders,clicks; load() names a single ledger"),
    ForeignName(
        "subscribePattern", Origin.KAFKA, "Use 'ledgersPattern', such as orders-.*; it must match the whole name"
    ),
    ForeignName("assign", Origin.KAFKA, "Use 'ledgers', such as orders-partition-0; a partition is a ledger"),
    ForeignName(
        "startingOffsetsByTimestamp",
        Origin.KAFKA,
        f"Use 'startingTimestamps', such as {_TIMES}; a partition is a ledger",
    ),
    ForeignName(
        "endingOffsetsByTimestamp",
        Origin.KAFKA,
        f"Use 'endingTimestamps', such as {_TIMES}; a partition is a ledger",
    ),
    ForeignName(
        "startingOffsetsByTimestampStrategy",
        Origin.KAFKA,
        "Leave it out: a read starts at the end if every entry is older than its timestamp",
    ),
    ForeignName("maxOffsetsPerTrigger", Origin.KAFKA, "Use 'maxRowsPerTrigger', such as 10000"),
    ForeignName("minOffsetsPerTrigger", Origin.KAFKA, "Use 'minRowsPerTrigger', such as 1000"),
    ForeignName(
        "minPartitions", Origin.KAFKA, "Use 'targetPartitionBytes', such as 16m; a smaller size gives more partitions"
    ),
    ForeignName(
        "maxRecordsPerPartition",
        Origin.KAFKA,
        "Use 'targetPartitionBytes', such as 16m; partitions are measured in bytes",
    ),
    ForeignName(
        "includeHeaders",
        Origin.KAFKA,
        "Use 'includeMetadata', such as true; headers are the column __messageProperties, also in a write",
    ),
    ForeignName("groupIdPrefix", Origin.KAFKA, "Leave it out: no group is generated. 'subscription' names a cursor"),
    ForeignName("fetchOffset.numRetries", Origin.KAFKA, _RETRIES),
    ForeignName("fetchOffset.retryIntervalMs", Origin.KAFKA, _RETRIES),
    ForeignName("kafkaConsumer.pollTimeoutMs", Origin.KAFKA, _POLLS),
    ForeignName(
        "kafka.bootstrap.servers",
        Origin.KAFKA,
        "Use 'store', such as grpc://host:6651; a directory of this host needs no server",
    ),
    ForeignName("kafka.group.id", Origin.KAFKA, "Use 'subscription', such as billing; one query at a time uses it"),
    ForeignName(
        "kafka.security.protocol",
        Origin.KAFKA,
        "Use 'store', such as grpc+tls://host:6651; 'authParams' names the place of a token",
    ),
    ForeignName(
        "kafka.ssl.*",
        Origin.KAFKA,
        "Use 'tlsTrustCertsFilePath', 'tlsCertificateFilePath' and 'tlsKeyFilePath': paths of PEM files, not key "
        "stores",
    ),
    ForeignName("kafka.sasl.*", Origin.KAFKA, _BEARER),
    ForeignName("kafka.compression.type", Origin.KAFKA, "Use 'compression', such as zstd; or auto or none"),
    ForeignName("kafka.partitioner.class", Origin.KAFKA, "Leave it out: a column __key chooses the partition"),
    ForeignName("kafka.*", Origin.KAFKA, "Leave it out: no client of Kafka runs here. 'store' names the broker"),
    ForeignName(
        "service.url",
        Origin.PULSAR,
        "Use 'store', such as grpc://host:6651; a directory of this host needs no server",
    ),
    ForeignName("admin.url", Origin.PULSAR, _ONE_ADDRESS),
    ForeignName("topics", Origin.PULSAR, "Use 'ledgers', such as orders,clicks"),
    ForeignName("topicsPattern", Origin.PULSAR, "Use 'ledgersPattern', such as orders-.*; leave out persistent://"),
    ForeignName(
        "startingTime",
        Origin.PULSAR,
        f"Use 'startingTimestamp', or by ledger 'startingTimestamps', such as {_TIMES}",
    ),
    ForeignName(
        "endingTime",
        Origin.PULSAR,
        f"Use 'endingTimestamp', or by ledger 'endingTimestamps', such as {_TIMES}",
    ),
    ForeignName(
        "predefinedSubscription", Origin.PULSAR, "Use 'subscription', such as billing; it is created if missing"
    ),
    ForeignName(
        "subscriptionPrefix", Origin.PULSAR, "Leave it out: no subscription is generated. 'subscription' sets a name"
    ),
    ForeignName("pollTimeoutMs", Origin.PULSAR, _POLLS),
    ForeignName(
        "waitingForNonExistedTopic",
        Origin.PULSAR,
        "Use 'waitForLedger', such as true; 'waitTimeoutMs' limits the wait",
    ),
    ForeignName(
        "allowDifferentTopicSchemas",
        Origin.PULSAR,
        "Use 'payloadSchema', such as BYTES; each payload is then a column value of bytes",
    ),
    ForeignName("pulsar.client.authParams", Origin.PULSAR, _BEARER),
    ForeignName(
        "pulsar.client.authPluginClassName",
        Origin.PULSAR,
        "Leave it out: the only credentials are a token ('authParams') and a certificate ('tlsCertificateFilePath')",
    ),
    ForeignName(
        "pulsar.client.tls*",
        Origin.PULSAR,
        "Use 'tlsTrustCertsFilePath', 'tlsCertificateFilePath' and 'tlsKeyFilePath': paths of PEM files. The broker's "
        "certificate is always verified",
    ),
    ForeignName("pulsar.client.*", Origin.PULSAR, "Leave it out: no client of Pulsar runs here"),
    ForeignName("pulsar.admin.*", Origin.PULSAR, _ONE_ADDRESS),
    ForeignName("pulsar.reader.subscriptionName", Origin.PULSAR, "Use 'subscription', such as billing"),
    ForeignName("pulsar.reader.*", Origin.PULSAR, "Leave it out: no reader of Pulsar runs here"),
    ForeignName("pulsar.producer.compressionType", Origin.PULSAR, "Use 'compression', such as zstd; or auto or none"),
    ForeignName(
        "pulsar.producer.*", Origin.PULSAR, "Leave it out: 'entryBytes' is the size of an entry, and tasks fill entries"
    ),
    ForeignName("pulsar.*", Origin.PULSAR, "Leave it out: no client of Pulsar runs here"),
    ForeignName("versionAsOf", Origin.DELTA, "Use 'endingPosition', such as 3:17; the read ends before that position"),
    ForeignName("timestampAsOf", Origin.DELTA, "Use 'endingTimestamp', such as 1700000000000; in milliseconds"),
    ForeignName("startingVersion", Origin.DELTA, "Use 'startingPosition', such as 3:17; or earliest or latest"),
    ForeignName("endingVersion", Origin.DELTA, "Use 'endingPosition', such as 3:17; the read ends before it"),
    ForeignName(
        "readChangeFeed", Origin.DELTA, "Leave it out: a read returns each appended row, and a log has no other changes"
    ),
    ForeignName(
        "readChangeData", Origin.DELTA, "Leave it out: a read returns each appended row, and a log has no other changes"
    ),
    ForeignName("ignoreChanges", Origin.DELTA, _UNCHANGED),
    ForeignName("ignoreDeletes", Origin.DELTA, _UNCHANGED),
    ForeignName("skipChangeCommits", Origin.DELTA, _UNCHANGED),
    ForeignName("ignoreFileDeletion", Origin.DELTA, "Use 'failOnDataLoss', such as false; the losses are counted"),
    ForeignName("excludeRegex", Origin.DELTA, "Leave it out: a log has no files to exclude"),
    ForeignName("schemaTrackingLocation", Origin.DELTA, _COLUMNS_KEPT),
    ForeignName("schemaLocation", Origin.DELTA, _COLUMNS_KEPT),
    ForeignName(
        "overwriteSchema",
        Origin.DELTA,
        "Columns are added or widened with 'mergeSchema', and never replaced",
    ),
    ForeignName("replaceWhere", Origin.DELTA, _APPEND_ONLY),
    ForeignName("partitionOverwriteMode", Origin.DELTA, _APPEND_ONLY),
    ForeignName("dataChange", Origin.DELTA, "Leave it out: every write appends new rows"),
    ForeignName("userMetadata", Origin.DELTA, "Leave it out: a column __messageProperties describes each row"),
    ForeignName("optimizeWrite", Origin.DELTA, _ENTRY),
    ForeignName("maxRecordsPerFile", Origin.DELTA, _ENTRY),
    ForeignName(
        "maxFilesPerTrigger", Origin.DELTA_AND_FILES, "Use 'maxRowsPerTrigger', or 'maxBytesPerTrigger', such as 64m"
    ),
    ForeignName("paths", Origin.DELTA_AND_FILES, "Name several ledgers by option 'ledgers', such as orders,clicks"),
)
_NAMES = {foreign.name.lower(): foreign for foreign in FOREIGN_NAMES}
_PREFIXES = sorted((name.rstrip("*") for name in _NAMES if name.endswith("*")), key=len, reverse=True)


def foreign_name(key: str) -> ForeignName | None:
    """Return the entry of a foreign option; None if no other connector has the option. The case is ignored."""
    lowered = key.lower()
    begins = next((prefix for prefix in _PREFIXES if lowered.startswith(prefix)), "")
    return _NAMES.get(lowered) or _NAMES.get(f"{begins}*")


def require_no_foreign_name(key: str) -> None:
    """Raise Refused with the hint of the table if another connector has the option `key`."""
    found = foreign_name(key)
    if found is None:
        return
    name = key if found.name.endswith("*") else found.name  # Spark passes names in lower case
    hint = f"{found.words} ({', '.join(found.origin.pages)})"
    raise Refused(f"option {name!r} belongs to {found.origin.owner}", hint=hint)
