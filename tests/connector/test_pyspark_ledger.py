"""Goal: importing the module never fails and costs little; wrong packages are named. Method: fresh interpreters, in
directories of a user whose own files are in the way.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyspark_ledger

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "pyspark_ledger.py"
# Calls all that the module has for a user, with as little as each needs.
USED = """
import inspect
import sys

sys.modules["pyspark"] = None
import pyspark_ledger

for name in pyspark_ledger.__all__:
    used = getattr(pyspark_ledger, name)
    if not callable(used):
        continue
    given = inspect.signature(used).parameters.values()
    needed = [one for one in given if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    try:
        used(*[None] * len(needed))
    except ImportError as wrong:
        print(name, "says:", wrong)
"""


def run(code: str, cwd: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(node: ast.AST) -> Iterator[str]:
    """What is imported by running a module: not in functions, and not for type checkers alone."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Import):
            yield from (alias.name for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            yield inner.module or "."
        elif isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING":
            yield from imported(ast.Module(inner.orelse, []))
        elif not isinstance(inner, ast.FunctionDef):
            yield from imported(inner)


def test_only_the_standard_library_and_sparks_interface_are_imported() -> None:
    names = set(imported(ast.parse(MODULE.read_text(encoding="utf-8"))))
    assert "pathlib" in names
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names} == {"pyspark.sql.datasource"}


def test_import_is_light() -> None:
    heavy = {"connector", "ledger", "offload", "pyarrow", "numpy", "pandas", "google.protobuf", "google_crc32c"}
    heavy |= {"boto3", "deltalake", "msgspec", "rich", "sortedcontainers", "typer"}
    assert run(f"import pyspark_ledger, sys; print({heavy} & set(sys.modules))", ROOT) == "set()\n"


# Each costs as much as everything of ours: what a process does not use, it does not import.
@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("connector.data_source", {"pyarrow", "numpy", "google.protobuf", "ssl", "tomllib", "boto3"}),
        ("ledger.api", {"pyarrow.compute", "pyarrow.flight", "ssl", "tomllib", "boto3"}),
        ("connector.stream_reader, connector.stream_writer", {"pyarrow.compute", "pyarrow.flight", "ssl", "boto3"}),
        ("connector.batch_reader, connector.batch_writer", {"pyarrow.compute", "pyarrow.flight", "ssl", "boto3"}),
        ("ledger.broker.main", {"pyarrow.compute", "ssl", "tomllib", "boto3", "pyspark"}),
    ],
)
def test_a_process_imports_only_what_it_uses(modules: str, heavy: set[str]) -> None:
    bare = "import sys, pyspark.sql.datasource, pyspark.sql.streaming.datasource; before = set(sys.modules)"
    before = "import sys; before = set()" if "pyspark" in heavy else bare
    assert run(f"{before}; import {modules}; print({heavy} & set(sys.modules) - before)", ROOT) == "set()\n"


def test_import_works_without_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import pyspark_ledger as p; print(p.DefaultSource.name())"
    assert run(code, ROOT) == "ledger\n"


@pytest.mark.parametrize(
    "spark", [{"sql/__init__.py": ""}, {"sql/__init__.py": "", "sql/datasource.py": "raise TypeError('broken')"}]
)
def test_import_works_with_a_spark_that_has_no_such_interface_or_a_broken_one(
    tmp_path: Path, spark: dict[str, str]
) -> None:
    for name, text in {"__init__.py": "", **spark}.items():
        place = tmp_path / "pyspark" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    code = "import pyspark, pyspark_ledger as p; print(pyspark.__file__, p.DefaultSource.name())"
    assert run(code, tmp_path) == f"{tmp_path / 'pyspark' / '__init__.py'} ledger\n"


@pytest.mark.parametrize("shadow", ["connector", "ledger", "offload"])
@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_users_own_module_is_named_with_the_package_whatever_is_used(tmp_path: Path, shadow: str, form: str) -> None:
    own = tmp_path / form.format(shadow)
    own.parent.mkdir(exist_ok=True)
    own.write_text("raise RuntimeError('of the user, and never run')\n", encoding="utf-8")
    said = f"'import {shadow}' finds {own}, pyspark-ledger needs {ROOT / shadow / '__init__.py'}; rename the first"
    lines = run(f"import sys; sys.path.append({str(ROOT)!r})\n{USED}", tmp_path).splitlines()
    names = [name for name in pyspark_ledger.__all__ if name != "__version__"]
    assert [line.split(" says: ")[0] for line in lines] == names
    assert [line for line in lines if said not in line] == []


def test_packages_that_are_not_there_are_missed_by_name(tmp_path: Path) -> None:
    shutil.copy(MODULE, tmp_path)
    # Without what is installed: this interpreter would find the packages there.
    lines = run(f"import sys; sys.path.append({str(tmp_path)!r})\n{USED}", tmp_path, "-I", "-S").splitlines()
    said = f"'import connector' finds nothing, pyspark-ledger needs {tmp_path / 'connector'}"
    assert lines
    assert [line for line in lines if said not in line] == []


def test_a_users_own_ledger_py_is_named_with_the_package(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text("x = 1\n", encoding="utf-8")
    code = f"""
import sys; sys.path.append({str(ROOT)!r})
import pyspark_ledger
try:
    pyspark_ledger.DefaultSource({{"path": "orders"}})
except ImportError as wrong:
    print(wrong)
"""
    told = run(code, tmp_path)
    assert str(tmp_path / "ledger.py") in told
    assert str(ROOT / "ledger" / "__init__.py") in told
