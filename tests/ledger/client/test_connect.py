"""Goal: a directory is enough to find or start its one broker, from many processes, and a refused start leaves nothing.
Method: real supervised brokers, killed and stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.client import connect
from pyspark_ledger.ledger.client.broker_environment import bounded_allocator
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store, serve_store, stop_broker
from pyspark_ledger.ledger.errors import NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.ownership import is_gone, process_identity
from pyspark_ledger.ledger.protocol.actions import CreateLedger, DescribeLedger, ListLedgers, StopBroker
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.deadline import wait_until
from tests.rigs.processes import serving

Rig = Any

CONNECTING = """
import sys
from pyspark_ledger.ledger.client.connect import connect_store
welcome = connect_store(sys.argv[1], create=True).hello()
print(welcome.pid, welcome.epoch)
"""

FORKED = """
import os, sys
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.actions import ListLedgers
connect_store(sys.argv[1], create=True).ask(ListLedgers())
if os.fork() == 0:
    try:
        connect_store(sys.argv[1], deadline_ms=2000)
    except Refused as refused:
        print(refused.message, flush=True)
    os._exit(0)
os.wait()
"""

SLOW_TO_CLOSE = """
import sys, time
from pyspark_ledger.offload.broker import main
from pyspark_ledger.ledger.store.store import Store
close = Store.close
Store.close = lambda store: (time.sleep(2), close(store))
sys.exit(main())
"""

SLOW_TO_RECORD = """
import sys, time
from pyspark_ledger.offload.broker import main
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
write = BrokerRecord.write
BrokerRecord.write = lambda record, store: (time.sleep(1), write(record, store))
sys.exit(main())
"""

OF_ANOTHER_VERSION = """
import sys
from pyspark_ledger.ledger.broker import server
server.PROTOCOL_VERSION += 1
from pyspark_ledger.offload.broker import main
sys.exit(main())
"""


def connecting(store: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONNECTING, str(store)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.thorough
def test_ten_processes_that_begin_at_once_start_one_broker(rig: Rig) -> None:
    answers = [process.communicate(timeout=60) for process in [connecting(rig.store) for _ in range(10)]]
    assert {out for out, _ in answers} == {f"{rig.record().pid} 1\n"}, answers
    assert len(serving(rig.store)) == 2, "one supervisor and one broker"


@pytest.mark.thorough
def test_killed_broker_returns_at_its_address_without_a_client_start(rig: Rig) -> None:
    client = connect_store(rig.store, create=True)
    supervisor, broker = rig.supervised()
    client.ask(CreateLedger("orders"))
    os.kill(broker, signal.SIGKILL)
    assert client.ask(ListLedgers()).names == ["public/default/persistent/orders"]
    again = connect_store(rig.store, start=False)
    assert (again.address, again.store_id) == (client.address, client.store_id)
    assert rig.supervised()[0] == supervisor
    assert again.hello().epoch == 2


def test_a_forked_process_is_told_that_it_cannot_connect(rig: Rig) -> None:
    command = [sys.executable, "-c", FORKED, str(rig.store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "which was connected to a broker" in done.stdout, done


@pytest.mark.thorough
def test_a_broker_of_another_version_can_be_stopped(rig: Rig) -> None:
    command = [sys.executable, "-c", OF_ANOTHER_VERSION, "--store", str(rig.store), "--create"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as broker:
        try:
            wait_until(lambda: BrokerRecord.read(rig.store) is not None, "the broker is there")
            with pytest.raises(Unsupported, match=f"has another version.*ledger stop --store {rig.store}"):
                connect_store(rig.store)
            assert stop_broker(rig.store)
            assert broker.wait(30) == 0
        finally:
            broker.kill()
    assert connect_store(rig.store).ask(ListLedgers()).names == []


@pytest.mark.thorough
def test_a_stopped_broker_has_ended(rig: Rig) -> None:
    command = [sys.executable, "-c", SLOW_TO_CLOSE, "--store", str(rig.store), "--create"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as broker:
        try:
            wait_until(lambda: BrokerRecord.read(rig.store) is not None, "the broker is there")
            process = process_identity(broker.pid)
            assert stop_broker(rig.store)
            assert is_gone(process)
            assert broker.wait(30) == 0
        finally:
            broker.kill()


@pytest.mark.thorough
def test_a_broker_that_was_too_slow_to_answer_is_still_replaced(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    private = connect_store(rig.store, create=True).hello()
    os.kill(private.pid, signal.SIGSTOP)
    monkeypatch.setattr(connect, "_PROBE_MS", 100)
    client_of, asked = connect._client_of, []

    def continues_after_one_question(*arguments: Any) -> Client:
        asked.append(arguments)
        if len(asked) == 2:
            os.kill(private.pid, signal.SIGCONT)
        return client_of(*arguments)

    monkeypatch.setattr(connect, "_client_of", continues_after_one_question)
    serve_store(rig.store, ["--address", "grpc://127.0.0.1:0"])
    record = BrokerRecord.read(rig.store)
    assert record is not None
    assert record.remote.startswith("grpc://")
    environment = Path(f"/proc/{record.pid}/environ").read_text()
    assert all(name in environment for name in bounded_allocator({})), "Arrow's memory is bounded behind a TCP port"
    with pytest.raises(Refused, match=r"a broker already serves the store .* at grpc://"):
        serve_store(rig.store, ["--address", "grpc://127.0.0.1:0"])
    assert stop_broker(rig.store)


@pytest.mark.thorough
def test_a_new_broker_is_returned_with_its_own_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    connect_store(rig.store, create=True)

    def begun(
        store: Path, _log: Path, arguments: Sequence[str], _access: S3Options, _lock: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", SLOW_TO_RECORD, "--store", str(store), *arguments])

    monkeypatch.setattr(connect, "_supervisor", begun)
    pid = serve_store(rig.store, ["--address", "grpc://127.0.0.1:0"]).hello().pid
    record = BrokerRecord.read(rig.store)
    assert record is not None
    assert (record.pid, record.remote.partition("//")[0]) == (pid, "grpc:")
    assert stop_broker(rig.store)


@pytest.mark.thorough
def test_connect_after_supervisor_is_killed_needs_a_client_that_may_start(rig: Rig) -> None:
    client = connect_store(rig.store, create=True)
    for pid in rig.supervised():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable):
        Client(client.address, client.store_id, deadline_ms=300).ask(ListLedgers())
    with pytest.raises(Unavailable, match=str(rig.store)):
        connect_store(rig.store, start=False, deadline_ms=500)
    assert client.ask(ListLedgers()).names == []
    back = connect_store(rig.store)
    assert (back.address, back.store_id, back.hello().epoch) == (client.address, client.store_id, 2)


def test_the_broker_outlives_who_started_it_and_has_none_of_its_files(rig: Rig) -> None:
    read, write = os.pipe()
    with Path(os.devnull).open() as open_file:
        process = connecting(rig.store, pass_fds=(write, open_file.fileno()))
        process.communicate(timeout=60)
    os.close(write)
    _, broker = rig.supervised()
    assert os.read(read, 1) == b"", "somebody still holds the pipe"
    os.close(read)
    assert os.getsid(broker) not in (os.getsid(0), broker)
    assert Path(f"/proc/{broker}/cwd").readlink() == Path("/")
    assert connect_store(rig.store, start=False).ask(ListLedgers()).names == []


@pytest.mark.thorough
def test_a_users_own_modules_do_not_become_the_brokers(rig: Rig, tmp_path: Path) -> None:
    """A script's directory stands first on its path, and may hold names of modules that only a broker imports."""
    for name in ("sqlite3", "argparse", "tomllib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the one you meant')\n")
    imports = "import sys, pyspark_ledger.ledger.client.connect"
    code = f"{imports}\nsys.path.insert(0, {str(tmp_path)!r})\n{CONNECTING}"
    command = [sys.executable, "-P", "-c", code, str(rig.store)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rig.supervised()


def test_a_broker_inherits_credentials_and_none_of_sparks_secrets(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "for-the-broker")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "hush")
    connect_store(rig.store, create=True)
    for pid in rig.supervised():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"AWS_SECRET_ACCESS_KEY=for-the-broker" in environment
        assert b"hush" not in environment
        assert b"for-the-broker" not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.thorough
