"""Goal: beyond this host nobody gets in without certificate and token, and who is kept out learns why, at once.

Method: a real broker with real certificates at loopback, one wrong thing at a time. Refusals at the start need no
broker: they come before anything is opened.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import flight

from pyspark_ledger.ledger.api.store import connect, offload_to
from pyspark_ledger.ledger.broker.listening import Listening
from pyspark_ledger.ledger.broker.web.address import WebAddress
from pyspark_ledger.ledger.client.client import Client, client_for
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused, Unauthenticated, Unavailable
from pyspark_ledger.ledger.protocol.actions import (
    ENTRY_SCHEMA,
    REQUESTS,
    ChangeSetting,
    CreateLedger,
    ListLedgers,
    RegisterSchema,
    StageCommand,
)
from pyspark_ledger.ledger.protocol.commits import CommitRun, OpenUpload
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings
from pyspark_ledger.ledger.transport.store_id_header import HEADER
from pyspark_ledger.ledger.transport.tokens import TaskClaims, read_pem, read_tokens, require_reference, task_token
from tests.rigs.certificates import Authority

Rig = Any
TOKEN = "3f0c9b2e71d84a65" * 2
OLD_TOKEN = "0011223344556677" * 2
# A client that is told why must not use up its deadline; generous, for a machine that does much else.
QUICK_SECONDS = 15.0


class Guarded:
    """A broker that asks for both, and what a right client shows."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        authority = Authority
        self.ours, self.other = authority(directory / "ours", "ours"), authority(directory / "other", "other")
        certificate, key = self.ours.sign("broker")
        tokens = directory / "tokens"
        tokens.write_text(f"{OLD_TOKEN}\n{TOKEN}\n")
        tokens.chmod(0o600)
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.rig = rig
        self.settings = Settings(
            tlsCertificateFilePath=str(certificate),
            tlsKeyFilePath=str(key),
            tlsTrustCertsFilePath=str(self.ours.ca),
            authenticationTokens=f"file:{tokens}",
        )
        config = directory / "broker.toml"
        texts = {name: value for name, value in asdict(self.settings).items() if isinstance(value, str)}
        config.write_text("".join(f'{name} = "{value}"\n' for name, value in texts.items() if value))
        rig.start("--create", "--config", str(config), "--address", "grpc+tls://0.0.0.0:0")
        self.port = int(rig.record().remote.rpartition(":")[2])
        self.address = f"grpc+tls://localhost:{self.port}"
        self.credentials = Credentials(str(self.ours.ca), *self.signed("client"), f"file:{self.token_file}")

    def signed(self, name: str, *, days: int = 2) -> tuple[str, str]:
        certificate, key = self.ours.sign(name, days=days)
        return str(certificate), str(key)

    def refusal(self, **changed: str) -> str:
        """Return the error of a client with one wrong credential, which must not take the deadline of 60 seconds."""
        begun = time.monotonic()
        with pytest.raises(Unauthenticated) as refused:
            connect_store(self.address, credentials=replace(self.credentials, **changed), deadline_ms=60_000)
        assert time.monotonic() - begun < QUICK_SECONDS
        return str(refused.value)


