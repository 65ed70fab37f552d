"""Goal: generated pages are those of the code, and every public name has a text. Method: generate and compare."""

from __future__ import annotations

import re

import pytest

import pyspark_ledger
from tools.reference import python_api
from tools.reference.command_line import commands
from tools.reference.pages import PAGES, ROOT

# Classes of other packages, and of Python.
FOREIGN = {
    "Any",
    "DataStreamWriter",
    "Future",
    "Iterator",
    "LazyFrame",
    "NoReturn",
    "None",
    "RecordBatch",
    "RecordBatchReader",
    "Row",
    "Schema",
    "SparkSession",
    "Table",
}


@pytest.mark.parametrize("path", PAGES)
def test_a_generated_file_is_current(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == PAGES[path](), "run make reference"


def test_every_public_name_has_a_docstring() -> None:
    names = list(python_api.public_names())
    assert [member.name for member in names if not member.text.strip()] == []
    assert set(pyspark_ledger.__all__) <= {member.name for member in names}


def test_every_class_that_a_call_returns_is_on_the_page() -> None:
    returned = {
        name
        for member in python_api.public_names()
        for name in re.findall(r"[A-Z]\w+", member.signature.rpartition(" -> ")[2])
    }
    shown = {owner.__name__ for owner in (*python_api.CLASSES, *python_api.RESULTS)}
    assert returned - FOREIGN <= shown
    assert "CursorState" in returned


def test_every_argument_and_option_of_a_command_has_a_help() -> None:
    missing = [(name, part.name) for name, command in commands() for part in command.params if not part.help]
    assert missing == []
    assert all(command.help for _, command in commands())
