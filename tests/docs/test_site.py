"""Goal: the documentation site is whole. Method: build it strictly, follow each link, anchor and file of its pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parents[2]
# What a browser fetches by itself; a link waits for the reader.
FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("use", "href")}
# Written for a server that has no page at an address, so its links start at the server's top.
FOR_THE_SERVER = "404.html"


class SitePage(HTMLParser):
    """Links, ids and paragraphs of one page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str, str]] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in {"href", "src"} and value:
                self.links.append((tag, name, value))


def build(site: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "--site-dir", site],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    built = build(site)
    assert built.returncode == 0, built.stderr
    return site


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, SitePage]:
    return {
        path: SitePage(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
        if path.name != FOR_THE_SERVER
    }


def faults(path: Path, page: SitePage, pages: dict[Path, SitePage]) -> list[str]:
    """Return the links of a page that lead nowhere, and what it fetches from other hosts."""
    found = []
    for tag, name, value in page.links:
        link = urlsplit(value)
        if link.scheme or link.netloc:
            if (tag, name) in FETCHED and link.scheme != "data":
                found.append(f"{path.name} fetches {value}")
            continue
        target = (path.parent / unquote(link.path)).resolve() if link.path else path
        if not target.is_file():
            found.append(f"{path.name}: no file {value}")
        elif link.fragment and target in pages and unquote(link.fragment) not in pages[target].ids:
            found.append(f"{path.name}: no anchor {value}")
    return found


def test_every_link_anchor_and_file_of_the_site_exists(pages: dict[Path, SitePage]) -> None:
    assert len(pages) > 30
    assert [fault for path, page in pages.items() for fault in faults(path, page, pages)] == []


def test_planted_links_are_found(tmp_path: Path) -> None:
    path, other = tmp_path / "page.html", tmp_path / "other.html"
    other.write_text('<h2 id="there">', encoding="utf-8")
    text = (
        '<a href="other.html#there"><a href="#gone"><a href="other.html#gone"><a href="gone.html">'
        '<img src="https://elsewhere/a.png"><a href="https://elsewhere/">'
    )
    path.write_text(text, encoding="utf-8")
    pages = {page: SitePage(page.read_text(encoding="utf-8")) for page in (path, other)}
    assert faults(path, pages[path], pages) == [
        "page.html: no anchor #gone",
        "page.html: no anchor other.html#gone",
        "page.html: no file gone.html",
        "page.html fetches https://elsewhere/a.png",
    ]


def test_styles_fetch_nothing_from_other_hosts(site: Path) -> None:
    styles = list(site.rglob("*.css"))
    assert styles
    for style in styles:
        fetched = re.findall(r"(?:url\(|@import\s*)[\"']?(https?:[^\"')]*)", style.read_text(encoding="utf-8"))
        assert fetched == [], style.name


def test_tables_and_lists_are_no_text(pages: dict[Path, SitePage]) -> None:
    """A list that follows a line of text without an empty line is a list on a git host, and text in the site."""
    for path in pages:
        text = path.read_text(encoding="utf-8")
        article = text.partition("<article")[2].partition("</article>")[0]
        assert re.findall(r"<p>(?:\||- )|<p>[^<]*\n(?:\||- |\d+\. )", article) == [], path.name


def test_every_page_is_listed_and_readable_as_markdown(site: Path, pages: dict[Path, SitePage]) -> None:
    listed = re.findall(r"^- \[.+?\]\((\S+\.md)\)", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.relative_to(site).with_suffix(".md").as_posix() for path in pages)
    for name in listed:
        twin = site / name
        text = twin.read_text(encoding="utf-8")
        assert text.startswith(("# ", "---")), name
        for link in re.findall(r"(?<!`)\]\((?![a-z]+:|#)([^)#\s]+)", text):
            assert (twin.parent / link).resolve().is_file(), f"{name} links {link}"


def test_the_list_of_the_pages_begins_with_the_tutorial(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# pyspark-ledger\n\n> ")
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert (heads[:2], heads[-1]) == (["Start", "Tutorial"], "Optional")
    assert "- [Cursors](cursors.md): This page explains how to acknowledge single rows" in text


def test_the_index_of_the_pages_has_every_page() -> None:
    linked = re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert sorted({*linked, "index.md"}) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_a_warning_of_the_build_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Title\n\n[gone](gone.md)\n", encoding="utf-8")
    own = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    own = re.sub(r"\nnav:\n(?:[ -].*\n)*", "\n", own)
    own = re.sub(r"(?m)^(hooks|extra_css):.*\n", "", own)
    (tmp_path / "mkdocs.yml").write_text(own, encoding="utf-8")
    built = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert built.returncode != 0
    assert "gone.md" in built.stderr