@pytest.fixture(scope="module")
def guarded(shared_rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    rig = type(shared_rig)(tmp_path_factory.mktemp("guarded") / "store")
    try:
        yield Guarded(rig, tmp_path_factory.mktemp("tls"))
    finally:
        rig.close()


@pytest.mark.thorough
def test_who_shows_both_can_do_everything(
    guarded: Guarded, make_entry: Callable[..., bytes], read_log: Callable[..., list[tuple[str, bytes]]]
) -> None:
    client = connect_store(guarded.address, credentials=guarded.credentials)
    client.ask(CreateLedger("orders"))
    with client.producer("orders") as producer:
        producer.append(make_entry(b"paid")).result(30)
    assert [payload for _, payload in read_log(client, "orders", mapping=False)] == [b"paid"]
    store = connect(
        guarded.address,
        ca=guarded.credentials.ca,
        certificate=guarded.credentials.certificate,
        key=guarded.credentials.key,
        token=guarded.credentials.token,
    )
    assert [name.rpartition("/")[2] for name in store.names()] == ["orders"]


def test_a_user_of_this_host_needs_neither(guarded: Guarded) -> None:
    client = connect_store(guarded.rig.store, start=False)
    assert client.address.startswith("grpc+unix://")
    assert client.hello().store_id == guarded.rig.record().store_id
    with pytest.raises(Refused, match=r"credentials were given for the store"):
        connect_store(guarded.rig.store, start=False, credentials=guarded.credentials)


def test_a_client_without_certificate_is_told_so(guarded: Guarded) -> None:
    assert "requires a client certificate, none was given" in guarded.refusal(certificate="", key="")


def test_a_client_with_another_authority_is_told_so(guarded: Guarded) -> None:
    said = guarded.refusal(ca=str(guarded.other.ca))
    assert guarded.address in said
    assert "does not trust the certificate of the broker" in said


def test_a_certificate_of_another_authority_is_refused(guarded: Guarded) -> None:
    certificate, key = guarded.other.sign("stranger")
    said = guarded.refusal(certificate=str(certificate), key=str(key))
    assert f"refuses the certificate {certificate}" in said
    assert "expired" not in said


def test_an_expired_certificate_is_called_expired(guarded: Guarded) -> None:
    certificate, key = guarded.signed("late", days=-1)
    assert "expired" in guarded.refusal(certificate=certificate, key=key)


def test_a_missing_and_a_wrong_token_are_told_apart(guarded: Guarded, tmp_path: Path) -> None:
    assert "had no token" in guarded.refusal(token="")
    wrong = tmp_path / "wrong"
    wrong.write_text("f" * 32)
    said = guarded.refusal(token=f"file:{wrong}")
    assert "a token that this broker does not accept" in said
    assert "f" * 32 not in said


def test_every_kind_of_call_asks_for_the_token(guarded: Guarded, tmp_path: Path) -> None:
    """Not only the first: a client that greeted rightly and lost its token gets nothing more."""
    token = tmp_path / "token"
    token.write_text(OLD_TOKEN)
    client = connect_store(guarded.address, credentials=replace(guarded.credentials, token=f"file:{token}"))
    client.ask(CreateLedger("tokens", exist_ok=True))
    token.write_text("f" * 32)
    connection, options = client.connection(), client.options(10)
    command = flight.FlightDescriptor.for_command(msgspec.json.encode(StageCommand("q", 1)))
    tries: list[Callable[[], Any]] = [
        lambda: list(connection.do_action(flight.Action("list", b""), options)),
        lambda: list(connection.do_action(flight.Action("no such action", b"nonsense"), options)),
        lambda: connection.do_get(flight.Ticket(b"nonsense"), options).read_all(),
        lambda: connection.do_put(command, ENTRY_SCHEMA, options)[1].read(),  # noqa: PLW0108 — the call itself may raise
        lambda: list(connection.list_actions(options)),
        lambda: list(connection.list_flights(options=options)),
        lambda: connection.get_flight_info(command, options),
        lambda: connection.do_exchange(command, options)[1].read_chunk(),  # noqa: PLW0108 — the call itself may raise
    ]
    for attempt in tries:
        with pytest.raises((flight.FlightError, NotImplementedError)) as refused:
            attempt()
        assert "f" * 32 not in str(refused.value)
    for attempt in tries[:4]:
        with pytest.raises(flight.FlightError, match="LEDGER_UNAUTHENTICATED"):
            attempt()
    token.write_text(TOKEN)
    assert client.ask(ListLedgers()).names, "a token that was replaced counts at the next call"


def test_every_action_refuses_every_wrong_token(guarded: Guarded) -> None:
    client = connect_store(guarded.address, credentials=guarded.credentials)
    name = client.ask(CreateLedger("walked", exist_ok=True)).name
    later = system_clock_ms() + 60_000
    forged = task_token("f" * 32, TaskClaims("read", [], later))
    expired = task_token(TOKEN, TaskClaims("read", [], system_clock_ms() - 1000))
    abroad = task_token(TOKEN, TaskClaims("read", [], later, store_id="another"))
    tokens = {"none": None, "wrong": "f" * 32, "forged": forged, "expired": expired, "of another store": abroad}
    bare = client.connection()

    def refusal(action: str, token: str | None, body: bytes = b"{}", store_id: bytes = b"") -> str:
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        headers += [(HEADER.encode(), store_id)] if store_id else []
        with pytest.raises(flight.FlightError) as refused:
            list(bare.do_action(flight.Action(action, body), flight.FlightCallOptions(headers=headers, timeout=30)))
        return str(refused.value)

    for action in REQUESTS:
        for kind, token in tokens.items():
            assert "LEDGER_UNAUTHENTICATED" in refusal(action, token), (action, kind)
        assert "this broker serves store" in refusal(action, TOKEN, store_id=b"another"), action
        assert "LEDGER_REFUSED" in refusal(action, TOKEN, b"["), "the bearer token passes, the body does not"
    right = task_token(TOKEN, TaskClaims("write", [name], later))
    for action, request in {
        "stage.upload": OpenUpload("q", 1, "public/default/persistent/other", 0),
        "create": CreateLedger("wide", partitions=1000),
        "run.commit": CommitRun(name, "q", 0, 1, 1, []),
        "schema.register": RegisterSchema("public/default/persistent/other", b""),
        "settings.change": ChangeSetting("metricsLedgersMax", 5),
    }.items():
        assert "a task token allows to write" in refusal(action, right, msgspec.json.encode(request))


def test_from_another_address_no_setting_leads_elsewhere(guarded: Guarded, tmp_path: Path) -> None:
    """An administrator changes limits. The bucket and the identity of the broker belong to its own user."""
    client = connect_store(guarded.address, credentials=guarded.credentials)
    client.ask(ChangeSetting("metricsLedgersMax", 59_000))
    private = connect_store(guarded.rig.store)
    for name, setting in SETTINGS.items():
        if setting.by == "administrator":
            continue
        kind = Unauthenticated if setting.by == "owner" else Refused
        with pytest.raises(kind, match=name):
            client.ask(ChangeSetting(name, "1" if setting.is_text else 1))
    with pytest.raises(Unauthenticated, match="managedLedgerOffload"):
        offload_to(client, tmp_path / "objects")
    offload_to(private, tmp_path / "objects")
    offload_to(private, "")


def test_a_unix_socket_that_others_may_write_is_not_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    for mode, expected in ((0o755, True), (0o700, True), (0o770, False), (0o777, False)):
        path.chmod(mode)
        assert Listening.of(f"grpc+unix://{path}", Settings()).admits_only_owner() is expected
    assert not Listening("grpc://127.0.0.1:0").admits_only_owner()


def test_a_token_is_nowhere_to_be_seen(guarded: Guarded) -> None:
    client = client_for(guarded.address, guarded.rig.record().store_id, guarded.credentials)
    copy = pickle.loads(pickle.dumps(client))  # noqa: S301
    assert copy.credentials == guarded.credentials
    copy.ask(ListLedgers())
    listening = Listening.of("grpc+tls://127.0.0.1:0", guarded.settings)
    shown = [repr(client), repr(guarded.credentials), repr(listening), pickle.dumps(client), guarded.rig.log()]
    with pytest.raises(TypeError):
        pickle.dumps(listening)
    for text in shown:
        assert TOKEN not in str(text)
        assert OLD_TOKEN not in str(text)
    assert listening.tokens == [OLD_TOKEN, TOKEN]


def test_without_encryption_a_client_sends_no_token(guarded: Guarded) -> None:
    with pytest.raises(Refused, match="unencrypted to another host"):
        Client("grpc://10.0.0.1:6650", credentials=Credentials(token="env:LEDGER_TOKEN"))
    with pytest.raises(Refused, match="has no TLS"):
        Client("grpc://10.0.0.1:6650", credentials=Credentials(ca="/ca.pem"))
    with pytest.raises(Refused, match="without its key"):
        Credentials(certificate="/me.pem")
    with pytest.raises(NotFound, match=r"/nowhere\.pem"):
        connect_store(guarded.address, credentials=replace(guarded.credentials, ca="/nowhere.pem"))


@pytest.mark.parametrize(
    ("pasted", "said"),
    [
        (TOKEN, "no reference"),
        (f"token:{TOKEN}", "no reference"),
        (f"file:{TOKEN}x", "expected an absolute path"),
        (f"env:{TOKEN}.{TOKEN}", "no valid name of an environment variable"),
        ("", "no reference"),
    ],
)
def test_a_pasted_token_is_not_repeated(pasted: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        require_reference(pasted, "it")
    assert TOKEN not in str(refused.value)


def test_tokens_are_read_or_refused_with_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"\n {TOKEN} \n")
    file.chmod(0o600)
    assert read_tokens(f"file:{file}", private=True) == read_tokens(f"file://{file}") == [TOKEN]
    monkeypatch.setenv("LEDGER_TEST_TOKEN", TOKEN)
    assert read_tokens("env:LEDGER_TEST_TOKEN") == [TOKEN]
    for mode in (0o644, 0o640, 0o440, 0o604, 0o620):
        file.chmod(mode)
        with pytest.raises(Refused, match=f"mode {mode:o}, expected 600. .*chmod 600"):
            read_tokens(f"file:{file}", private=True)
    for text, said in (
        ("", "has 0 tokens"),
        ("short", "1 of them with fewer than 16"),
        ("ä" * 20, "not printable ASCII"),
    ):
        file.write_text(text)
        with pytest.raises(Refused, match=said):
            read_tokens(f"file:{file}")
    with pytest.raises(NotFound, match="LEDGER_NO_TOKEN"):
        read_tokens("env:LEDGER_NO_TOKEN")
    with pytest.raises(NotFound, match="nowhere"):
        read_tokens("file:/nowhere")


@pytest.mark.parametrize(
    "left_out", ["tlsCertificateFilePath", "tlsKeyFilePath", "tlsTrustCertsFilePath", "authenticationTokens"]
)
def test_beyond_loopback_nothing_may_be_left_out(guarded: Guarded, left_out: str) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "broker.example", "[::]"):
        with pytest.raises(Refused, match=f"where other hosts reach it, without {left_out}"):
            Listening.of(f"grpc+tls://{host}:6651", replace(guarded.settings, **{left_out: ""}))
        with pytest.raises(Refused, match="without TLS"):
            Listening.of(f"grpc://{host}:6650", guarded.settings)


