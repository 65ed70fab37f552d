"""Goal: no call and no stored value names code. Method: every setting, every kind of change, stored values of old."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unauthenticated
from pyspark_ledger.ledger.protocol.actions import ChangeSetting
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings
from tests.rigs.broker_thread import store

__all__ = ["store"]
PROVIDER = "managedLedgerOffloadCredentialProvider"
# A text of any other kind needs a decision: who may change it, and what does another value do?
OPERATORS = {"module:function", "path", "reference"}
OWNERS = {"url", "region", "ARN", "account", "address", "name", "true or false", "AES256 or aws:kms"}
HARMLESS = {"cursorInfoCompressionType", "logFormat", "cacheEvictionPolicy", "managedLedgerDataReadPriority"}


def test_each_text_of_the_table_states_its_risk_and_belongs_to_somebody() -> None:
    texts = {name: setting for name, setting in SETTINGS.items() if setting.is_text}
    assert {name for name, setting in texts.items() if not setting.risk} == HARMLESS
    for name, setting in texts.items():
        if setting.risk:
            assert setting.unit in OPERATORS | OWNERS, name
            assert setting.by in (("operator",) if setting.unit in OPERATORS else ("operator", "owner")), name
    assert all(setting.by != "owner" for name, setting in SETTINGS.items() if name not in texts)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("owner", [True, False])
def test_a_change_asks_who_may_before_anything_changes(name: str, owner: bool) -> None:
    kept: list[object] = []
    live, setting = LiveSettings(Settings(), {}, kept.append), SETTINGS[name]
    tried: list[object] = []
    live.on_trial(tried.append)
    value = (setting.choices or ("os:system",))[0] if setting.is_text else setting.least
    request = ChangeSetting("metricsLedgersMax", 1, {name: value}, trial=True)
    if setting.by == "administrator" or (setting.by == "owner" and owner):
        live.change(request, owner=owner)
        return
    for others in (request.others, {name: None}):
        with pytest.raises(LedgerError, match=name) as refused:
            live.change(msgspec.structs.replace(request, others=others), owner=owner)
        assert isinstance(refused.value, Refused if setting.by == "operator" else Unauthenticated)
    assert (live.now, kept, tried) == (Settings(), [], [])


def test_a_stored_name_of_code_is_never_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An earlier version stored such names. The broker's file decides, or else the broker does not start."""
    (tmp_path / "settings.json").write_bytes(msgspec.json.encode({PROVIDER: "os:system", "metricsLedgersMax": 7}))
    with pytest.raises(Refused, match=rf"settings\.json: setting '{PROVIDER}' is stored here") as refused:
        LiveSettings.load(tmp_path, Settings())
    assert "os:system" not in str(refused.value)
    with caplog.at_level(logging.WARNING):
        live = LiveSettings.load(tmp_path, Settings.of({PROVIDER: "mine:keys"}))
    assert (live.now.metricsLedgersMax, live.now.managedLedgerOffloadCredentialProvider) == (7, "mine:keys")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/settings.json: ignored, because the broker's file sets them: {PROVIDER}"
    ]
    live.change(ChangeSetting("metricsLedgersMax", 8), owner=False)
    assert msgspec.json.decode((tmp_path / "settings.json").read_bytes()) == {"metricsLedgersMax": 8}


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_client_starts_no_broker_with_a_stored_name_of_code(store: Path) -> None:
    connect(store).client.ask(ChangeSetting("metricsLedgersMax", 7))
    stop_broker(store)
    ran = store.parent / "ran"
    stored = {PROVIDER: "os:system", "managedLedgerOffloadBucket": f"s3://abc/x;touch${{IFS}}{ran}"}
    (store / "settings.json").write_bytes(msgspec.json.encode(stored))
    with pytest.raises(LedgerError, match=f"{PROVIDER}.*ledger serve --config FILE"):
        connect(store)
    assert not ran.exists()
    (store / "settings.json").unlink()  # as the error says
    assert connect(store).names() == []
