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
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ledger", "connector", "offload", "streaming_examples", "benchmarks", "tests", "tools")
# The noun of a file or folder decides what belongs there. The limits are so wide that nobody cuts by the ruler.
FILE_LINES_WARN, FILE_LINES_MAX = 500, 800
FUNCTION_LINES_WARN, FUNCTION_LINES_MAX = 60, 100
FILES_MAX = 20  # with __init__
TEST_NAME_MAX = 70
ARCHITECTURE_LINES_MAX = 250
# A name that says nothing collects everything.
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "base", "impl", "misc", "types"}
LIBRARY = ("ledger", "connector", "offload", "pyspark_ledger")
# Defaults that the repository does not use, with the reason for each.
KEPT_DEFAULTS = {
    "connector/display/catch_up.py: catch_up(progress)": "a user of a notebook switches the bar off",
    "connector/display/catch_up.py: catch_up(clock)": "as above; `catch_up` is public, and a clock is an argument",
}

# Names of modules in strings, in `ledger/`, with the reason for each.
KEPT_NAMES = {
    "ledger/client/connect.py: 'pyspark_ledger.offload.broker'": "the program of a new process, no import",
    "ledger/objects/credential_providers.py: import_module": "the operator names the function of the credentials",
}

INTERFACES = {"Protocol", "ABC"}
# Interfaces with one implementation in the library, with the reason for each.
KEPT_PROTOCOLS = {
    "LogWatch": "the cache of the broker, which lies above the log",
    "Replica": "the durability of a store in a bucket, which lies above the database",
    "SyncJob": "the queue of a log, which lies above the pool that syncs",
}


