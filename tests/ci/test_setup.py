"""Goal: the set-up names what is missing, and creates nothing. Method: tools/setup.sh in a directory of its own, with a
minimal PATH, and with Pythons and Javas that are scripts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("awk", "bash", "cat", "cksum", "dirname", "head", "mkdir", "sed")
JAVA = """echo 'openjdk version "{}" 2025-04-15' >&2"""
# Says its version, and makes an environment whose own Python can install nothing.
PYTHON = """
case "$*" in
    -c*) echo {version} ;;
    "-m venv "*) mkdir -p "$3/bin"; printf '#!/bin/sh\\nexit 1\\n' > "$3/bin/python"; chmod +x "$3/bin/python" ;;
esac
"""
DISK = "echo 'Filesystem 1048576-blocks Used Available Capacity Mounted'; echo '/dev/x 9999 1 {} 1% /'"
GOOD = {"python3.11": PYTHON.format(version="3.11"), "java": JAVA.format("17.0.15"), "df": DISK.format(3000)}


def set_up(directory: Path, commands: dict[str, str], **environment: str) -> tuple[int, str]:
    """Exit status of the set-up and what it said, where there are these commands and the shell's own tools."""
    programs = directory / "bin"
    programs.mkdir()
    for tool in (*TOOLS, "chmod"):
        (programs / tool).symlink_to(str(shutil.which(tool)))
    for name, script in commands.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    clone = directory / "clone"
    shutil.copytree(ROOT / "requirements", clone / "requirements")
    (clone / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup.sh", clone / "tools")
    shutil.copy(ROOT / "pyproject.toml", clone)
    done = subprocess.run(
        [str(programs / "bash"), str(clone / "tools" / "setup.sh")],
        capture_output=True,
        text=True,
        env={"PATH": str(programs), **{name: value.format(directory) for name, value in environment.items()}},
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("commands", "environment", "said"),
    [
        ({"java": ""}, {}, "java is version unknown, Spark needs 17 or newer; set JAVA_HOME to one"),
        ({"java": "exit 1"}, {}, "java is version unknown, Spark needs 17 or newer; set JAVA_HOME to one"),
        ({"java": JAVA.format("11.0.2")}, {}, "java is version 11, Spark needs 17 or newer; set JAVA_HOME to one"),
        ({}, {"JAVA_HOME": "{}/jdk"}, "no {}/jdk/bin/java found; Spark needs Java 17 or newer (or set JAVA_HOME)"),
        ({"python3.11": "exit 1"}, {}, "python3.11 does not run; install Python 3.11 or set PYTHON="),
        ({"other": PYTHON.format(version="3.12")}, {"PYTHON": "other"}, "other is Python 3.12, the locks are for 3.11"),
        ({"df": DISK.format(2999)}, {}, "2999 MiB free on this disk, 3000 MiB needed"),
    ],
)
def test_what_is_missing_is_said_in_one_line_and_nothing_is_made(
    tmp_path: Path, commands: dict[str, str], environment: dict[str, str], said: str
) -> None:
    status, line = set_up(tmp_path, {**GOOD, **commands}, **environment)
    assert status == 1
    assert line.startswith("setup: ")
    assert said.replace("{}", str(tmp_path)) in line
    assert line.count("\n") == 1
    assert not (tmp_path / "clone" / ".venv").exists()


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ("python3.11", "no python3.11 found; install Python 3.11"),
        ("java", "no java found; Spark needs Java 17 or newer"),
    ],
)
def test_a_command_that_is_not_there_is_named(tmp_path: Path, absent: str, said: str) -> None:
    status, line = set_up(tmp_path, {name: script for name, script in GOOD.items() if name != absent})
    assert (status, line.count("\n")) == (1, 1)
    assert said in line
    assert not (tmp_path / "clone" / ".venv").exists()


def test_packages_that_cannot_be_had_are_no_finished_set_up(tmp_path: Path) -> None:
    status, said = set_up(tmp_path, GOOD)
    assert (status, said.count("\n")) == (1, 1)
    assert "it takes packages from PyPI, or the index it is configured for" in said
    assert not (tmp_path / "clone" / ".venv" / ".made-from").exists(), "the next one begins anew"


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_commands_of_the_readme_set_up_by_themselves(target: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    dry = ["make", "--dry-run", "--no-print-directory", "-C", str(ROOT), target]
    done = subprocess.run(dry, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[0] == "tools/setup.sh"
