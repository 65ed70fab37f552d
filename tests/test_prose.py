"""Goal: texts are plain English. Method: the check of `tools.prose` over the project, and over planted faults."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import prose

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parent.parent
SUBJECT_MAX = 72
LONG = "word " * prose.WORDS_MAX + "word."


def test_docstrings_comments_and_pages_are_plain_english() -> None:
    assert [str(fault) for fault in prose.faults()] == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("first.py", '"""What it is."""\n', ["1: start with a verb or a noun, not with 'What'"]),
        ("long.py", f'"""Rule.\n\n{LONG}\n"""\n', ["3: 26 words, at most 25"]),
        ("item.py", f'"""Rules\n\n- One.\n- {LONG}\n"""\n', ["4: 26 words, at most 25"]),
        ("comment.py", f'"""Rule."""\n\n# {LONG}\n', ["3: 26 words, at most 25"]),
        ("cell.py", f"# MAGIC %md\n# MAGIC # Title\n# MAGIC\n# MAGIC {LONG}\n", ["4: 26 words, at most 25"]),
        ("words.md", "# Title\n\nLeft to whoever comes.\n", ["3: do not use 'whoever'"]),
        (
            "fine.md",
            f"# Title\n\n    {LONG}\n\n```python\n# {LONG}\n```\n\n| {LONG} |\n\nShort. `{LONG}` is one word.\n",
            [],
        ),
        ("fine.py", '"""Return the rows.\n\n    a diagram ' + LONG + '\n\nEnd.\n"""\n', []),
    ],
)
def test_planted_faults_are_found(tmp_path: Path, name: str, text: str, found: list[str]) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    faults = [f"{fault.line}: {fault.message}" for fault in prose.faults_of_file(path)]
    assert [fault.startswith(start) for fault, start in zip(faults, found, strict=True)] == [True] * len(found), faults


def test_subjects_of_commits_are_short() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    log = subprocess.run(
        ["git", "log", "-30", "--no-merges", "--format=%s"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [subject for subject in log.stdout.splitlines() if len(subject) > SUBJECT_MAX] == []