def sources() -> list[Path]:
    """Every source file of ours, generated ones left out."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    # The folders in pyspark_ledger are links to those above.
    found += [ROOT / "pyspark_ledger" / "__init__.py", ROOT / "pytest_pyspark_ledger.py"]
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


def named_modules(path: Path) -> set[str]:
    """The ways of a module to import by a string: calls that do so, and names of modules of the packages above."""
    found = set()
    for node in ast.walk(tree(path)):
        name = getattr(node, "id", getattr(node, "attr", getattr(node, "name", "")))
        if name in {"import_module", "__import__"}:
            found.add(name)
        if isinstance(node, ast.Constant) and re.match(r"pyspark_ledger\.(connector|offload)\b", str(node.value)):
            found.add(repr(node.value))
    return found


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
    most = FILES_MAX
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


def test_no_public_class_of_a_package_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = {}
    for path in sources():
        if name_of(path).split("/")[0] in LIBRARY:
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(f"{path.parent.name}.{node.name}", []).append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


class Calls(ast.NodeVisitor):
    """Calls of a name with their arguments, and names that are used in another way, outside annotations."""

    def __init__(self) -> None:
        self.calls: dict[str, list[ast.Call]] = {}
        self.values: set[str] = set()
        self.owner = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.owner = node.name
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        self.calls.setdefault(called, []).append(node)
        self.values |= {self.owner} if called == "cls" else set()
        inner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for child in [*inner, *node.args, *(keyword.value for keyword in node.keywords)]:
            self.visit(child)

    def visit_Name(self, node: ast.Name) -> None:
        self.values.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.values.add(node.attr)
        if not isinstance(node.value, ast.Name):  # the class in `Class.method` is not passed on
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Leave out the annotation."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in (node.args, *node.decorator_list, *node.body):
            self.visit(child)


def useless_defaults(library: list[Path], callers: list[Path]) -> set[tuple[Path, str]]:
    """The file and `function(parameter)` for each default that no call uses, and each parameter that no call passes.

    Only a function with a name of its own is judged, whose calls are all seen: nobody passes it on or unpacks into it.
    """
    seen, made = Calls(), dict[str, list[tuple[Path, ast.FunctionDef, bool]]]()
    for path in callers:
        seen.visit(tree(path))
    for path in library:
        owners = {id(one): node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef) for one in node.body}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                owner = owners.get(id(node))
                name = owner.name if owner is not None and node.name == "__init__" else node.name
                made.setdefault(name, []).append((path, node, owner is not None))
    found = set()
    for name, ((path, node, is_method), *others) in made.items():
        calls, decorators = seen.calls.get(name, []), {ast.unparse(one) for one in node.decorator_list}
        spread = any(isinstance(one, ast.Starred) for call in calls for one in call.args)
        spread = spread or any(keyword.arg is None for call in calls for keyword in call.keywords)
        if others or not calls or spread or name in seen.values or decorators - {"staticmethod", "classmethod"}:
            continue
        given = node.args.posonlyargs + node.args.args
        order = [one.arg for one in given[is_method and "staticmethod" not in decorators :]]
        optional = [one.arg for one in given[len(given) - len(node.args.defaults) :]]
        optional += [one.arg for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
        for each in optional:
            place = order.index(each) if each in order else 2**31
            passed = {place < len(call.args) or any(one.arg == each for one in call.keywords) for call in calls}
            if len(passed) == 1:
                found.add((path, f"{name}({each})"))
    return found


def test_each_default_is_used_and_each_parameter_is_passed() -> None:
    library = [path for path in sources() if name_of(path).split("/")[0] in LIBRARY]
    outside = [path for path in library if name_of(path).startswith(("ledger/api/", "pyspark_ledger/"))]
    found = useless_defaults([path for path in library if path not in outside], sources())
    assert {f"{name_of(path)}: {what}" for path, what in found} - KEPT_DEFAULTS.keys() == set(), (
        "require the parameter, or remove it"
    )


def test_no_module_of_the_ledger_imports_another_by_a_string() -> None:
    modules = [path for path in sources() if name_of(path).startswith("ledger/")]
    found = {f"{name_of(path)}: {name}" for path in modules for name in named_modules(path)}
    assert found == KEPT_NAMES.keys(), "import it, or let the layer above pass it"


class Members(NamedTuple):
    """Members of a class. A method has the number of its positional parameters, -1 for any, and an attribute has 0."""

    names: dict[str, int]
    parents: list[str]

    @classmethod
    def of(cls, node: ast.ClassDef) -> Members:
        names = dict[str, int]()
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self":
                names[one.attr] = 0
        for one in node.body:
            if isinstance(one, ast.FunctionDef):
                given = len(one.args.posonlyargs + one.args.args)
                names[one.name] = 0 if one.decorator_list else -1 if one.args.vararg else given
            elif isinstance(one, ast.AnnAssign):
                names[ast.unparse(one.target)] = 0
            elif isinstance(one, ast.Assign):
                names |= {ast.unparse(target): 0 for target in one.targets}
        return cls(names, [ast.unparse(base).partition("[")[0] for base in node.bases])


def lone_protocols(paths: list[Path]) -> set[str]:
    """The interfaces that at most one class implements: it has all members, and methods with as many parameters.

    Each class may have a constructor of its own.

    Functions implement a protocol of a call, which is not judged.
    """
    found = [
        (node.name, Members.of(node))
        for path in paths
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]
    by_name = dict(found)

    def inherited(members: Members) -> dict[str, int]:
        parents = [inherited(by_name[name]) for name in members.parents if name in by_name]
        return {name: count for names in (*parents, members.names) for name, count in names.items()}

    protocols = {name: inherited(members) for name, members in found if INTERFACES & {*members.parents}}
    classes = [inherited(members) for name, members in found if name not in protocols]

    def fits(wanted: dict[str, int], given: dict[str, int]) -> bool:
        methods = {name: count for name, count in wanted.items() if name != "__init__"}
        return all(name in given and (not count or given[name] in (-1, count)) for name, count in methods.items())

    judged = {name: wanted for name, wanted in protocols.items() if "__call__" not in wanted}
    return {name for name, wanted in judged.items() if sum(fits(wanted, given) for given in classes) < 2}


def test_a_protocol_has_more_than_one_implementation() -> None:
    library = [path for path in sources() if name_of(path).split("/")[0] in LIBRARY]
    assert lone_protocols(library) == KEPT_PROTOCOLS.keys(), "take the class instead of the protocol"


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
    for text in ("importlib.import_module(name)", "from importlib import import_module as load", "__import__(name)"):
        assert named_modules(bad(f"by_string_{len(text)}", text)), text
    assert named_modules(bad("upwards", '_MAKE = "pyspark_ledger.offload.offloader:made"'))
    protocol = "class Door(Protocol):\n    def open(self, key): ...\n"
    doors = "class {}:\n    def open(self, {}): ...\n"
    assert lone_protocols([bad("abstract", f"{protocol}class Oak(Door): ...\n".replace("Protocol", "ABC"))]) == {"Door"}
    one = bad("one_door", protocol + doors.format("Wooden", "key") + doors.format("Shop", "key, hours"))
    assert lone_protocols([one]) == {"Door"}
    assert lone_protocols([one, bad("two_doors", doors.format("Iron", "key"))]) == set()
    names = ["test_" + "x" * 65, "test_" + "x" * 66]
    assert long_test_names(bad("names", "".join(f"def {name}(): ...\n" for name in names))) == names[1:]
    called = "made(1, b=2)\nmade(2, b=3)\n"
    fault = bad("faulty", f"def made(a, b=0, c=0): ...\n{called}")
    assert useless_defaults([fault], [fault]) == {(fault, "made(b)"), (fault, "made(c)")}
    passed_on = bad("passed_on", f"def made(a, b=0): ...\n{called}run(made)\n")
    assert useless_defaults([passed_on], [passed_on]) == set()
