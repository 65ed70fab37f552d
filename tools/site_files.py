"""Hook of mkdocs, which builds the site: adds files from outside of `docs/` to the site, and corrects links to them.

- The site has the pages `ROOT_PAGES`, and each file that a page links, at their path in the repository.
- A link names a path in the repository. The hook changes it into the path in the site, where `docs/` is the top.
- If the text of a link is the name of a page, the hook replaces it by the title of the page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# The target of a Markdown link that is neither an address nor an anchor, without its anchor.
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)[^)#\s]+")
PAGE_NAME = re.compile(r"\[([\w./-]+\.md)\]\(([^)#\s]+)")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs/`. Called by mkdocs with those of `docs/`."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    pages += [ROOT / name for name in ROOT_PAGES]
    found = {path for page in pages for path in _linked(page)} | set(pages)
    for path in sorted(found):
        if path.is_file() and not path.is_relative_to(DOCS):
            files.append(File.generated(config, _site_path(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # mkdocs' names
    """Return the text of a page with links of the site."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    folder, here = Path(source).parent, posixpath.dirname(page.file.src_uri)
    markdown = PAGE_NAME.sub(lambda link: f"[{_title(folder, *link.groups())}]({link[2]}", markdown)
    return LINK.sub(
        lambda link: posixpath.relpath(_site_path((folder / link[0]).resolve()), here or "."),
        markdown,
    )


def _title(folder: Path, text: str, link: str) -> str:
    """Return the title of a linked page if the text of the link is its name; else the text."""
    path = (folder / link).resolve()
    if Path(text).name != path.name or not path.is_file():
        return text
    found = TITLE.search(path.read_text(encoding="utf-8"))
    return found[1] if found else text


def _linked(page: Path) -> Iterator[Path]:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        yield (page.parent / link).resolve()


def _site_path(path: Path) -> str:
    """Return the path in the site; outside of the repository the path itself, which mkdocs reports as missing."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
