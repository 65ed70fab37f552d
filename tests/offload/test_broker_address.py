"""Goal: an address that no bucket can have is refused when it is set, and shows no password. Method: a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, Empty
from tests.rigs.broker_process import store

__all__ = ["store"]
ADDRESS = "managedLedgerOffloadBucket"
SECRET = "hunter2"


def offloading(api: LedgerStore) -> dict[str, object]:
    states = api.client.call("settings", Empty()).settings
    return {state.name: state.value for state in states if "ffload" in state.name and state.changed}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (f"s3://user:{SECRET}@bucket", "contains a user or a password"),
        ("ftp://bucket", "is neither an S3 address nor a directory"),
        ("s3://B", "names the bucket 'B'"),
    ],
)
def test_a_wrong_address_changes_nothing_and_is_not_kept(store: Path, address: str, said: str) -> None:
    api = connect(store)
    api.offload_to("s3://right", region="eu-west-1")
    before = offloading(api)
    assert before == {ADDRESS: "s3://right", "managedLedgerOffloadRegion": "eu-west-1"}
    for change in (
        lambda: api.client.call("settings.change", ChangeSetting(ADDRESS, address)),
        lambda: api.offload_to(address, region="us-east-1", profile="other"),
    ):
        with pytest.raises(Refused, match=said) as refused:
            change()
        assert SECRET not in str(refused.value)
    assert offloading(api) == before
    assert SECRET not in (store / "settings.json").read_text() + (store / "broker.log").read_text()


def test_a_target_is_set_and_reset_in_one_call(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = connect(store)
    call, asked = api.client.call, []
    monkeypatch.setattr(api.client, "call", lambda action, *given: asked.append(action) or call(action, *given))
    api.offload_to("s3://bucket", region="eu-west-1")
    api.offload_to(store.parent / "objects")
    assert asked == ["settings.change"] * 2
    assert offloading(api) == {ADDRESS: str(store.parent / "objects")}
