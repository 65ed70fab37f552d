"""Goal: every module has its place in the import contracts and in the map of ARCHITECTURE, and both name nothing else.

Method: compare the contracts of pyproject.toml and the text of the map with the tree. Which imports a contract allows
is import-linter's to check (`make check`); here it is that no package is left out of them.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("connector", "offload", "ledger")
GENERATED = "ledger/proto"
NO_NAME = {"values"}  # a description of one word


def modules() -> dict[str, set[str]]:
    """The names in each package, by its path: its modules, and the packages in it."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.stem != "__init__":
                found.setdefault(str(path.parent.relative_to(ROOT)), set()).add(path.stem)
    for path in list(found):
        if "/" in path:
            found[str(Path(path).parent)].add(Path(path).name)
    return {path: names for path, names in found.items() if path != GENERATED}


def mapped(text: str) -> dict[str, set[str]]:
    """What the map names in each package, `…` standing for any part of a name.

    A line is names, two spaces apart, then words about them. It belongs to the last package that was named on a line
    with less indentation; a package whose modules are not told apart is a name in a line like others.
    """
    found: dict[str, set[str]] = {}
    parents: list[str] = []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip()) - 4) // 2
        if not line.strip() or depth > len(parents):
            continue  # a line of words goes on
        names = []
        for part in re.split(r" {2,}", line.strip()):
            if re.fullmatch(r"…?[a-z0-9_]+…?/?", part) is None or part in NO_NAME:
                break
            names.append(part.removesuffix("/"))
        del parents[depth:]
        found.setdefault("/".join(parents), set()).update(names)
        if line.split()[0].endswith("/"):
            parents.append(names[0])
    return found


def differences(named: dict[str, set[str]], there: dict[str, set[str]]) -> list[str]:
    """What is there and named nowhere, and the reverse."""
    wrong = []
    for package in sorted(there):
        patterns = {name.replace("…", "*") for name in named.get(package, set())}
        if package.count("/") and not patterns:
            continue  # named as a whole
        wrong += [f"{package}/{name} is not in the map" for name in sorted(there[package]) if not known(name, patterns)]
        gone = {name for name in patterns if not any(fnmatchcase(module, name) for module in there[package])}
        wrong += [f"{package}/{name} is in the map only" for name in sorted(gone)]
    return wrong


def known(name: str, patterns: set[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def test_the_map_of_architecture_is_the_tree() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Module map\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    assert differences(mapped("\n".join(lines)), modules()) == []


def test_every_package_has_a_contract_that_lists_its_modules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    listed = {container for contract in contracts if contract.get("exhaustive") for container in contract["containers"]}
    assert listed == {package.replace("/", ".") for package in modules()}


def test_the_comparison_here_would_fail() -> None:
    lines = [
        "    ledger/      the log",
        "      store  log_…  a word  here",
        "      broker/",
        "        main  server   who serves",
        "                           and more words",
        "      proto/   bytes, pure",
        "      disk   values",
    ]
    named = mapped("\n".join(lines))
    assert named == {
        "": {"ledger"},
        "ledger": {"store", "log_…", "broker", "proto", "disk"},
        "ledger/broker": {"main", "server"},
    }
    there = {"ledger": {"store", "log_end", "broker", "proto", "disk"}, "ledger/broker": {"main", "server"}}
    assert differences(named, {**there, "ledger/proto": {"x_pb2"}}) == []
    there["ledger"] -= {"log_end"}
    there["ledger/broker"] |= {"client"}
    assert differences(named, there) == ["ledger/log_* is in the map only", "ledger/broker/client is not in the map"]
