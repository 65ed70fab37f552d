"""Goal: nothing is released by another name than its own. Method: tools/check_release.py in a small repository, where
one thing at a time disagrees.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
FILES = {
    "pyproject.toml": '[project]\nname = "pyspark-ledger"\nversion = "1.2.3"\n',
    "ledger/version.py": '__version__ = "1.2.3"\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-22\n\n- One.\n\n## [1.2.2] - 2026-11-01\n",
}


def git(directory: Path, *words: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
    subprocess.run(["git", "-C", str(directory), *who, *words], check=True, capture_output=True)


def commit(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--allow-empty", "--message", "x")


def sign(directory: Path) -> None:
    git(directory, "tag", "--force", "--sign", "--message", "x", "v1.2.3")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "ledger").mkdir()
    shutil.copy(ROOT / "tools" / "check_release.py", tmp_path / "tools")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, FILES)
    key = tmp_path / ".git" / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    git(tmp_path, "config", "gpg.format", "ssh")
    git(tmp_path, "config", "user.signingKey", str(key))
    sign(tmp_path)
    return tmp_path


def checked(directory: Path, *tag: str) -> tuple[int, list[str]]:
    """Exit status and what was said of each refusal."""
    command = [sys.executable, str(directory / "tools" / "check_release.py"), *tag]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()


def test_what_agrees_is_let_through(checkout: Path) -> None:
    assert checked(checkout, "v1.2.3") == (0, [])


@pytest.mark.parametrize("tag", [(), ("1.2.3",), ("v1.2",), ("release-1.2.3",)])
def test_a_tag_of_another_form(checkout: Path, tag: tuple[str, ...]) -> None:
    status, (said,) = checked(checkout, *tag)
    assert status == 1
    assert "is not of the form v1.2.3" in said


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("pyproject.toml", '[project]\nversion = "1.2.4"\n', "pyproject.toml has version 1.2.4, the tag 1.2.3"),
        ("ledger/version.py", '__version__ = "1.2.2"\n', "ledger/version.py has version 1.2.2, the tag 1.2.3"),
        ("CHANGELOG.md", "# Changelog\n", "CHANGELOG.md begins with 'nothing'"),
        ("CHANGELOG.md", "## [Unreleased]\n\n- One.\n\n## [1.2.3] - 2026-11-22\n", "has changes under [Unreleased]"),
        ("CHANGELOG.md", "## [Unreleased]\n\n## [1.2.2] - 2026-11-22\n", "'[1.2.2] - 2026-11-22' below [Unreleased]"),
        ("CHANGELOG.md", "## [Unreleased]\n\n## [1.2.3]\n", "'[1.2.3] - YYYY-MM-DD' belongs there"),
    ],
)
def test_a_file_that_disagrees_is_named(checkout: Path, file: str, text: str, said: str) -> None:
    commit(checkout, {file: text})
    sign(checkout)
    status, (line,) = checked(checkout, "v1.2.3")
    assert status == 1
    assert said in line


def test_a_tree_that_is_not_what_the_tag_names(checkout: Path) -> None:
    (checkout / "left.txt").touch()
    (checkout / "ledger/version.py").write_text('__version__ = "1.2.3"\n# more\n', encoding="utf-8")
    status, (line,) = checked(checkout, "v1.2.3")
    assert status == 1
    assert "files differ from the commit: ledger/version.py, left.txt; commit" in line
    commit(checkout, {})
    status, (line,) = checked(checkout, "v1.2.3")
    assert (status, "tag v1.2.3 names commit" in line) == (1, True)
    git(checkout, "tag", "--delete", "v1.2.3")
    assert checked(checkout, "v1.2.3") == (1, ["release: there is no tag v1.2.3; make it: git tag --sign v1.2.3"])


@pytest.mark.parametrize("words", [(), ("--message", "x")], ids=["lightweight", "annotated"])
def test_a_tag_without_signature(checkout: Path, words: tuple[str, ...]) -> None:
    git(checkout, "tag", "--force", *words, "v1.2.3")
    assert checked(checkout, "v1.2.3") == (
        1,
        ["release: tag v1.2.3 has no signature; make it again: git tag --sign --force v1.2.3"],
    )


def test_all_that_disagrees_is_said_at_once(checkout: Path) -> None:
    status, lines = checked(checkout, "v1.3.0")
    assert (status, len(lines)) == (1, 4)


def test_this_project_states_one_version() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "check_release.py"), "v0.0.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    stated = {line.partition(" has version ")[2].partition(",")[0] for line in found.stderr.splitlines()} - {""}
    assert len(stated) == 1


def test_the_workflow_runs_commands_of_the_makefile() -> None:
    workflow = WORKFLOW.read_text(encoding="utf-8")
    commands = re.findall(r"\bmake ([a-z-]+)", workflow)
    assert commands == ["setup", "release-check", "test-installs", "sbom"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{command}:" in makefile for command in commands)


def test_the_workflow_names_each_action_by_its_commit() -> None:
    used = re.findall(r"uses: (.*)", WORKFLOW.read_text(encoding="utf-8"))
    assert len(used) >= 8
    assert all(re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40} # v[0-9.]+", action) for action in used)


def test_the_workflow_publishes_with_the_locked_uv() -> None:
    (version,) = re.findall(r' version: "([0-9.]+)"', WORKFLOW.read_text(encoding="utf-8"))
    assert f"uv=={version} " in (ROOT / "requirements" / "bootstrap.lock").read_text(encoding="utf-8")
