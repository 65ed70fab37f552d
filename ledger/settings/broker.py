"""The broker's settings: numbers and switches from a file, each with its default, unit, range and reason.

Rules: names are those of Pulsar's broker.conf where the meaning is the same. An unknown name is refused with the
nearest one, a value out of range with both values. `conf/broker.toml` is printed from this table, so the two cannot
differ. Those of cache, cursors and offloading stand in tables of their own (`ledger.settings.cache` and its like).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.names import nearest
from pyspark_ledger.ledger.settings.cache import CACHE_ELSEWHERE, CACHE_SETTINGS, CACHE_TEXT_SETTINGS
from pyspark_ledger.ledger.settings.cursor import CURSOR_SETTINGS, CURSOR_TEXT_SETTINGS
from pyspark_ledger.ledger.settings.offload import OFFLOAD_SETTINGS, OFFLOAD_TEXT_SETTINGS
from pyspark_ledger.ledger.settings.setting import Setting, TextSetting

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
    managedLedgerCacheLocalFilesSizeMB: int = 256
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
    cursorInfoCompressionType: str = "NONE"
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
        import tomllib  # a private broker has no file

        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NotFound(f"there is no settings file {path}", hint="Start without one for the defaults") from None
        except UnicodeDecodeError as wrong:
            raise Refused(f"{path} is not TOML: {wrong}", hint="Save it as UTF-8") from wrong
        try:
            return cls.of(tomllib.loads(text))
        except JSON_FAULTS as wrong:
            raise Refused(f"{path} is not TOML: {json_fault(wrong)}") from wrong

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
    **OFFLOAD_SETTINGS,
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
    **CURSOR_SETTINGS,
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
    **CURSOR_TEXT_SETTINGS,
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
    **OFFLOAD_TEXT_SETTINGS,
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
