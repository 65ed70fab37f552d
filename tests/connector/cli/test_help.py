"""Goal: each command's help ends with an example that works; shells complete names; exit codes are those of the docs.

Method: the examples run in their order on one store. Commands that serve or start a JVM are parsed only.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import EXAMPLES, app
from pyspark_ledger.ledger.api.store import connect
from streaming_examples.s3_server import S3Server
from tests.rigs.broker_thread import store
from tests.rigs.moving_store import reserved

__all__ = ["store"]
ROOT = Path(__file__).resolve().parents[3]
# They serve, start a JVM, or read a checkpoint of Spark.
PARSED = ("serve", "publish", "doctor", "cursor show")


def commands() -> Iterator[tuple[str, typer.models.CommandInfo]]:
    groups = [("", app), *((str(group.name), group.typer_instance) for group in app.registered_groups)]
    for group, part in groups:
        assert part is not None
        for command in part.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__.replace("_", "-")
            yield f"{group} {name}".strip(), command


def test_each_command_has_an_example_of_itself() -> None:
    assert {name for name, _ in commands()} == EXAMPLES.keys()
    for name, example in EXAMPLES.items():
        assert example.startswith(f"ledger {name}")
        shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"}).output
        assert re.search(rf"Example: {re.escape(example)}\s*$", shown.strip()), shown


@pytest.mark.thorough
def test_the_examples_work_in_their_order(
    store: Path, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.make_bucket("lake")
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(store.parent)
    (store.parent / "ledger-store").symlink_to(store)
    monkeypatch.setenv("LEDGER_STORE", str(store))
    connect(store).offload_to(tmp_path / "bucket")
    (store.parent / "orders.csv").write_text("id,item\n1,tea\n2,milk\n")
    for name, example in EXAMPLES.items():
        words = [found for word in shlex.split(example)[1:] for found in _matching(word)]
        if name in PARSED:
            command = typer.main.get_command(app)
            for part in name.split():
                command = command.commands[part]  # type: ignore[attr-defined]  # a group
            command.make_context(name, words[len(name.split()) :])
            continue
        if name == "store move":
            reserved(connect(store).client.hello().store_id, words[-1])
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{example}: {done.output}"


def _matching(word: str) -> list[str]:
    """Return the files that a pattern matches, as a shell does. A word without a pattern is returned."""
    if "*" not in word:
        return [word]
    return sorted(str(path) for path in Path(word).parent.glob(Path(word).name))


@pytest.mark.thorough
def test_a_shell_completes_the_names_of_commands() -> None:
    command = [sys.executable, "-c", "from pyspark_ledger.connector.cli.app import app; app(prog_name='ledger')"]
    asked = {"_LEDGER_COMPLETE": "complete_bash", "COMP_WORDS": "ledger cursor de", "COMP_CWORD": "2"}
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == ["delete", "describe"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list"], 0),
        (["describe", "none"], 1),
        (["verify", "none"], 1),
        (["describe"], 2),
        (["no-such-command"], 2),
        (["serve", "--store", "grpc://127.0.0.1:1"], 2),
    ],
)
def test_an_exit_code_says_what_happened(
    store: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    connect(store).names()
    assert CliRunner().invoke(app, words).exit_code == code
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {code} \|", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("word", "command"),
    [("ledgers", "list"), ("cat", "read"), ("consume", "follow"), ("write", "append"), ("rm", "delete")],
)
def test_words_of_other_programs_lead_to_the_command(word: str, command: str) -> None:
    said = CliRunner().invoke(app, [word, "orders"])
    assert said.exit_code == 2
    assert re.search(rf"No such command '{word}'\. Did you mean\s+'{command}'\?", said.output)