def test_a_broker_that_cannot_run_is_given_up_and_its_starter_told_why(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "msgspec.py").write_text("raise ImportError('msgspec was built for another machine')\n")
    monkeypatch.setattr(connect, "package_paths", lambda: [str(broken), str(Path(__file__).resolve().parents[3])])
    with pytest.raises(Refused, match=r"status 3: .* and never answered a call: ImportError: msgspec was built for"):
        connect_store(rig.store, create=True)
    assert not rig.store.exists(), "a start that fails leaves nothing behind"


def test_where_there_is_no_store_nothing_is_made_unless_asked(rig: Rig) -> None:
    for start in (True, False):
        with pytest.raises((NotFound, Unavailable), match=str(rig.store)):
            connect_store(rig.store, start=start)
    assert not rig.store.exists()


def test_a_refused_start_leaves_somebody_elses_directory_as_it_was(rig: Rig) -> None:
    rig.store.mkdir()
    (rig.store / "thesis.txt").write_text("mine")
    with pytest.raises(Refused, match="neither empty nor a ledger store"):
        connect_store(rig.store, create=True)
    assert [path.name for path in rig.store.iterdir()] == ["thesis.txt"]


@pytest.mark.thorough
def test_connect_waits_for_a_broker_that_does_not_answer_and_names_it(rig: Rig) -> None:
    broker = rig.start("--create")
    rig.halt(broker.pid)

    def said(deadline_ms: int) -> str:
        with pytest.raises(Unavailable, match=f"did not answer within {deadline_ms} ms") as caught:
            connect_store(rig.store, deadline_ms=deadline_ms)
        return str(caught.value)

    # On a busy machine, the broker that is started in vain needs longer to say who owns the store.
    assert any(f"/{broker.pid}/" in said(deadline_ms) for deadline_ms in (1_500, 6_000, 24_000))
    broker.send_signal(signal.SIGCONT)
    assert connect_store(rig.store).hello().pid == broker.pid


