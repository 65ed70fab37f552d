"""Goal: a settings file means what it says or is refused by name. Method: real files, and the printed one compared."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings, broker_toml, settings_reference

ROOT = Path(__file__).resolve().parents[3]
CONF, REFERENCE = ROOT / "conf" / "broker.toml", ROOT / "docs" / "settings.md"
NUMBERS = [name for name, setting in SETTINGS.items() if not setting.is_text]
TEXTS = [name for name, setting in SETTINGS.items() if setting.is_text]


def load(directory: Path, text: str | bytes) -> Settings:
    path = directory / "broker.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Settings.load(path)


def test_what_is_not_named_has_its_default(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Settings()
    loaded = load(tmp_path, "brokerIdleTimeoutSeconds = 7")
    assert loaded == replace(Settings(), brokerIdleTimeoutSeconds=7)


def test_every_setting_is_in_the_table_with_a_default_in_its_range() -> None:
    assert set(SETTINGS) == {field.name for field in fields(Settings)}
    assert Settings.of({name: setting.default for name, setting in SETTINGS.items()}) == Settings()
    assert all(setting.unit and setting.reason for setting in SETTINGS.values())


def test_every_setting_has_a_user_who_would_change_it() -> None:
    assert len(SETTINGS) <= 60
    assert [name for name, setting in SETTINGS.items() if len(setting.user.split()) < 3] == []
    assert all(setting.user in settings_reference() for setting in SETTINGS.values())


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_taken_and_nothing_else(name: str) -> None:
    setting = SETTINGS[name]
    for taken in setting.choices or ["file:/x"]:
        assert getattr(Settings.of({name: taken}), name) == taken
    wrong = ["4711"] if setting.unit == "reference" or setting.choices else []
    for value in (4711, ["4711"], "4711\0", *wrong):
        with pytest.raises(Refused, match=name) as refused:
            Settings.of({name: value})
        assert "4711" not in str(refused.value), "it may be a secret"


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_range_are_taken_and_nothing_beyond(name: str) -> None:
    setting = SETTINGS[name]
    for value in (setting.least, setting.most):
        assert getattr(Settings.of({name: value}), name) == value
    for value in (setting.least - 1, setting.most + 1):
        with pytest.raises(Refused, match=f"{name}.* is {value}, expected .*{setting.least} to {setting.most}"):
            Settings.of({name: value})


@pytest.mark.parametrize("value", ["true", "1.0", '"1"', "[1]", "{a = 1}"])
def test_only_integers_are_numbers(tmp_path: Path, value: str) -> None:
    with pytest.raises(Refused, match="brokerIdleTimeoutSeconds"):
        load(tmp_path, f"brokerIdleTimeoutSeconds = {value}")


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"'ledgerBlockSizeByte'.*Did you mean 'ledgerBlockSizeBytes'"):
        load(tmp_path, "ledgerBlockSizeByte = 1")
    with pytest.raises(Refused, match=r"'zzz'.*conf/broker\.toml"):
        load(tmp_path, "[zzz]\nledgerBlockSizeBytes = 1")


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2", b"a = '\xff'"])
def test_what_is_not_toml_is_refused_with_its_path(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(Refused, match=r"broker\.toml is not (TOML|UTF-8)"):
        load(tmp_path, text)


def test_a_missing_file_is_not_silently_the_defaults(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no\.toml"):
        Settings.load(tmp_path / "no.toml")
    with pytest.raises(Refused, match=f"{tmp_path} cannot be read: Is a directory"):
        Settings.load(tmp_path)


def test_the_printed_file_and_the_reference_are_the_table() -> None:
    """If this test fails, see the head of `ledger.settings.broker`."""
    assert CONF.read_text(encoding="utf-8") == broker_toml()
    assert REFERENCE.read_text(encoding="utf-8") == settings_reference()
    lines = CONF.read_text(encoding="utf-8").splitlines()
    uncommented = "\n".join(line.removeprefix("# ") for line in lines if " = " in line)
    assert Settings.of(tomllib.loads(uncommented)) == Settings()
    assert len(tomllib.loads(uncommented)) == len(SETTINGS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("cacheEvictionByExpectedReadCount", True, "Set 'cacheEvictionPolicy' to 'expected-reads' instead of true"),
        ("brokerAdaptiveRecvByteBufAllocatorMaximumSize", 65536, "setting of Pulsar without effect here"),
        ("openTelemetryEndpoint", "http://h:4318", "no effect any more: let a collector read the metrics at /metrics"),
        ("bucketPutsInFlight", 3, "no effect any more"),
        ("managedLedgerCachesizeMB", 3, "Did you mean 'managedLedgerCacheSizeMB'"),
        (
            "managedLedgerCacheEvictionWatermark",
            0.9,
            "expected an integer from 1 to 100 percent. Use whole percents: 90",
        ),
        ("cacheEvictionPolicy", "expected-read", "expected one of cursor-distance, .*Did you mean 'expected-reads'"),
    ],
)
def test_who_comes_from_pulsar_is_told_what_to_write_instead(name: str, value: object, said: str) -> None:
    with pytest.raises(Refused, match=f"{name}.*{said}"):
        Settings.of({name: value})
