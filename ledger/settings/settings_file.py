"""A settings file of the broker: TOML, or a `broker.conf` of Pulsar.

    broker.toml    name = 1, name = "text"; ignore = ["name", …]
    NAME.conf      name=value, one a line; `#` starts a comment; ignore=name,name

Rules
- A setting of Pulsar that has no effect here costs one line in the log. `pulsar_names.txt` lists these names, as Pulsar
  4.2.4 declares them.
- Exception: a setting that asks for protection, such as authentication, a second copy or de-duplication, is refused.
  Reason: without it the store is less safe than its operator believes. `ignore` names the settings that the operator
  gives up.
- A setting of an earlier version, which has no effect any more, costs one line too.
- A switch may be true or false. An empty value in `broker.conf` is not set, as in Pulsar.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.settings.setting import Setting

RETIRED = {
    "maxConcurrentReaders": "readers count as calls: 'maxConcurrentRequests'",
    "s3ManagedLedgerOffloadRoleSessionName": "name the session in a profile of the AWS configuration files: "
    "'managedLedgerOffloadProfile'",
    "managedLedgerOffloadTransform": "let the bucket encrypt its objects: 'managedLedgerOffloadEncryption'",
    "openTelemetryEndpoint": "let a collector read the metrics at /metrics",
    **dict.fromkeys(
        (
            "brokerMaxConnections",
            "bucketPutsInFlight",
            "bucketSnapshotBytes",
            "cursorDeltasPerState",
            "managedLedgerCacheEvictionTimeThresholdMillisMax",
            "managedLedgerCacheEvictionTimeThresholdMillisOffloaded",
            "managedLedgerCacheEvictionTriggerThresholdPercent",
            "managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis",
            "managedLedgerOffloadFineIndex",
            "maxInFlightAppendBytes",
            "maxRequestBodyBytes",
            "maxStreamsPerClient",
            "maxWaitMillis",
            "metricsCursorsMax",
            "persistentUnackedRangesWithMultipleEntriesEnabled",
        ),
        "",
    ),
}
"""Settings of earlier versions, and what replaces them. Empty: the broker uses the earlier default."""
_RETIRED_POLICY = ("cacheEvictionPolicy", "lru")
_INSTEAD = {
    "cacheEvictionByExpectedReadCount": "Set 'cacheEvictionPolicy' to 'expected-reads' instead of true, or to "
    "'slowest-reader' instead of false",
}
IGNORE = "ignore"
_BY_EXPECTED_READS = "cacheEvictionByExpectedReadCount"
_PROTECTING = frozenset(
    {
        "anonymousUserRole",
        "authenticateMetricsEndpoint",
        "authenticateOriginalAuthData",
        "authenticationEnabled",
        "authenticationProviders",
        "authorizationEnabled",
        "bookkeeperClientAuthenticationPlugin",
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        "bookkeeperTLSClientAuthentication",
        "brokerDeduplicationEnabled",
        "brokerServicePortTls",
        "encryptionRequireOnProducer",
        "managedLedgerDefaultAckQuorum",
        "managedLedgerDefaultEnsembleSize",
        "managedLedgerDefaultWriteQuorum",
        "managedLedgerOffloadTransform",
        "proxyRoles",
        "replicationTlsEnabled",
        "saslJaasServerRoleTokenSignerSecretPath",
        "strictAuthMethod",
        "superUserRoles",
        "tlsCiphers",
        "tlsEnabled",
        "tlsEnabledWithKeyStore",
        "tlsHostnameVerificationEnabled",
        "tlsKeyStore",
        "tlsProtocols",
        "tlsRequireTrustedClientCertOnConnect",
        "tlsTrustStore",
        "webServicePortTls",
        "webServiceTlsCiphers",
        "webServiceTlsProtocols",
    }
)
_REPLACED = (
    "See tlsCertificateFilePath, authenticationTokens and managedLedgerOffloadEncryption in docs/settings.md. "
    "De-duplication is an option of each ledger: ledger create NAME --deduplication."
)
_ASKS_NOTHING = ("", "0", "1", "false", "[]")
_log = logging.getLogger(__name__)


def read_settings(path: Path, declared: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the settings of a file by name, without those that have no effect. One line in the log names these.

    Raises NotFound for a missing file, and Refused for an invalid file or a setting that may not be left out.
    """
    text = _text(path)
    values = _properties(text, declared) if path.suffix == ".conf" else _toml(text, path)
    ignored = values.pop(IGNORE, [])
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        raise Refused(f"{path}: {IGNORE!r} is {ignored!r}, expected a list of names of settings")
    known = {**values, **_eviction(values, path)}
    known.pop(_BY_EXPECTED_READS, None)
    effective = without_effect(known, str(path), ignored)
    return {name: _value(value, declared.get(name)) for name, value in effective.items()}


