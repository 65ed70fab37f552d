"""The broker's settings: numbers and switches from a file, each with its default, unit, range and reason.

Rules: names are those of Pulsar's broker.conf where the meaning is the same. An unknown name is refused with the
nearest one, a value out of range with both values. `conf/broker.toml` is printed from this table, so the two cannot
differ.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from ledger.cache_setting import CACHE_ELSEWHERE, CACHE_SETTINGS, CACHE_TEXT_SETTINGS
from ledger.errors import NotFound, Refused
from ledger.names import nearest
from ledger.setting import Setting, TextSetting

_MB = 1024 * 1024
_MINUTES_MAX = 2**31 - 1
_SIZE_MB_MAX = 2**31 - 1


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a broker. See `SETTINGS` for units and reasons."""

    ledgerBlockSizeBytes: int = 64 * _MB
    managedLedgerMaxEntriesPerLedger: int = 50_000
    managedLedgerMaxSizePerLedgerMbytes: int = 2_048
    managedLedgerMaxLedgerRolloverTimeMinutes: int = 240
    managedLedgerMinLedgerRolloverTimeMinutes: int = 0
    defaultRetentionTimeInMinutes: int = -1
    defaultRetentionSizeInMB: int = -1
    retentionCheckIntervalInSeconds: int = 120
    retentionWaitsForOffload: int = 0
    deleteAfterPublish: int = 0
    managedLedgerOffloadThresholdInSeconds: int = -1
    managedLedgerOffloadAutoTriggerSizeThresholdBytes: int = -1
    managedLedgerOffloadDeletionLagMs: int = 4 * 3600 * 1000
    managedLedgerOffloadMaxThreads: int = 2
    managedLedgerOffloadReadThreads: int = 4
    managedLedgerOffloadReadBufferSizeInBytes: int = 16 * _MB
    managedLedgerOffloadReadCacheSizeMB: int = 256
    managedLedgerOffloadFineIndex: int = 1
    managedLedgerCacheSizeMB: int = 64
    managedLedgerCacheCopyEntries: int = 0
    managedLedgerCacheEvictionWatermark: int = 95
    managedLedgerCacheEvictionTriggerThresholdPercent: int = 99
    managedLedgerCacheEvictionIntervalMs: int = 100
    managedLedgerCacheEvictionTimeThresholdMillis: int = 1_000
    managedLedgerCacheEvictionTimeThresholdMillisMax: int = 5_000
    managedLedgerCacheEvictionTimeThresholdMillisOffloaded: int = 60_000
    managedLedgerCacheReadAheadPercent: int = 25
    managedLedgerCachePacingPercent: int = 20
    managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes: int = 5
    managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed: int = 0
    managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis: int = 2_000
    managedLedgerMaxReadsInFlightSizeInMB: int = 0
    managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis: int = 60_000
    managedLedgerMaxReadsInFlightPermitsAcquireQueueSize: int = 50_000
    cacheEvictionByMarkDeletedPosition: int = 0
    managedLedgerCursorBackloggedThreshold: int = 1_000
    managedLedgerMinimumBacklogCursorsForCaching: int = 0
    managedLedgerMinimumBacklogEntriesForCaching: int = 1_000
    managedLedgerMaxBacklogBetweenCursorsForCaching: int = 1_000
    maxInFlightAppendBytes: int = 64 * _MB
    maxMessagePublishBufferSizeInMB: int = 512
    maxMessageSize: int = 128 * _MB
    maxRequestBodyBytes: int = 16 * _MB
    maxWaitMillis: int = 60_000
    maxConcurrentRequests: int = 8_192
    maxConcurrentReaders: int = 2_048
    brokerMaxConnections: int = 16_384
    managedLedgerMaxUnackedRangesToPersist: int = 0
    managedLedgerMaxUnackedRangesToPersistInMetadataStore: int = 1_000
    persistentUnackedRangesWithMultipleEntriesEnabled: int = 1
    persistentUnackedRangesMaxEntrySize: int = _MB
    managedLedgerCursorMaxEntriesPerLedger: int = 50_000
    managedLedgerCursorRolloverTimeInSeconds: int = 14_400
    managedLedgerDefaultMarkDeleteRateLimit: int = 0
    managedLedgerCursorPositionFlushSeconds: int = 60
    cursorDeltasPerState: int = 256
    stagingRetentionSeconds: int = 7 * 24 * 3600
    brokerDeduplicationMaxNumberOfProducers: int = 10_000
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = 360
    brokerIdleTimeoutSeconds: int = 300
    brokerShutdownTimeoutMs: int = 60_000
    cursorInfoCompressionType: str = ""
    cacheEvictionPolicy: str = "cursor-distance"
    bindAddress: str = ""
    tlsCertificateFilePath: str = ""
    tlsKeyFilePath: str = ""
    tlsTrustCertsFilePath: str = ""
    authenticationTokens: str = ""
    managedLedgerOffloadBucket: str = ""
    managedLedgerOffloadServiceEndpoint: str = ""
    managedLedgerOffloadRegion: str = ""
    managedLedgerOffloadPathStyle: str = ""
    managedLedgerOffloadProfile: str = ""
    managedLedgerOffloadCredentialProvider: str = ""
    s3ManagedLedgerOffloadRole: str = ""
    s3ManagedLedgerOffloadRoleSessionName: str = ""
    managedLedgerOffloadEncryption: str = ""
    managedLedgerOffloadKmsKey: str = ""
    managedLedgerOffloadBucketOwner: str = ""
    managedLedgerOffloadTransform: str = ""
    managedLedgerDataReadPriority: str = ""

    @classmethod
    def load(cls, path: Path) -> Settings:
        """The settings of a TOML file; what it does not name has its default."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NotFound(f"there is no settings file {path}", hint="Start without one for the defaults") from None
        except UnicodeDecodeError as wrong:
            raise Refused(f"{path} is not TOML: {wrong}", hint="Save it as UTF-8") from wrong
        try:
            return cls.of(tomllib.loads(text))
        except tomllib.TOMLDecodeError as wrong:
            raise Refused(f"{path} is not TOML: {wrong}") from wrong

    @classmethod
    def of(cls, values: dict[str, Any]) -> Settings:
        """Settings from names and values; raises Refused for the first that is unknown or out of range."""
        for name, value in values.items():
            require_setting(name)
            if name in TEXT_SETTINGS:
                _require_text(name, value)
            else:
                _require_in_range(name, value)
        return cls(**values)


SETTINGS: dict[str, Setting] = {
    "ledgerBlockSizeBytes": Setting(
        "bytes",
        5 * _MB,
        1024 * _MB,
        "Block of a new managed ledger: the part size of its offload and the limit of one entry. S3 takes no "
        "part below 5 MiB. Fixed for a ledger when it is created.",
    ),
    "managedLedgerMaxEntriesPerLedger": Setting(
        "entries", 1, 2**31 - 1, "A ledger with so many entries is sealed and the log goes on in a new one."
    ),
    "managedLedgerMaxSizePerLedgerMbytes": Setting(
        "MiB", 1, 1024 * 1024, "A ledger of this size is sealed and the log goes on in a new one."
    ),
    "managedLedgerMaxLedgerRolloverTimeMinutes": Setting(
        "minutes",
        0,
        _MINUTES_MAX,
        "A ledger of this age, and up to a twentieth more so that not all roll over at once, is sealed when it holds "
        "an entry. 0: age alone never seals.",
    ),
    "managedLedgerMinLedgerRolloverTimeMinutes": Setting(
        "minutes",
        0,
        _MINUTES_MAX,
        "No ledger is sealed before it is older than this, however full. Pulsar's 10 spares its metadata cluster; here "
        "0, because a ledger costs one row of a local file and a full one should be ready to offload.",
    ),
    "defaultRetentionTimeInMinutes": Setting(
        "minutes",
        -1,
        _MINUTES_MAX,
        "How long a sealed ledger that every cursor has read is kept; whichever of time and size is reached first "
        "decides. -1 keeps everything. Pulsar's default, 0 in both, deletes what every cursor has read: here a "
        "notebook's table would vanish.",
    ),
    "defaultRetentionSizeInMB": Setting(
        "MiB",
        -1,
        _SIZE_MB_MAX,
        "How much of a managed ledger is kept when every cursor has read it; -1 keeps everything, as above.",
    ),
    "retentionCheckIntervalInSeconds": Setting(
        "seconds", 1, 24 * 3600, "How often the broker looks for ledgers to roll over by age and to trim."
    ),
    "retentionWaitsForOffload": Setting(
        "switch",
        0,
        1,
        "1: where ledgers are offloaded by themselves, retention deletes none that is not offloaded yet, however long "
        "object storage cannot be reached.",
    ),
    "deleteAfterPublish": Setting(
        "switch",
        0,
        1,
        "1: a ledger that every cursor has read is deleted once it is in all tables that its managed ledger is "
        "published to, here and in object storage.",
    ),
    "managedLedgerOffloadThresholdInSeconds": Setting(
        "seconds",
        -1,
        _MINUTES_MAX,
        "A ledger is offloaded so long after it was sealed; -1: not by its age. Must be below the time of retention.",
    ),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": Setting(
        "bytes",
        -1,
        2**62,
        "A ledger is offloaded when it and all sealed after it have more bytes than this; 0: as soon as it is sealed; "
        "-1: not by size. Must be below the size of retention.",
    ),
    "managedLedgerOffloadDeletionLagMs": Setting(
        "milliseconds",
        -1,
        10 * 365 * 24 * 3_600_000,
        "So long after it was offloaded the local copy of a ledger is deleted; -1: never.",
    ),
    "managedLedgerOffloadMaxThreads": Setting(
        "threads", 1, 64, "Blocks that are uploaded at once; ledgers go one after another."
    ),
    "managedLedgerOffloadReadThreads": Setting(
        "threads", 1, 256, "Ranges that are fetched from object storage at once, of all readers."
    ),
    "managedLedgerOffloadReadBufferSizeInBytes": Setting(
        "bytes",
        64 * 1024,
        256 * _MB,
        "One range that is fetched. Pulsar's 1 MiB makes sixteen times as many requests; S3 is fastest at 8 to 16 MiB.",
    ),
    "managedLedgerOffloadReadCacheSizeMB": Setting(
        "MiB",
        1,
        1024 * 1024,
        "Ranges that are kept, read ahead and those that readers are at, of all offloaded ledgers together.",
    ),
    "managedLedgerOffloadFineIndex": Setting(
        "switch",
        0,
        1,
        "1: the place of every entry is uploaded as one more object, so that nobody has to scan a block for an entry.",
    ),
    **CACHE_SETTINGS,
    "maxInFlightAppendBytes": Setting(
        "bytes",
        _MB,
        16 * 1024 * _MB,
        "Bytes of one producer that wait for the disk; beyond it the broker stops reading.",
        live=True,
    ),
    "maxMessagePublishBufferSizeInMB": Setting(
        "MiB",
        1,
        1024 * 1024,
        "Bytes of all producers together that wait for the disk; beyond it the broker stops reading from whoever has "
        "some there. One entry of each producer always fits.",
        live=True,
    ),
    "maxMessageSize": Setting(
        "bytes",
        5 * _MB,
        2 * 1024 * _MB,
        "What one request of a producer may carry: one entry, or a few MiB of small ones. No more can be sent, "
        "whatever its block could hold.",
        live=True,
    ),
    "maxRequestBodyBytes": Setting(
        "bytes",
        64 * 1024,
        1024 * _MB,
        "What any other request may be long: schemas and the parts of a batch are the longest.",
        live=True,
    ),
    "maxWaitMillis": Setting(
        "milliseconds",
        0,
        100_000,
        "How long a reader may have the broker wait for news before it asks again. A client gives a call two minutes.",
        live=True,
    ),
    "maxConcurrentRequests": Setting(
        "calls",
        1,
        1024 * 1024,
        "Calls and streams that are served at once. Each has a thread.",
        live=True,
    ),
    "maxConcurrentReaders": Setting(
        "readers",
        1,
        1024 * 1024,
        "Readers that are sent blocks at once; those on this host map files and do not count.",
        live=True,
    ),
    "brokerMaxConnections": Setting(
        "connections",
        1,
        1024 * 1024,
        "Connections at once. Each is a descriptor; Pulsar's default, 0, has no limit but that of the system.",
        live=True,
    ),
    "managedLedgerMaxUnackedRangesToPersist": Setting(
        "ranges",
        0,
        2**31 - 1,
        "Ranges that a cursor may have acknowledged beyond its mark-delete; one that would have more is refused. "
        "0: no limit. Pulsar keeps 10,000 and loses the rest in a crash without a word.",
    ),
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": Setting(
        "ranges",
        0,
        200_000,
        "A cursor with no more of them is kept in its metadata record when the broker closes, and its ledger goes.",
    ),
    "persistentUnackedRangesWithMultipleEntriesEnabled": Setting(
        "0 or 1",
        0,
        1,
        "1: the state of a cursor that is larger than the next setting is cut into chunks with a footer (PIP-381). "
        "0: one that is larger is refused.",
    ),
    "persistentUnackedRangesMaxEntrySize": Setting(
        "bytes", 1024, 4 * _MB, "The largest entry of a cursor's ledger; PIP-381's default."
    ),
    "managedLedgerCursorMaxEntriesPerLedger": Setting(
        "entries", 1, 2**31 - 1, "A cursor's ledger with so many entries is replaced by a new one."
    ),
    "managedLedgerCursorRolloverTimeInSeconds": Setting(
        "seconds", 0, _MINUTES_MAX, "A cursor's ledger of this age is replaced at its next flush; 0: age never does."
    ),
    "managedLedgerDefaultMarkDeleteRateLimit": Setting(
        "flushes per second",
        0,
        1000,
        "How often what a cursor acknowledges out of order is flushed at most. 0: before each is answered, and nothing "
        "is lost in a crash. Otherwise a crash gives back what was acknowledged since the last flush.",
    ),
    "managedLedgerCursorPositionFlushSeconds": Setting(
        "seconds",
        1,
        24 * 3600,
        "With a rate, whatever is not flushed yet is flushed after this time: the longest that a crash can give back.",
    ),
    "cursorDeltasPerState": Setting(
        "deltas",
        0,
        100_000,
        "Flushes of a cursor that write only what was added, until a whole state is written again; 0: every flush "
        "writes a whole state, PIP-381 to the letter.",
    ),
    "stagingRetentionSeconds": Setting(
        "seconds",
        60,
        10 * 365 * 24 * 3600,
        "How long what failed task attempts staged may wait for a batch's re-run.",
    ),
    "brokerDeduplicationMaxNumberOfProducers": Setting(
        "producers",
        1,
        1_000_000,
        "Producers whose sequence ids a ledger with de-duplication remembers; beyond it those longest silent go.",
    ),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": Setting(
        "minutes",
        1,
        10 * 365 * 24 * 60,
        "A producer that was silent for so long is forgotten when its ledger is sealed: what it sends again is new.",
    ),
    "brokerIdleTimeoutSeconds": Setting(
        "seconds",
        0,
        10 * 365 * 24 * 3600,
        "A broker that the library started leaves after so long without a call or a lease; 0: never.",
        live=True,
    ),
    "brokerShutdownTimeoutMs": Setting(
        "milliseconds",
        0,
        3_600_000,
        "How long a broker that was told to stop may take to settle what was queued and to seal ledgers. What is not "
        "settled by then was never acknowledged, and what is not sealed is recovered at the next start.",
        live=True,
    ),
}

TEXT_SETTINGS: dict[str, TextSetting] = {
    "cursorInfoCompressionType": TextSetting(
        "name",
        "How the state of a cursor is compressed: NONE, LZ4, ZLIB, ZSTD or SNAPPY. PIP-381's default is NONE.",
    ),
    **CACHE_TEXT_SETTINGS,
    "bindAddress": TextSetting(
        "address",
        "Where the broker listens instead of its private socket: grpc://127.0.0.1:PORT or grpc+tls://HOST:PORT. Beyond "
        "loopback it takes all four settings below. Where it asks for credentials, the private socket stays beside it.",
    ),
    "tlsCertificateFilePath": TextSetting("path", "The broker's certificate and what it was signed with, PEM."),
    "tlsKeyFilePath": TextSetting("path", "The key of the certificate, PEM, mode 600."),
    "tlsTrustCertsFilePath": TextSetting(
        "path", "The authority of the clients' certificates, PEM: a client without a certificate of it is refused."
    ),
    "authenticationTokens": TextSetting(
        "reference",
        "Where the bearer tokens are that clients may show: file:/path, one token a line, mode 600, or env:NAME. "
        "Several, so that a token can be replaced while clients run. Never the token itself.",
    ),
    "managedLedgerOffloadBucket": TextSetting(
        "address",
        "Where sealed ledgers are offloaded to: s3://bucket[/prefix], file:///path or a directory. Without it none is.",
        live=True,
    ),
    "managedLedgerOffloadServiceEndpoint": TextSetting(
        "url", "The endpoint of an S3 that is not Amazon's, http:// or https://.", live=True
    ),
    "managedLedgerOffloadRegion": TextSetting("region", "The region of the bucket.", live=True),
    "managedLedgerOffloadPathStyle": TextSetting(
        "true or false",
        "Whether the bucket stands in the path of a request and not in its host. Unless said, where an endpoint is "
        "named.",
        live=True,
        choices=("true", "false"),
    ),
    "managedLedgerOffloadProfile": TextSetting(
        "name", "A profile of the AWS files. Without it boto3 looks for credentials as it does everywhere.", live=True
    ),
    "managedLedgerOffloadCredentialProvider": TextSetting(
        "module:function",
        "A function that answers a session or credentials for an address, called in the broker; before all others.",
        live=True,
    ),
    "s3ManagedLedgerOffloadRole": TextSetting("ARN", "A role to assume with the credentials found.", live=True),
    "s3ManagedLedgerOffloadRoleSessionName": TextSetting("name", "What such a session is called.", live=True),
    "managedLedgerOffloadEncryption": TextSetting(
        "AES256 or aws:kms",
        "How the server is to encrypt objects, where the bucket does not say so.",
        live=True,
        choices=("AES256", "aws:kms"),
    ),
    "managedLedgerOffloadKmsKey": TextSetting("ARN", "The key for aws:kms, if not the bucket's own.", live=True),
    "managedLedgerOffloadBucketOwner": TextSetting(
        "account", "Twelve digits: every request fails if the bucket is not theirs.", live=True
    ),
    "managedLedgerOffloadTransform": TextSetting(
        "module:function",
        "A function of the bytes of an entry to those that are offloaded, called in the broker for each. It must give "
        "an entry for an entry.",
        live=True,
    ),
    "managedLedgerDataReadPriority": TextSetting(
        "bookkeeper-first or tiered-storage-first",
        "Where a ledger is read from that is here and in object storage. Unless said, here: a local disk costs nothing "
        "to read. Pulsar's default is the other.",
        live=True,
        choices=("bookkeeper-first", "tiered-storage-first"),
    ),
}


def broker_toml() -> str:
    """The text of `conf/broker.toml`: every setting with its default, unit, range and reason."""
    lines = [
        "# Every setting of the broker, at its default. Uncomment to change; unknown names are refused.",
        "",
    ]
    defaults = Settings()
    for name, setting in SETTINGS.items():
        when = " Changed by `ledger settings set`, too." if setting.live else ""
        lines += [f"# {setting.reason}", f"# Unit: {setting.unit}; {setting.least} to {setting.most}.{when}"]
        lines += [f"# {name} = {getattr(defaults, name)}", ""]
    for name, text in TEXT_SETTINGS.items():
        when = " Changed by `ledger settings set`, too." if text.live else ""
        default = getattr(defaults, name)
        empty = "" if default else "; empty: none"
        lines += [f"# {text.reason}", f"# A text: {text.kind}{empty}.{when}", f'# {name} = "{default}"', ""]
    return "\n".join(lines)


def require_setting(name: str) -> None:
    """Refuse a name that is none, saying what was meant."""
    if name in SETTINGS or name in TEXT_SETTINGS:
        return
    near = nearest(name, [*SETTINGS, *TEXT_SETTINGS])
    meant = f"Did you mean {near!r}?" if near else "See conf/broker.toml"
    raise Refused(f"there is no setting {name!r}", hint=CACHE_ELSEWHERE.get(name, meant))


def _require_in_range(name: str, value: Any) -> None:
    setting = SETTINGS[name]
    if type(value) is not int or not setting.least <= value <= setting.most:
        part = isinstance(value, float) and setting.unit == "percent" and 0 < value < 1
        raise Refused(
            f"setting {name!r} is {value!r}, expected an integer from {setting.least} to {setting.most} {setting.unit}",
            hint=f"Whole percents: {value * 100:.0f}" if part else "",
        )


def _require_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or "\0" in value:
        # Not the value: somebody may have put a token there.
        raise Refused(f"setting {name!r} is no text ({TEXT_SETTINGS[name].kind}) but {type(value).__name__}")
    choices = TEXT_SETTINGS[name].choices
    if value and choices and value not in choices:
        near = nearest(value, choices)
        raise Refused(
            f"setting {name!r} is none of {', '.join(choices)}", hint=f"Did you mean {near!r}?" if near else ""
        )
    if TEXT_SETTINGS[name].kind == "reference" and value and not value.startswith(("file:", "env:")):
        raise Refused(f"setting {name!r} is no reference", hint="Give file:/path or env:NAME; what it is is not shown")
