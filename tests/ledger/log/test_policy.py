"""Goal: what decides about a ledger is what was stated nearest to it; nonsense is refused by name.
Method: tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.log.policy import (
    POLICIES,
    LedgerPolicy,
    effective,
    require_names,
    require_policies,
    require_properties,
    require_rollover,
    require_settings,
)
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings

MB = 1024 * 1024
MINUTE = 60_000
RETENTION = ("retentionTimeInMinutes", "retentionSizeInMB")
MOST, LEAST = "managedLedgerMaxLedgerRolloverTimeMinutes", "managedLedgerMinLedgerRolloverTimeMinutes"


def policy(
    request: CreateLedger,
    created_by: Settings,
    later: Settings,
    ledger: dict[str, int] | None = None,
    namespace: dict[str, int] | None = None,
) -> LedgerPolicy:
    info = ManagedLedgerInfo()
    for key, value in LedgerPolicy.properties(request, created_by).items():
        info.properties.add(key=key, value=value)
    info.properties.add(key="a user's own", value="not a number")
    return LedgerPolicy.of(info, ledger or {}, namespace or {}, later)


def test_what_was_asked_for_stays_and_the_rest_follows_the_broker() -> None:
    first = Settings()
    later = replace(
        first,
        ledgerBlockSizeBytes=8 * MB,
        managedLedgerMaxEntriesPerLedger=7,
        managedLedgerMaxSizePerLedgerMbytes=9,
    )
    found = policy(CreateLedger("a"), first, later)
    assert found == LedgerPolicy(64 * MB, 7, 9 * MB, 240 * MINUTE, 0, -1, -1), "blocks never change"
    asked = CreateLedger("a", block_bytes=512, max_entries_per_ledger=3, max_size_per_ledger_bytes=4096)
    found = policy(asked, first, later)
    assert found == LedgerPolicy(512, 3, 4096, 240 * MINUTE, 0, -1, -1)


def test_the_nearest_statement_decides() -> None:
    namespace = {"managedLedgerMaxEntriesPerLedger": 20, "managedLedgerMaxSizePerLedgerMbytes": 2, LEAST: 3}
    ledger = {"managedLedgerMaxEntriesPerLedger": 10}
    asked = CreateLedger("a", max_entries_per_ledger=3, max_size_per_ledger_bytes=4096)
    plain = CreateLedger("a")
    default = Settings()
    assert policy(plain, default, default, ledger, namespace).entries_max == 10
    assert policy(plain, default, default, {}, namespace).entries_max == 20
    assert policy(plain, default, default, ledger, namespace).size_max == 2 * MB
    assert policy(plain, default, default, ledger, namespace).rollover_min_ms == 3 * MINUTE
    assert policy(asked, default, default, {}, namespace).entries_max == 3, "created with"
    assert policy(asked, default, default, ledger, namespace).entries_max == 10, "and changed since"
    assert policy(asked, default, default, {"managedLedgerMaxSizePerLedgerMbytes": 5}, {}).size_max == 5 * MB


def test_retention_is_one_statement_of_two_values() -> None:
    namespace = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 5}
    found = policy(CreateLedger("a"), Settings(), Settings(), {"retentionSizeInMB": 7}, namespace)
    assert (found.retention_ms, found.retention_bytes) == (-1, 7 * MB), "the namespace's hour is not the ledger's"
    found = policy(CreateLedger("a"), Settings(), Settings(), {}, namespace)
    assert (found.retention_ms, found.retention_bytes) == (60 * MINUTE, 5 * MB)
    assert not found.keeps_everything
    assert policy(CreateLedger("a"), Settings(), Settings()).keeps_everything


@pytest.mark.parametrize("name", POLICIES)
def test_both_ends_of_a_range_are_taken_and_nothing_beyond(name: str) -> None:
    allowed = SETTINGS[POLICIES[name]]
    rest = dict.fromkeys(RETENTION, -1) if name in RETENTION else {}
    for value in (allowed.least, allowed.most):
        require_policies({**rest, name: value}, "a ledger")
    for value in (allowed.least - 1, allowed.most + 1):
        with pytest.raises(Refused, match=f"{name}.*a ledger is {value}, expected .*{allowed.least} to {allowed.most}"):
            require_policies({**rest, name: value}, "a ledger")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(Refused, match=r"'retentionSizeMB'.*Did you mean 'retentionSizeInMB'"):
        require_policies({"retentionSizeMB": 1}, "a ledger")
    with pytest.raises(Refused, match=r"'zzz'.*The policies are retentionTimeInMinutes"):
        require_names(["zzz"], "a ledger")


@pytest.mark.parametrize(("time", "size"), [(0, 5), (5, 0), (0, -1), (-1, 0)])
def test_a_retention_of_0_in_one_value_only_is_refused(time: int, size: int) -> None:
    with pytest.raises(Refused, match=f"{time} minutes and {size} MiB"):
        require_policies({"retentionTimeInMinutes": time, "retentionSizeInMB": size}, "a ledger")
    require_policies({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, "a ledger")
    with pytest.raises(Refused, match="only one of the two limits is 0"):
        require_policies({"retentionTimeInMinutes": 0}, "a ledger")


def test_a_largest_age_below_the_smallest_is_refused() -> None:
    for most in (0, 10, 11):
        require_rollover(effective({MOST: most, LEAST: 10}, {}, Settings()), "a ledger")
    with pytest.raises(Refused, match="of 9 minutes, below its minimum of 10"):
        require_rollover(effective({MOST: 9}, {LEAST: 10}, Settings()), "a ledger")


def test_settings_of_the_broker_may_not_contradict_each_other() -> None:
    require_settings(Settings())
    require_settings(Settings.of({"defaultRetentionTimeInMinutes": 0, "defaultRetentionSizeInMB": 0}))
    with pytest.raises(Refused, match="the broker's settings is 0 minutes and -1 MiB"):
        require_settings(Settings.of({"defaultRetentionTimeInMinutes": 0}))
    with pytest.raises(Refused, match="the broker has a maximum rollover age of 5 minutes, below its minimum of 6"):
        require_settings(Settings.of({MOST: 5, LEAST: 6}))


@pytest.mark.parametrize("name", ["", "ledger.blockBytes", "ledger.trimmed"])
def test_properties_of_the_broker_are_not_the_users(name: str) -> None:
    with pytest.raises(Refused, match=r"ledger\. is reserved for the broker"):
        require_properties([name, "fine"], (), "a ledger")


@pytest.mark.parametrize(
    ("most", "least", "age", "due"),
    [
        (0, 0, 10**12, False),
        (100, 0, 99, False),
        (100, 0, 105, True),
        (100, 100, 105, True),
        (100, 105, 105, False),
        (100, 105, 106, True),
        (100, 0, -1000, False),
    ],
)
def test_age_seals_between_its_two_limits(most: int, least: int, age: int, due: bool) -> None:
    found = LedgerPolicy(512, 5, 1000, rollover_max_ms=most, rollover_min_ms=least)
    assert all(found.is_due(ledger_id, age) == due for ledger_id in range(50))


def test_ledgers_come_of_age_within_a_twentieth_and_not_all_at_once() -> None:
    found = LedgerPolicy(512, 5, 1000, rollover_max_ms=100_000)
    dues = [next(age for age in range(100_000, 105_001, 100) if found.is_due(i, age)) for i in range(200)]
    assert len(set(dues)) > 30
    assert not any(found.is_due(i, 99_999) for i in range(200))
    assert all(found.is_due(i, 105_000) for i in range(200))


def test_a_full_ledger_waits_for_its_smallest_age() -> None:
    assert LedgerPolicy(512, 5, 1000).may_roll_over(0)
    young = LedgerPolicy(512, 5, 1000, rollover_min_ms=10)
    assert [young.may_roll_over(age) for age in (-5, 0, 10, 11)] == [False, False, False, True]
