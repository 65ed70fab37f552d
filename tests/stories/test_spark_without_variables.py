"""Goal: Spark needs no variable LEDGER_* and AWS_*, no shipped file, and shows no secret.

Method: a program whose JVM starts behind a launcher without these variables. The program's own process has wrong ones.
The store is in a bucket of a real S3 server. Its broker has an address, and tasks of another run directory use it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.client.connect import serve_store, stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.conftest import ROOT
from tests.ledger.message.test_fixtures_pulsar import ENCRYPTED_KNOWN
from tests.ledger.message.test_fixtures_pulsar import ROOT as TOPICS
from tests.rigs.bare_app import ROWS
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.leaks import found_in
from tests.stories.conftest import SPARKS_LIMIT

# The program may run twice, on a machine that does much else.
pytestmark = [pytest.mark.sessions, pytest.mark.spark, pytest.mark.timeout(1200)]
MARK = "decoyledger"
"""Part of the names of ledgers. It is no secret, and each place that is searched for secrets must show it."""
PLACES = ("plans.txt", "events", "checkpoints", "progress.json", "errors.txt", "doctor.txt")


class Ran:
    """The program that has run, and the secrets that it used."""

    def __init__(self, folder: Path, secrets: dict[str, str], found: dict[str, Any]) -> None:
        self.folder, self.secrets, self.found = folder, secrets, found


@pytest.fixture(scope="module")
def ran(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder, bucket = tmp_path_factory.mktemp("bare"), f"s3://tests/bare-{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        be_client(s3_server, folder / "cache", patch)
        create_store(bucket)
        config = folder / "broker.toml"
        config.write_text("stagedPartPromotionMinBytes = 4096\n", encoding="utf-8")
        directory = bucket_directory(bucket)
        serve_store(directory, ["--config", str(config), "--address", "grpc+tls://localhost:0"])
        try:
            # Spark waits ten seconds for a Python process, and no setting changes this: see the conftest.
            for mark in (MARK, f"{MARK}again"):
                place = tmp_path_factory.mktemp("program")
                found = run_program(place, bucket, directory, s3_server, mark)
                if found is not None:
                    break
            assert found is not None, (place / "console.txt").read_text(encoding="utf-8")[-4000:]
            yield found
        finally:
            stop_broker(directory)


def make_secrets(secret: Path, directory: Path) -> dict[str, str]:
    """Write the files with the secrets, right and wrong ones. Return the secrets."""
    secret.mkdir(mode=0o700)
    keys = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {{}}\n"
    (secret / "aws").write_text(keys.format(SECRET_KEY))
    (secret / "wrong-aws").write_text(keys.format("another-secret-of-this-test"))
    for name in ("token", "ca.pem"):
        shutil.copy(next((directory / "tls").glob(f"*-{name}")), secret / name)
    (secret / "wrong-token").write_text("another-token-of-this-test")
    for name in ("fxkey.pem", "eckey.pem"):
        shutil.copy(TOPICS / ENCRYPTED_KNOWN / name, secret / name)
    pem = (secret / "fxkey.pem").read_text().splitlines()
    return {"token": (secret / "token").read_text().strip(), "S3 key": SECRET_KEY, "private key": pem[1]}


def given_to(secret: Path, bucket: str, address: str, server: S3Server) -> dict[str, Any]:
    """Return the parameters of the program: the stores, and reads that fail."""
    access = {"offloadEndpoint": server.endpoint, "credentialProvider": f"file:{secret / 'aws'}"}
    tls = {"tlsTrustCertsFilePath": str(secret / "ca.pem"), "authParams": f"file:{secret / 'token'}"}
    missing = {"store": address, **tls, "path": f"{MARK}-missing"}
    topic = {"offload": str(TOPICS / ENCRYPTED_KNOWN / "objects"), "path": f"public/fx/{ENCRYPTED_KNOWN}"}
    keys = {name: f"file:{secret / name}.pem" for name in ("fxkey", "eckey")}
    other_keys = {**access, "credentialProvider": f"file:{secret / 'wrong-aws'}"}
    return {
        "stores": {"bucket": {"store": bucket, **access}, "address": {"store": address, **tls, **access}},
        "encrypted": {**topic, "cryptoKeys": json.dumps(keys)},
        "wrong": {
            "missing ledger": missing,
            "wrong token": {**missing, "authParams": f"file:{secret / 'wrong-token'}"},
            "pasted token": {**missing, "authParams": (secret / "token").read_text()},
            "wrong keys": {"offload": bucket, **other_keys, "path": f"{MARK}-missing"},
            "pasted key": {**topic, "cryptoKeys": (secret / "fxkey.pem").read_text()},
            "wrong key": {**topic, "cryptoKeys": keys["eckey"]},
        },
    }


def environment_of(folder: Path) -> dict[str, str]:
    """Return an environment with wrong variables, a home and a run directory of its own, and the launcher."""
    command = [str(ROOT / "tools/bare_java.sh"), str(folder / "java")]
    java = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    for name in ("home", "run"):
        (folder / name).mkdir(mode=0o700)
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith(("LEDGER_", "AWS_"))},
        "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "LEDGER_STORE": str(folder / "wrong"),
        "JAVA_HOME": java, "HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip


def run_program(folder: Path, bucket: str, directory: Path, server: S3Server, mark: str) -> Ran | None:
    """Run the program, and `ledger doctor`. Return None if a Python process of Spark started too late."""
    record = BrokerRecord.read(directory)
    assert record is not None
    secret = folder / "secret"
    secrets = make_secrets(secret, directory)
    given = {"mark": mark, **given_to(secret, bucket, record.remote, server)}
    (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
    environment = environment_of(folder)

    def run(output: str, command: list[str], **more: str) -> int:
        done = subprocess.run(
            command,
            cwd=folder, env={**environment, **more}, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        (folder / output).write_text(done.stdout + done.stderr, encoding="utf-8")
        return done.returncode

    status = run("console.txt", [sys.executable, "-m", "tests.rigs.bare_app", str(folder)])
    console = (folder / "console.txt").read_text(encoding="utf-8")
    if status != 0 and SPARKS_LIMIT in console:
        return None
    assert status == 0, console[-4000:]
    run(
        "doctor.txt",
        [str(Path(sys.executable).parent / "ledger"), "doctor", "--store", record.remote],
        LEDGER_TLS_TRUST_CERTS_FILE_PATH=str(secret / "ca.pem"),
        LEDGER_AUTH_PARAMS=f"file:{secret / 'token'}",
        JAVA_HOME=f"/nowhere/{MARK}",
    )
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return Ran(folder, secrets, found)


def test_the_launcher_strips_the_variables_of_spark(ran: Ran) -> None:
    found = ran.found["environments"]
    assert found["driver"] == "AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY,LEDGER_STORE"
    assert (found["jvm"], found["planner"], found["worker"], found["conf"]) == ("", "", "", [])


@pytest.mark.parametrize("store", ["bucket", "address"])
def test_a_whole_story_needs_options_only(ran: Ran, store: str) -> None:
    found = ran.found[store]
    assert found == {
        "read": ROWS, "sold": ROWS, "in SQL": ROWS, "caught up": True, "audited": ROWS,
        "backlogs": {"billing": 0, "audit": 0},
    }  # fmt: skip


def test_tasks_read_the_bucket_themselves(ran: Ran) -> None:
    assert ran.found["without broker"] == ROWS


def test_no_place_that_a_user_sees_has_a_secret(ran: Ran) -> None:
    assert ran.found["decrypted"] > 3
    assert not list(found_in(ran.folder / "console.txt", ran.secrets))
    for place in PLACES:
        assert not list(found_in(ran.folder / place, ran.secrets)), place


@pytest.mark.parametrize("place", PLACES)
def test_the_search_reads_what_each_place_shows(ran: Ran, place: str) -> None:
    assert list(found_in(ran.folder / place, {"decoy": MARK})), ran.folder / place


def test_the_search_finds_a_secret_that_is_planted(ran: Ran, tmp_path: Path) -> None:
    for place in PLACES:
        for name, secret in ran.secrets.items():
            source = ran.folder / place
            file = next(path for path in (source.rglob("*") if source.is_dir() else [source]) if path.is_file())
            data = file.read_bytes()
            (tmp_path / "copy").write_bytes(data[: len(data) // 2] + secret.encode() + data[len(data) // 2 :])
            assert list(found_in(tmp_path / "copy", ran.secrets)) == [(name, tmp_path / "copy")], place


def test_planted_failures_are_told_by_name(ran: Ran) -> None:
    errors = ran.found["errors"]
    assert f"there is no ledger '{MARK}-missing'" in errors["missing ledger"]
    assert "had a token that this broker does not accept" in errors["wrong token"]
    assert "option 'authParams' is something else (not shown" in errors["pasted token"]
    assert "option 'cryptoKeys' is something else (not shown" in errors["pasted key"]
    assert "does not decrypt" in errors["wrong key"]
    assert "LEDGER_UNAUTHENTICATED" in errors["wrong keys"]
