"""Goal: commands on copied stores ask first, and their errors name commands that exist. Method: typer's runner."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import typer

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.ownership import OwnerChange
from tests.rigs.command import run


def serve_context(*words: str) -> typer.Context:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]  # a group
    made: typer.Context = command.make_context("serve", list(words))
    return made


def test_the_error_of_a_copy_names_three_commands_that_exist(store: Path) -> None:
    run("create", "orders", "--store", str(store))
    copy = store.parent / "copy"
    shutil.copytree(store, copy)
    said = run("delete", "orders", "--yes", "--store", str(copy), status=1)
    commands = [shlex.split(command) for command in re.findall(r"`(ledger serve [^`]*)`", said)]
    found = [serve_context(*words[2:]).params for words in commands]
    assert [params["take_over"] for params in found] == list(OwnerChange)
    assert {params["store"] for params in found} == {str(copy)}
    assert "orders" in run("list", "--store", str(store))
    assert "no broker runs for" in run("stop", "--store", str(copy))


def test_take_over_without_a_word_names_the_three_words() -> None:
    for words in (["--take-over", "--store", "here"], ["--store", "here", "--take-over"]):
        said = run("serve", *words, status=2)
        assert all(f"'{word}'" in said for word in OwnerChange)


def test_adopt_asks_before_it_owns_the_objects(store: Path) -> None:
    connect(store).offload_to(store.parent / "bucket")
    run("create", "orders", "--store", str(store))
    asked = run("offload", "orders", "--adopt", "--store", str(store), status=1, stdin="n\n")
    assert "The original of this store must not be used any more" in asked
    assert "nothing is in object storage" in run("offload", "orders", "--adopt", "--yes", "--store", str(store))
    assert "exclude each other" in run("offload", "orders", "--adopt", "--sweep", "--store", str(store), status=1)
