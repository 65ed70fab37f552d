"""Goal: no other user can plant a store, or make a client read or write another file of its user.

Method: real directories, links, modes and brokers. As root, a child process of another user plays the other user.
Without root, only the modes are tested.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store, stop_broker
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.ownership import SHARED, own_token, require_trusted, run_directory
from pyspark_ledger.ledger.protocol.commits import StagingPlace
from pyspark_ledger.ledger.protocol.request import Request
from pyspark_ledger.ledger.transport.discovery import BrokerRecord, address_token_path
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.broker import BrokerRig, rig, session_run_directory
from tests.rigs.broker import run_directory as run_directory_of_test

__all__ = ["rig", "run_directory_of_test", "session_run_directory"]
NOBODY = 65534
ROWS = [{"a": 1}]


@pytest.fixture
def masked() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def run_command(error: LedgerError) -> None:
    """Run the command in an error's hint, as the user does."""
    command = re.search(r"(?:Run|happen|yours): (?:sudo )?((?:chmod|chown)[^.]*?)(?:\. |$)", str(error))
    assert command is not None, str(error)
    subprocess.run(command[1].replace("sudo ", ""), shell=True, check=True)  # noqa: S602 — as a user does


@pytest.mark.usefixtures("masked")
@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o027, 0o077])
@pytest.mark.thorough
def test_a_first_start_works_under_every_umask(tmp_path: Path, mask: int) -> None:
    os.umask(mask)
    made = tmp_path / "made"
    made.mkdir()
    for store in (made, tmp_path / "new" / "deep" / "store"):
        try:
            connect(store, create=True).ledger("orders").append(ROWS)
        finally:
            stop_broker(store)
        assert store.stat().st_mode & 0o777 == 0o700
        assert (store / "broker.log").stat().st_mode & 0o777 == 0o600
        assert not store.parent.stat().st_mode & 0o022 or store.parent == tmp_path


@pytest.mark.usefixtures("masked")
def test_a_restored_store_is_tightened_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    connect(store, create=True).ledger("orders").append(ROWS)
    stop_broker(store)
    shutil.copytree(store, copy)
    copy.chmod(0o775)
    for path in copy.iterdir():
        path.chmod(path.stat().st_mode | 0o060)
    require_trusted(copy)
    assert len(caplog.records) == 1, caplog.text
    assert not [path for path in (copy, *copy.iterdir()) if path.stat().st_mode & 0o022]


def test_a_file_that_all_users_can_write_is_refused_with_the_command(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / "metadata.sqlite").touch()
    (store / "broker.json").touch()
    (store / "broker.json").chmod(0o666)
    for door in (connect_store, open_read_only, stop_broker):
        with pytest.raises(Refused, match=re.escape(f"{store}/broker.json has owner")) as refused:
            door(store)  # type: ignore[operator]
    run_command(refused.value)
    require_trusted(store)


def test_a_hostile_parent_is_refused_with_the_command(tmp_path: Path) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    for store in (parent / "store", parent / "deep" / "store"):
        with pytest.raises(Refused, match=re.escape(f"{parent}, on the way to the store, has mode 777")) as refused:
            connect_store(store, create=True)
    assert not list(parent.iterdir())
    run_command(refused.value)
    require_trusted(parent / "store")
    parent.chmod(0o1777)
    require_trusted(parent / "store")


@pytest.mark.parametrize("name", ["broker.json", "broker.log", "broker.json.1"])
def test_a_link_in_a_store_is_refused(tmp_path: Path, name: str) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    store.mkdir(mode=0o700)
    target.write_text("mine")
    (store / name).symlink_to(target)
    with pytest.raises(Refused, match=re.escape(f"{store}/{name} is a link")):
        connect_store(store, create=True)
    assert target.read_text() == "mine"


def test_a_link_of_the_user_to_a_store_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data" / "store").mkdir(parents=True, mode=0o700)
    (tmp_path / "link").symlink_to("data/../data/store")
    require_trusted(tmp_path / "link")
    (tmp_path / "data").chmod(0o777)
    with pytest.raises(Refused, match=re.escape(f"{tmp_path / 'data'}, on the way")):
        require_trusted(tmp_path / "link")


