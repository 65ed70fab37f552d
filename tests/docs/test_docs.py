"""Goal: the documentation names what there is. Method: compare tables and links with code and tree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pyspark_ledger.connector.doctor import tested_versions
from pyspark_ledger.ledger.errors import LedgerError

ROOT = Path(__file__).resolve().parents[2]
# These pages are generated or written with what they describe.
LATER = {"docs/options.md"}
GENERATED = {"metrics.md", "options.md", "settings.md"}
PERFORMANCE_LINES_MAX = 150


def pages() -> list[Path]:
    return sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


def test_every_error_code_is_explained_and_no_other() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `(LEDGER_[A-Z_]+)`", text, re.MULTILINE))
    assert explained == {error.code for error in LedgerError.__subclasses__()}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve()
        if str(linked.relative_to(ROOT)) not in LATER:
            assert linked.exists(), f"{page.name} links {target}, which is not there"


def test_a_page_says_what_it_is_for_and_what_to_read_next() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name in {"index.md", *GENERATED}:
            continue
        paragraphs = page.read_text(encoding="utf-8").strip().split("\n\n")
        assert paragraphs[1].startswith("This page"), f"{page.name}: {paragraphs[1]}"
        assert re.match(r"Next: .*\]\(", paragraphs[-1]), f"{page.name}: {paragraphs[-1]}"


def test_the_page_of_performance_is_method_and_tables() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= PERFORMANCE_LINES_MAX, "the background of a figure belongs into docs/decisions"


def test_extras_that_are_to_be_installed_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    code = [file for name in ("connector", "ledger", "offload") for file in (ROOT / name).rglob("*.py")]
    named = {
        extra
        for file in [*pages(), *code]
        for extras in re.findall(r"(?:pyspark-ledger|'\.)\[([a-z0-9,]+)\]", file.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert "spark" in named <= set(project["optional-dependencies"])
    for page in ("README.md", "docs/quickstart.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "pip install '.[spark]'" in text, f"{page} has no line that works in a clone"
        assert "pip install 'pyspark-ledger[spark]'" in text, f"{page} has no line that works from an index"


@pytest.mark.parametrize(("page", "title"), [("README.md", "Compatibility"), ("docs/clusters.md", "Spark versions")])
def test_the_versions_that_are_said_to_be_tested_are_those(page: str, title: str) -> None:
    section = (ROOT / page).read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    tested = {*tested_versions.spark_versions(), *tested_versions.DELTA}
    assert set(re.findall(r"\b\d+\.\d+\.\d+\b", section)) == tested


def test_every_target_of_make_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):(?!=)", makefile, re.MULTILINE))
    assert targets == set(re.findall(r"^# ([a-z0-9-]+): ", makefile, re.MULTILINE))
    assert targets == {name for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for name in line.split()}


def test_every_spark_setting_has_its_reason() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("spark."):
            comment = []
            for above in reversed(lines[:number]):
                if not above.startswith("#"):
                    break
                comment.append(above)
            assert "Default" in " ".join(comment), f"{line.split()[0]} states neither its default nor why"


def test_the_table_of_features_has_the_stories_of_every_release() -> None:
    """The table is written by `make test-sparks`. Stories that are slow as a whole are left out there."""
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    heads, _, *rows = re.findall(
        r"^\| .*|^\|---.*", page.partition("<!-- features")[2].partition("<!-- end")[0], re.MULTILINE
    )
    newest = [patches[-1] for patches in tested_versions.SPARK.values()]
    assert [head.split(",")[0] for head in heads.strip("| ").split(" | ")[1:]] == newest
    marks = {
        name
        for path in (ROOT / "tests" / "stories").glob("test_*.py")
        for name in re.findall(r'mark\.feature\(\s*"(.*)"\s*\)', path.read_text(encoding="utf-8"))
    }
    cells = {name: results for name, *results in (row.strip("| ").split(" | ") for row in rows)}
    assert cells.keys() == marks - {"failed and speculative attempts of tasks"}
    tables = cells.pop("tables of Delta: publish and history")
    assert tables == ["yes" if line <= (4, 1) else "not run" for line in tested_versions.SPARK]
    assert all(results == ["yes"] * len(newest) for results in cells.values())