@pytest.mark.parametrize(
    "address",
    [
        *("grpc://", "http://127.0.0.1:1", "grpc://127.0.0.1", "grpc://127.0.0.1:x", "127.0.0.1:1", "grpc://:1/x"),
        *("grpc+unix://", "grpc+unix://broker.sock", "grpc+unix:///", "grpc+unix:///" + 107 * "x"),
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Refused, match="the broker cannot listen at"):
        Listening.of(address, Settings())


def test_files_that_do_not_fit_are_refused_at_the_start(guarded: Guarded, tmp_path: Path) -> None:
    address = "grpc+tls://127.0.0.1:0"
    _, other_key = guarded.other.sign("other-broker")

    def refused(**changed: str) -> str:
        with pytest.raises(LedgerError) as error:
            Listening.of(address, replace(guarded.settings, **changed))
        return str(error.value)

    assert str(other_key) in refused(tlsKeyFilePath=str(other_key))
    assert "/nowhere.key" in refused(tlsKeyFilePath="/nowhere.key")
    assert "set both to the paths of files" in refused(tlsKeyFilePath="").lower()
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    assert str(nonsense) in refused(tlsTrustCertsFilePath=str(nonsense))
    open_key = tmp_path / "open.key"
    open_key.write_bytes(Path(guarded.settings.tlsKeyFilePath).read_bytes())
    for mode in (0o644, 0o640):
        open_key.chmod(mode)
        assert f"mode {mode:o}, expected 600" in refused(tlsKeyFilePath=str(open_key))
        with pytest.raises(Refused, match=f"mode {mode:o}, expected 600"):
            WebAddress.of("https://127.0.0.1:0", replace(guarded.settings, tlsKeyFilePath=str(open_key)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of root")
def test_a_group_may_read_secrets_of_root_as_kubernetes_mounts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"key")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for mode in (0o600, 0o440, 0o640):
        file.chmod(mode)
        assert read_pem(str(file), private=True) == b"key"
    file.chmod(0o444)
    with pytest.raises(Refused, match="mode 444"):
        read_pem(str(file), private=True)
    os.chown(file, 1001, -1)
    file.chmod(0o440)
    with pytest.raises(Refused, match="mode 440"):
        read_pem(str(file), private=True)


def test_an_address_that_is_taken_is_refused(guarded: Guarded, rig: Rig) -> None:
    """gRPC would share it, and every second call would go to the wrong store."""
    with pytest.raises(Refused, match="Address already in use"):
        Listening.of(f"grpc://127.0.0.1:{guarded.port}", Settings())
    broker = rig.spawn("--create", "--address", f"grpc://127.0.0.1:{guarded.port}")
    assert broker.wait(30) == 2
    assert not os.path.exists(rig.store), "a refusal changes nothing"  # noqa: PTH110


@pytest.mark.thorough
def test_nobody_at_an_address_is_known_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=r"grpc://127\.0\.0\.1:1: .*[Rr]efused"):
        connect_store("grpc://127.0.0.1:1")
    assert time.monotonic() - begun < QUICK_SECONDS