@pytest.mark.thorough
def test_a_directory_that_is_named_as_shared_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume of Kubernetes with fsGroup: the directory and its files are writable by the group."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2777)
    store = volume / "store"
    with pytest.raises(Refused, match=f"export {SHARED}={volume}"):
        require_trusted(store)
    monkeypatch.setenv(SHARED, str(volume))
    connect(store, create=True).ledger("orders").append(ROWS)
    stop_broker(store)
    for path in (store, *store.iterdir()):
        path.chmod(path.stat().st_mode | 0o060)
        if os.geteuid() == 0:
            os.chown(path, NOBODY, -1)
    try:
        assert connect(store).ledger("orders").read().num_rows == 1
    finally:
        stop_broker(store)
    (volume / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o777)
    with pytest.raises(Refused, match="elsewhere, on the way"):  # a link leads out of the shared directory
        require_trusted(volume / "out" / "store")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_what_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    store, folder = tmp_path / "store", tmp_path / "folder"
    store.mkdir(mode=0o700)
    BrokerRecord("grpc://127.0.0.1:1", 1, 1, "id").write(store)
    os.chown(store / "broker.json", NOBODY, -1)
    with pytest.raises(Refused, match=f"broker.json has owner {NOBODY}") as refused:
        connect_store(store)
    run_command(refused.value)
    require_trusted(store)
    os.chown(store, NOBODY, -1)
    with pytest.raises(Refused, match=f"belongs to user {NOBODY}, this is user 0"):
        connect_store(store)
    folder.mkdir()
    os.chown(folder, NOBODY, -1)
    with pytest.raises(Refused, match=f"folder, on the way to the store, belongs to user {NOBODY}"):
        connect_store(folder / "store", create=True)


def test_only_a_token_of_our_run_directory_is_read(tmp_path: Path) -> None:
    token, good = run_directory() / "trial.token", "0123456789abcdef" * 4
    elsewhere = tmp_path / "trial.token"
    try:
        for path in (token, elsewhere):
            path.write_text(good)
            path.chmod(0o600)
        assert own_token(token) == good
        assert own_token(elsewhere) == ""
        assert own_token(token.parent / ".." / token.parent.name / token.name) == ""
        for text in (good[:-1], good + "0", good.upper(), good[:-1] + "\n"):
            token.write_text(text)
            assert own_token(token) == ""
        token.write_text(good)
        token.chmod(0o640)
        assert own_token(token) == ""
        token.unlink()
        token.symlink_to(elsewhere)
        assert own_token(token) == ""
    finally:
        token.unlink(missing_ok=True)


def test_a_part_is_written_only_into_an_empty_file_and_through_no_link(tmp_path: Path) -> None:
    part = f"{'0' * 32}/0/{'0' * 36}.part"
    staging, mine = tmp_path / "staging", tmp_path / "mine"
    path = staging / part
    path.parent.mkdir(parents=True)
    path.write_text("rows")
    with pytest.raises(Refused, match="is not empty"):
        PartWriter.to_file(StagingPlace(part, str(path)))
    path.unlink()
    mine.touch()
    path.symlink_to(mine)
    with pytest.raises(Refused, match="leads through a link"):
        PartWriter.to_file(StagingPlace(part, str(path)))
    path.unlink()
    disk.make_directory(mine.parent / "other" / part.rpartition("/")[0])
    (mine.parent / "other" / part).touch()
    shutil.rmtree(staging)
    staging.symlink_to(mine.parent / "other")
    with pytest.raises(Refused, match="leads through a link"):
        PartWriter.to_file(StagingPlace(part, str(path)))


def test_a_broker_cannot_name_another_file_as_part(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.start("--create")
    client = rig.client()
    ask, mine = client.ask, rig.store.parent / "mine"
    mine.touch()

    def lying(request: Request[object], **how: int) -> object:
        answer = ask(request, **how)
        return msgspec.structs.replace(answer, path=str(mine)) if isinstance(answer, StagingPlace) else answer

    monkeypatch.setattr(client, "ask", lying)
    with pytest.raises(Refused, match="is no staged part of store"):
        client.stage_part("query", 0)


@pytest.mark.thorough
def test_a_loopback_port_serves_its_own_user_only(rig: BrokerRig) -> None:
    broker = rig.start("--create", "--address", "grpc://127.0.0.1:0")
    address = rig.record().remote
    token_file = address_token_path(address)
    for name in (address, address.replace("127.0.0.1", "localhost")):
        store = connect(name)
        store.ledger("orders").append(ROWS)
    assert token_file.stat().st_mode & 0o777 == 0o600
    as_other = (
        "import os, sys\nfrom pyspark_ledger.ledger.client.connect import connect_store\n"
        f"os.environ['XDG_RUNTIME_DIR'] = sys.argv[2]\nif os.geteuid() == 0: os.setuid({NOBODY})\n"
        "try: connect_store(sys.argv[1])\nexcept Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", as_other, address, "/nowhere"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Unauthenticated" in done.stdout, done
    assert len(done.stdout.splitlines()) == 1
    assert "authenticationTokens" in done.stdout
    broker.terminate()
    assert broker.wait(60) == 0
    assert not token_file.exists()


@pytest.mark.thorough
def test_a_token_is_sent_only_while_its_broker_runs(rig: BrokerRig) -> None:
    """Another user's process can take the port of a killed broker."""
    broker = rig.start("--create", "--address", "grpc://127.0.0.1:0")
    address = rig.record().remote
    client = Client(address)
    client.hello()
    broker.kill()
    broker.wait()
    assert address_token_path(address).exists()
    assert client._token_header() == []  # the headers of the next call
    rig.start("--address", address)
    assert client.hello().store_id == client.store_id