def hint_instead(name: str) -> str:
    """Return what to do instead of a change of a setting that has no effect here. Empty for an unknown name."""
    if name in RETIRED:
        return ": ".join(filter(None, ("It has no effect any more", RETIRED[name])))
    return _INSTEAD.get(name, "It is a setting of Pulsar without effect here" if name in _pulsar_names() else "")


def without_effect(values: Mapping[str, Any], where: str, ignored: Collection[str] | None = None) -> dict[str, Any]:
    """Return the settings without those that have no effect here, and log one line about these.

    `ignored` are the names that the operator gives up. None: no setting is refused. This is for values that an earlier
    version has stored. Raises Refused for a setting that asks for a protection which this broker does not have.
    """
    idle = [name for name, value in values.items() if _is_idle(name, value)]
    if ignored is not None:
        given_up = frozenset(ignored)
        missed = [name for name in idle if name in _PROTECTING and name not in given_up and _asks(values[name])]
        if missed:
            raise Refused(
                f"{where} asks for protection that this broker does not have: {', '.join(missed)}",
                hint=f"{_REPLACED} To do without, add the names to {IGNORE!r}",
            )
    if idle:
        retired = "".join(f"; instead of {name!r}, {RETIRED[name]}" for name in idle if RETIRED.get(name))
        _log.warning("%s: no effect here, ignored: %s%s", where, ", ".join(idle), retired)
    return {name: value for name, value in values.items() if name not in idle}


@cache
def _pulsar_names() -> frozenset[str]:
    """Return the names of all settings of Pulsar's broker that have no effect here."""
    text = (files("pyspark_ledger.ledger.settings") / "pulsar_names.txt").read_text(encoding="ascii")
    return frozenset(text.split())


def _is_idle(name: str, value: object) -> bool:
    if name == "bindAddress":  # Pulsar's value is a host, such as 0.0.0.0. The value here is an address with a scheme.
        return isinstance(value, str) and bool(value) and "://" not in value
    return name in RETIRED or name in _pulsar_names() or (name, value) == _RETIRED_POLICY


def _asks(value: object) -> bool:
    return str(value).strip().lower() not in _ASKS_NOTHING


def _eviction(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings for PIP-430's switch: with true the policy of the proposal, with false its fallback."""
    wanted = values.get(_BY_EXPECTED_READS)
    if wanted is None:
        return {}
    if "cacheEvictionPolicy" in values:
        raise Refused(
            f"{path}: {_BY_EXPECTED_READS!r} and 'cacheEvictionPolicy' select the policy of the cache twice",
            hint="Remove one of them",
        )
    if str(wanted).lower() not in ("true", "false", "1", "0"):
        raise Refused(f"{path}: {_BY_EXPECTED_READS!r} is {wanted!r}, expected true or false")
    if str(wanted).lower() in ("false", "0"):
        return {"cacheEvictionPolicy": "slowest-reader"}
    recently = "managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed"
    return {"cacheEvictionPolicy": "expected-reads", recently: values.get(recently, 1)}


def _value(value: Any, setting: Setting | None) -> Any:
    """Return a switch of true or false as 1 or 0, and any other value unchanged."""
    return int(value) if setting is not None and setting.is_switch and isinstance(value, bool) else value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors of Windows write a mark first
    except FileNotFoundError:
        raise NotFound(f"there is no settings file {path}", hint="Omit the file to use the defaults") from None
    except UnicodeDecodeError as wrong:
        raise Refused(f"{path} is not UTF-8: {wrong}", hint="Save it as UTF-8") from wrong
    except OSError as wrong:
        raise Refused(f"settings file {path} cannot be read: {wrong.strerror}", hint="Name a file") from wrong


def _toml(text: str, path: Path) -> dict[str, Any]:
    import tomllib  # imported here, because a broker without a settings file does not need it

    try:
        return tomllib.loads(text)
    except JSON_FAULTS as wrong:
        hint = "If its lines are name=value, as in Pulsar's broker.conf, let its name end in .conf"
        raise Refused(f"{path} is not TOML: {json_fault(wrong)}", hint=hint) from wrong


def _properties(text: str, declared: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the settings of a `broker.conf` that have a value. Later lines override earlier ones."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        if name.startswith(("#", "!")) or not name:
            continue
        if not equals:
            raise Refused(f"line {line[:80]!r} has no '='", hint="Write name=value")
        if name == IGNORE:
            found[name] = [one.strip() for one in value.split(",") if one.strip()]
        elif value:
            found[name] = _number(value, declared.get(name))
        else:
            found.pop(name, None)
    return found


def _number(value: str, setting: Setting | None) -> Any:
    """Return the value of a line as its setting needs it. Pulsar writes a share as 0.9, not as 90 percent."""
    if setting is None or setting.is_text:
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        number = float(value)
    except ValueError:
        return value  # the setting refuses it, and names itself
    if not math.isfinite(number):
        return value
    if setting.unit == "percent" and number <= 1:
        number = round(number * 100)
    return int(number) if number == int(number) else number
