"""Goal: a file of Pulsar's broker starts a broker, and nothing that protects is left out silently.

Method: real files, read as the broker reads them, and the lines of the log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.settings import settings_file
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings

PULSAR = """
# Pulsar's own
clusterName=standalone
metadataStoreUrl=
bindAddress=0.0.0.0
brokerServicePort=6650
authenticationEnabled=false
superUserRoles=
managedLedgerDefaultAckQuorum=1
managedLedgerMaxEntriesPerLedger=1234
managedLedgerCacheEvictionWatermark=0.9
cacheEvictionByMarkDeletedPosition=true
persistentUnackedRangesWithMultipleEntriesEnabled=false
managedLedgerDefaultMarkDeleteRateLimit=1.0
managedLedgerDataReadPriority=tiered-storage-first
maxMessagePublishBufferSizeInMB=
"""


def load(directory: Path, text: str, name: str = "broker.conf") -> Settings:
    path = directory / name
    path.write_text(text)
    return Settings.load(path)


def test_a_broker_conf_of_pulsar_sets_what_both_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read = load(tmp_path, PULSAR)
    assert read == Settings.of(
        {
            "managedLedgerMaxEntriesPerLedger": 1234,
            "managedLedgerCacheEvictionWatermark": 90,
            "cacheEvictionByMarkDeletedPosition": 1,
            "managedLedgerDefaultMarkDeleteRateLimit": 1,
            "managedLedgerDataReadPriority": "tiered-storage-first",
        }
    )
    (line,) = caplog.messages
    idle = "clusterName, bindAddress, brokerServicePort, authenticationEnabled, managedLedgerDefaultAckQuorum"
    retired = "persistentUnackedRangesWithMultipleEntriesEnabled"
    assert line == f"{tmp_path}/broker.conf: no effect here, ignored: {idle}, {retired}"


def test_lines_of_pulsar_in_a_toml_file_are_read_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "brokerServicePort=6650\ncacheEvictionByMarkDeletedPosition=true\nmanagedLedgerMaxEntriesPerLedger=7"
    read = load(tmp_path, text, "broker.toml")
    assert (read.cacheEvictionByMarkDeletedPosition, read.managedLedgerMaxEntriesPerLedger) == (1, 7)
    assert caplog.messages == [f"{tmp_path}/broker.toml: no effect here, ignored: brokerServicePort"]


@pytest.mark.parametrize(
    "line",
    [
        "authenticationEnabled=true",
        "authorizationEnabled=true",
        "managedLedgerDefaultWriteQuorum=2",
        "encryptionRequireOnProducer=true",
        "brokerDeduplicationEnabled=true",
        "tlsRequireTrustedClientCertOnConnect=true",
        "superUserRoles=admin",
        "managedLedgerOffloadTransform=mine:encrypt",
    ],
)
def test_what_asks_for_protection_is_refused_or_given_up(tmp_path: Path, line: str) -> None:
    name = line.partition("=")[0]
    with pytest.raises(Refused, match=rf"broker\.conf asks for protection .*: {name}.*add the names to 'ignore'"):
        load(tmp_path, line)
    assert load(tmp_path, f"{line}\nignore={name}, other") == Settings()
    quoted = line if line.endswith(("true", "2")) else f'{name}="x"'
    with pytest.raises(Refused, match=rf"broker\.toml asks for protection .*: {name}"):
        load(tmp_path, quoted, "broker.toml")
    assert load(tmp_path, f'ignore=["{name}"]\n{quoted}', "broker.toml") == Settings()


def test_every_name_that_protects_is_one_without_effect() -> None:
    known = settings_file._pulsar_names() | settings_file.RETIRED.keys()
    assert known >= settings_file._PROTECTING
    assert known.isdisjoint(SETTINGS.keys() - {"bindAddress"})


@pytest.mark.parametrize(("name", "form"), [("broker.conf", "{}={}"), ("broker.toml", "{} = {}")])
def test_the_switch_of_pip_430_selects_a_policy(tmp_path: Path, name: str, form: str) -> None:
    switch, recently = "cacheEvictionByExpectedReadCount", "managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed"
    on = load(tmp_path, form.format(switch, "true"), name)
    assert (on.cacheEvictionPolicy, getattr(on, recently)) == ("expected-reads", 1)
    both = "\n".join([form.format(switch, "true"), form.format(recently, 0)])
    assert getattr(load(tmp_path, both, name), recently) == 0
    assert load(tmp_path, form.format(switch, "false"), name).cacheEvictionPolicy == "slowest-reader"
    policy = '"segmented"' if name.endswith("toml") else "segmented"
    with pytest.raises(Refused, match=f"{switch}.* and 'cacheEvictionPolicy' select .* twice"):
        load(tmp_path, f"{form.format(switch, 'true')}\n{form.format('cacheEvictionPolicy', policy)}", name)
    wrong = '"perhaps"' if name.endswith("toml") else "perhaps"
    with pytest.raises(Refused, match=f"{switch}.* is 'perhaps', expected true or false"):
        load(tmp_path, form.format(switch, wrong), name)


@pytest.mark.parametrize("number", ["nan", "inf", "1e400", "-infinity"])
def test_a_number_that_is_not_finite_is_refused_by_its_setting(tmp_path: Path, number: str) -> None:
    with pytest.raises(Refused, match=f"'managedLedgerCacheSizeMB' is '{number}', expected an integer"):
        load(tmp_path, f"managedLedgerCacheSizeMB={number}")


@pytest.mark.parametrize("name", ["broker.conf", "broker.toml"])
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, "\ufeffmanagedLedgerCacheSizeMB=5", name).managedLedgerCacheSizeMB == 5


def test_a_line_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="line 'managedLedgerCacheSizeMB 7' has no '='"):
        load(tmp_path, "managedLedgerCacheSizeMB 7")
    with pytest.raises(Refused, match="'managedLedgerCacheSizeMB' is 'much', expected an integer"):
        load(tmp_path, "managedLedgerCacheSizeMB=much")
    with pytest.raises(Refused, match="'ignore' is 1, expected a list of names"):
        load(tmp_path, "ignore = 1", "broker.toml")


def test_a_stored_setting_of_an_earlier_version_costs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = '{"managedLedgerOffloadTransform": "m:f", "openTelemetryEndpoint": "http://h:1", '
    (tmp_path / "settings.json").write_text(stored + '"cacheEvictionPolicy": "lru", "metricsLedgersMax": 7}')
    live = LiveSettings.load(tmp_path, Settings())
    assert live.now.metricsLedgersMax == 7
    (line,) = caplog.messages
    assert "ignored: managedLedgerOffloadTransform, openTelemetryEndpoint, cacheEvictionPolicy; instead of" in line
    assert "'managedLedgerOffloadEncryption'" in line
    assert "/metrics" in line


@pytest.mark.parametrize("name", ["broker.conf", "broker.toml"])
def test_a_retired_setting_in_a_file_costs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    retired = {"maxConcurrentReaders": 7, "s3ManagedLedgerOffloadRoleSessionName": '"me"', "maxWaitMillis": 7}
    assert load(tmp_path, "\n".join(f"{one} = {value}" for one, value in retired.items()), name) == Settings()
    (line,) = caplog.messages
    assert f"ignored: {', '.join(retired)}; instead of" in line
    assert "'maxConcurrentRequests'" in line
    assert "'managedLedgerOffloadProfile'" in line
