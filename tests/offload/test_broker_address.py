"""Goal: an address that cannot be used is refused when it is set, with what was met. Method: a real broker and S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unauthenticated
from pyspark_ledger.ledger.objects import trial
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import FetchedObject, ObjectHead
from pyspark_ledger.ledger.protocol.actions import AskSettings, ChangeSetting
from streaming_examples.s3_server import S3Server
from tests.rigs.broker_thread import store

__all__ = ["store"]
ADDRESS = "managedLedgerOffloadBucket"
SECRET = "hunter2"


def offloading(api: LedgerStore) -> dict[str, object]:
    states = api.client.ask(AskSettings()).settings
    return {state.name: state.value for state in states if "ffload" in state.name and state.changed}


@pytest.mark.broker_process
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
    api.offload_to("s3://right", region="eu-west-1", check=False)
    before = offloading(api)
    assert before == {ADDRESS: "s3://right", "managedLedgerOffloadRegion": "eu-west-1"}
    for change in (
        lambda: api.client.ask(ChangeSetting(ADDRESS, address)),
        lambda: api.offload_to(address, region="us-east-1", profile="other"),
    ):
        with pytest.raises(Refused, match=said) as refused:
            change()
        assert SECRET not in str(refused.value)
    assert offloading(api) == before
    assert SECRET not in (store / "settings.json").read_text() + (store / "broker.log").read_text()


def test_a_target_is_set_and_reset_in_one_call(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = connect(store)
    ask, asked = api.client.ask, []
    monkeypatch.setattr(api.client, "ask", lambda request: asked.append(request.call.name) or ask(request))
    api.offload_to("s3://bucket", region="eu-west-1", check=False)
    api.offload_to(store.parent / "objects")
    assert asked == ["settings.change"] * 2
    assert offloading(api) == {ADDRESS: str(store.parent / "objects")}


def test_no_call_names_a_credential_provider(store: Path) -> None:
    api = connect(store)
    with pytest.raises(Refused, match=r"Set managedLedgerOffloadCredentialProvider in a file, .*ledger serve --config"):
        api.offload_to("s3://bucket", credential_provider="os:system")
    name = "managedLedgerOffloadCredentialProvider"
    with pytest.raises(Refused, match=rf"'{name}' cannot be changed .*Set it in a file.*ledger serve --config"):
        api.client.ask(ChangeSetting(name, "os:system", {ADDRESS: "s3://b/x;id"}, trial=True))
    assert offloading(api) == {}


def test_an_address_is_tried_before_it_is_set(store: Path, s3_server: S3Server, bucket: str) -> None:
    api = connect(store)
    api.offload_to(bucket, endpoint=s3_server.endpoint)
    assert offloading(api)[ADDRESS] == bucket
    assert list(open_object_store(bucket, s3_server.options).objects()) == [], "the trial leaves nothing"


def failing(
    api: LedgerStore, kind: type[LedgerError], address: str | Path, endpoint: str = "", profile: str = ""
) -> str:
    before = offloading(api)
    options = {"endpoint": endpoint, "profile": profile} if endpoint else {}
    with pytest.raises(kind) as failed:
        api.offload_to(address, **options)
    assert offloading(api) == before
    assert "offload_to(…, check=False)" in failed.value.hint
    return failed.value.message


def test_a_failed_trial_says_what_it_met_and_changes_nothing(
    store: Path, s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "credentials"
    profiles.write_text(f"[stranger]\naws_access_key_id = stranger\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    api = connect(store)
    api.offload_to(tmp_path / "objects")
    assert f"{bucket} was tried and is not set: write failed" in failing(api, Refused, bucket, "http://127.0.0.1:9")
    wrong = failing(api, Unauthenticated, bucket, s3_server.endpoint, "stranger")
    assert "write failed" in wrong
    assert SECRET not in wrong
    (tmp_path / "file").write_text("")
    assert "Not a directory" in failing(api, Refused, tmp_path / "file" / "objects")


class ReadOnlyAfterWrite:
    """A store whose objects can be written and read, and cannot be deleted."""

    address = "s3://kept"

    def __init__(self) -> None:
        self.kept = b""

    def put(self, _: str, data: bytes) -> str:
        self.kept = data
        return ""

    def get(self, key: str, _: int) -> FetchedObject:
        return FetchedObject(self.kept, ObjectHead(key, len(self.kept), ""))

    def objects(self, _: str) -> list[str]:
        return []

    def delete(self, _: list[str]) -> None:
        raise Unauthenticated("S3 delete: 403", hint="Check the policy")


def test_a_trial_names_the_steps_that_worked_and_the_object_that_is_left() -> None:
    with pytest.raises(Unauthenticated) as failed:
        trial._try(ReadOnlyAfterWrite(), "ledger-trial-1")  # type: ignore[arg-type]
    assert failed.value.message == (
        "s3://kept was tried and is not set: write, read, list worked, delete failed: S3 delete: 403; "
        "the object ledger-trial-1 was not deleted"
    )
    assert failed.value.hint == "Check the policy. offload_to(…, check=False) sets the address without a trial"
