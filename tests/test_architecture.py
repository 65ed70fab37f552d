"""Goal: a test enforces the shape of the code. Method: parse every source file and measure it.

`make check` enforces import directions with import-linter. This file checks what a linter does not measure: sizes,
docstrings, names of files and the absence of pandas. Generated `*_pb2` modules are left out.
"""

from __future__ import annotations

import ast
import re
import warnings
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ledger", "connector", "offload", "streaming_examples", "benchmarks", "tests", "tools")
FILE_LINES_WARN, FILE_LINES_MAX = 400, 600
FUNCTION_LINES_WARN, FUNCTION_LINES_MAX = 50, 80
# One noun a folder; ledger/log is the core.
FOLDER_FILES_MAX = {"ledger/client": 14}
FILES_MAX = 13  # with __init__
TEST_NAME_MAX = 70
ARCHITECTURE_LINES_MAX = 250
# A name that says nothing collects everything.
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "base", "impl", "misc", "types"}
LIBRARY = ("ledger", "connector", "offload", "pyspark_ledger")


def sources() -> list[Path]:
    """Every source file of ours, generated ones left out."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found.append(ROOT / "pyspark_ledger" / "__init__.py")  # the folders in it are links to those above
    return sorted(path for path in found if not path.name.endswith("_pb2.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def documented(path: Path) -> bool:
    """Whether the module says what it is; a notebook does so in its text cells."""
    source = path.read_text(encoding="utf-8")
    if source.startswith("# Databricks notebook source\n"):
        return "# MAGIC %md\n# MAGIC # " in source
    return ast.get_docstring(tree(path)) is not None


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and length of every function: code lines, without its docstring."""
    lengths = []
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                docstring = node.body[0]
                length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            lengths.append((node.name, length))
    return lengths


def long_test_names(path: Path) -> list[str]:
    return [name for name, _ in functions(path) if name.startswith("test_") and len(name) > TEST_NAME_MAX]


def swallowed(path: Path) -> list[int]:
    """Lines of handlers that catch everything and do nothing."""
    return [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"})
        and all(isinstance(statement, ast.Pass) for statement in node.body)
    ]


def lines_of(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def test_each_file_says_what_it_is_and_is_named_for_its_noun() -> None:
    assert [name_of(path) for path in sources() if not documented(path)] == [], "say what it is, and its rules"
    unnamed = [name_of(path) for path in sources() if path.stem.strip("_") in BANNED_NAMES]
    assert unnamed == [], "name it for the noun that it holds"


def test_files_and_functions_are_of_readable_size() -> None:
    files = {name_of(path): lines_of(path) for path in sources()}
    found = {f"{name_of(path)}: {name}()": length for path in sources() for name, length in functions(path)}
    assert {name: lines for name, lines in files.items() if lines > FILE_LINES_MAX} == {}, "split it"
    assert {name: lines for name, lines in found.items() if lines > FUNCTION_LINES_MAX} == {}, "split it"
    large = {name: lines for name, lines in files.items() if lines > FILE_LINES_WARN}
    large |= {name: lines for name, lines in found.items() if lines > FUNCTION_LINES_WARN}
    warnings.warn(f"aim for {FILE_LINES_WARN} lines a file, {FUNCTION_LINES_WARN} a function: {large}", stacklevel=1)


def test_pandas_is_nowhere() -> None:
    pandas = re.compile(r"^\s*(?:import|from)\s+pandas\b", re.MULTILINE)
    found = [name_of(path) for path in sources() if pandas.search(path.read_text(encoding="utf-8"))]
    assert found == [], "pandas is no dependency: use pyarrow or numpy"


def test_swallowed_exceptions_are_nowhere_in_the_library() -> None:
    library = [path for path in sources() if name_of(path).startswith(LIBRARY)]
    assert {name_of(path): lines for path in library if (lines := swallowed(path))} == {}


def folders() -> list[Path]:
    """Every package of the library, generated code left out."""
    found = {path.parent for path in sources() if name_of(path).split("/")[0] in LIBRARY}
    return sorted(found - {ROOT / "ledger" / "proto", ROOT / "pyspark_ledger"})


@pytest.mark.parametrize("folder", folders(), ids=name_of)
def test_a_folder_is_small_and_says_what_lives_there(folder: Path) -> None:
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    most = FOLDER_FILES_MAX.get(name_of(folder), FILES_MAX)
    assert len(files) <= most, f"{name_of(folder)} has {len(files)} files, at most {most}: find the noun that moves out"
    assert documented(folder / "__init__.py"), f"{name_of(folder)}/__init__.py: say in three lines what lives here"


def test_rooms_of_the_same_kind_have_the_same_file_names() -> None:
    rooms = [ROOT / "connector" / "read" / room for room in ("ledger", "bucket", "table")]
    missing = [room / name for room in rooms for name in ("scan.py", "stream.py", "task.py")]
    assert [name_of(path) for path in missing if not path.exists()] == []


def test_folders_of_tests_mirror_the_packages() -> None:
    tests = ROOT / "tests"
    found = {path.parent.relative_to(tests) for package in LIBRARY for path in (tests / package).rglob("test_*.py")}
    assert [str(folder) for folder in sorted(found) if not (ROOT / folder / "__init__.py").exists()] == []
    schemas = [path.stem for path in (ROOT / "ledger/message/schema").glob("*.py") if path.stem != "__init__"]
    assert [name for name in schemas if not (tests / f"ledger/message/schema/test_{name}.py").exists()] == []


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= ARCHITECTURE_LINES_MAX


def test_no_public_class_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = {}
    for path in sources():
        if name_of(path).split("/")[0] in LIBRARY:
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_names_of_tests_are_short() -> None:
    tests = [path for path in sources() if path.is_relative_to(ROOT / "tests")]
    found = {name_of(path): long_test_names(path) for path in tests if "fixtures" not in path.parts}
    assert {path: names for path, names in found.items() if names} == {}, f"at most {TEST_NAME_MAX} characters"


def test_the_checks_here_would_fail(tmp_path: Path) -> None:
    """A rule that cannot fail is none: each is shown a file that breaks it."""

    def bad(name: str, text: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return path

    long = bad("long", "def long():\n" + "    x = 1\n" * 90)
    assert not documented(long)
    assert functions(long) == [("long", 91)]
    assert swallowed(bad("silent", "try:\n    x = 1\nexcept Exception:\n    pass\n")) == [3]
    names = ["test_" + "x" * 65, "test_" + "x" * 66]
    assert long_test_names(bad("names", "".join(f"def {name}(): ...\n" for name in names))) == names[1:]