def test_the_socket_does_not_grow_with_the_path_of_the_store(rig: Rig, tmp_path: Path) -> None:
    rig.store = tmp_path / "/".join(["a-long-name" * 4] * 5)
    assert len(str(rig.store)) > 200
    assert connect_store(rig.store, create=True).ask(ListLedgers()).names == []
    rig.supervised()


@pytest.mark.parametrize("record", [b"", b"{}", b"[1", b'{"address": 1}', b"\xff", b'{"address": "\xff"}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, record: bytes) -> None:
    (tmp_path / "broker.json").write_bytes(record)
    assert BrokerRecord.read(tmp_path) is None


def test_what_is_no_directory_and_no_address_is_refused() -> None:
    with pytest.raises(Refused, match="store 'gs://bucket/store' is neither a directory nor one of"):
        connect_store("gs://bucket/store")


@pytest.mark.thorough
def test_broker_asked_to_stop_is_not_restarted_until_it_is_needed(rig: Rig, make_entry: Callable[..., bytes]) -> None:
    client = connect_store(rig.store, create=True)
    client.ask(CreateLedger("orders"))
    with client.producer("orders") as producer:
        producer.append(make_entry(b"kept")).result(60)
    client.ask(StopBroker())
    rig.wait_until(lambda: not serving(rig.store), "supervisor and broker leave")
    assert connect_store(rig.store).ask(DescribeLedger("orders")).entries == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("file", "is a file, expected a directory"),
        ("file/store", "cannot be opened: Not a directory"),
        ("n" * 300, "cannot be opened: File name too long"),
        ("/".join(["long" * 40] * 3), "at most 448"),
    ],
)
def test_connect_refuses_a_path_that_cannot_be_a_store_before_starting(tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=said):
        connect_store(tmp_path / path, create=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_store_of_another_user_is_refused_by_name() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = Path(folder) / "store"
        store.mkdir(mode=0o700)
        os.seteuid(65534)
        try:
            for connected in (connect_store, open_read_only):
                with pytest.raises(Refused, match=rf"user 65534 cannot read the store {store}, its owner is user 0"):
                    connected(store)
        finally:
            os.seteuid(0)
