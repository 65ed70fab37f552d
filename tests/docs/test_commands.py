"""Goal: each command `ledger …` on a page is one that exists. Method: parse the line with the command's declaration.

Lines that are indented as code count. Nothing is run: `tests/connector/cli/test_help.py` runs the examples.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pyspark_ledger.connector.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
SHELL = re.compile(r"^ {4,}(?:\$ )?ledger ((?:.*\\\n)*.*)$", re.MULTILINE)
# Arguments of the reference are in capitals; each stands for a value.
GENERATED = {"cli.md"}


def lines() -> Iterator[tuple[str, str]]:
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        if page.name not in GENERATED:
            for words in SHELL.findall(page.read_text(encoding="utf-8")):
                yield page.name, words.replace("\\\n", " ")


def parsed(words: list[str]) -> Any:
    command: Any = typer.main.get_command(app)
    context = command.make_context("ledger", list(words), resilient_parsing=True)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None, f"there is no command {name}"
        if not hasattr(command, "commands"):
            return command.make_context(name, rest)
        context = command.make_context(name, rest, resilient_parsing=True)
    return context


@pytest.mark.parametrize(("page", "line"), list(lines()))
def test_a_command_of_a_page_is_accepted(page: str, line: str) -> None:
    words = shlex.split(re.sub(r"\s[<>|].*", "", line), comments=True)
    parsed(words)


def test_there_are_commands_and_a_wrong_one_is_refused() -> None:
    assert len(list(lines())) > 12
    with pytest.raises(Exception, match="no-such"):
        parsed(["list", "--no-such"])
