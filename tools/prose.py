"""Check of the prose in docstrings, comments and pages: first words, length of sentences, words that are not used.

    python -m tools.prose [PATH ...]     prints `path:line: fault` for each fault; exits with 1 if there is one

Rules
- A docstring starts with a verb or a noun, so never with a word of `FIRST_WORDS`.
- A sentence has at most `WORDS_MAX` words. Code in backquotes, a link and a number with its unit count as one word.
- No text uses a word of `UNUSED_WORDS`.

Code blocks, tables, byte diagrams (lines indented by four more spaces) and generated files are not prose.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORDS_MAX = 25
FIRST_WORDS = frozenset(
    [
        "by",
        "how",
        "it",
        "its",
        "of",
        "one",
        "ones",
        "somebody",
        "something",
        "that",
        "these",
        "this",
        "those",
        "what",
        "whatever",
        "when",
        "where",
        "which",
        "who",
        "whoever",
        "whom",
        "whose",
    ]
)
UNUSED_WORDS = re.compile(
    r"\b(lest|be it|but for|somebody|anybody|whoever|whomever|whatever|lets? go of|in the hands of|as it is|no longer)"
    r"\b",
    re.IGNORECASE,
)
_CODE = (
    "ledger",
    "connector",
    "offload",
    "pyspark_ledger/__init__.py",
    "streaming_examples",
    "benchmarks",
    "tests",
    "tools",
)
_PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"'*_”]*\s+(?=[^a-z])")
_ATOM = re.compile(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|https?://\S+")
_MARK = re.compile(r"^(?:[-*+]|\d+\.)\s+")


class Fault(NamedTuple):
    """A fault of a text. `line` is the first line of its paragraph, from 1."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        """Return the fault as compilers print faults."""
        return f"{self.path}:{self.line}: {self.message}"


class Paragraph(NamedTuple):
    """A paragraph or a list item, joined to one line. `line` is its first line in the file, from 1."""

    line: int
    text: str


def paragraphs(text: str, first_line: int = 1) -> Iterator[Paragraph]:
    """Yield the paragraphs and list items of Markdown or of a docstring, without code, tables and headings."""
    lines: list[str] = []
    start, fenced = first_line, False
    for number, raw in enumerate([*text.split("\n"), ""], first_line):
        line = raw.strip()
        if line.startswith(("```", "~~~")):
            fenced = not fenced
        is_code = fenced or line.startswith(("```", "~~~")) or _is_indented_code(raw, lines)
        is_prose = line and not is_code and line[0] not in "#|<"
        if lines and (not is_prose or _MARK.match(line)):
            yield Paragraph(start, " ".join(lines))
            lines = []
        if is_prose:
            start = start if lines else number
            lines.append(_MARK.sub("", line))


def _is_indented_code(raw: str, lines: list[str]) -> bool:
    return not lines and raw.startswith("    ") and not _MARK.match(raw.strip())


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of words and the text of each sentence that has more than `WORDS_MAX` words."""
    atoms: list[str] = []

    def atom(match: re.Match[str]) -> str:
        atoms.append(match[0])
        return f"\x00{len(atoms) - 1}\x00"

    for sentence in _SENTENCE_END.split(_ATOM.sub(atom, text)):
        words = [word for word in sentence.split() if re.search(r"[\w\x00]", word)]
        if len(words) > WORDS_MAX:
            yield len(words), re.sub(r"\x00(\d+)\x00", lambda match: atoms[int(match[1])], sentence)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring of a module."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each comment. Whole lines that follow each other are one comment.

    The text cells of a Databricks notebook are comments, too.
    """
    lines: list[str] = []
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(
            r"#\s*(noqa|type:|MAGIC %|COMMAND|Databricks|%%|!)", token.string
        ):
            continue
        row, column = token.start
        text = token.string.lstrip("#").removeprefix(" MAGIC").removeprefix(" ")
        if lines and row == start + len(lines) and not token.line[:column].strip():
            lines.append(text)
            continue
        if lines:
            yield start, "\n".join(lines)
        start, lines = row, [text]
    if lines:
        yield start, "\n".join(lines)


def faults_of_text(path: Path, line: int, text: str) -> Iterator[Fault]:
    """Yield the faults of a text that starts at `line`."""
    for paragraph in paragraphs(text, line):
        for count, sentence in long_sentences(paragraph.text):
            yield Fault(path, paragraph.line, f"{count} words, at most {WORDS_MAX}: {sentence}")
        for match in UNUSED_WORDS.finditer(_ATOM.sub("", paragraph.text)):
            yield Fault(path, paragraph.line, f"do not use {match[0]!r}: {paragraph.text[:100]}")


def faults_of_file(path: Path) -> Iterator[Fault]:
    """Yield the faults of one Python file or Markdown page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from faults_of_text(path, 1, re.sub(r"<!--.*?-->", "", source, flags=re.DOTALL))
        return
    for line, text in docstrings(ast.parse(source)):
        first = re.split(r"[^\w']", text.strip(), maxsplit=1)[0]
        if first.lower() in FIRST_WORDS:
            yield Fault(path, line, f"start with a verb or a noun, not with {first!r}: {text.splitlines()[0][:100]}")
        yield from faults_of_text(path, line, text)
    for line, text in comments(source):
        yield from faults_of_text(path, line, text)


def files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the Python files and pages at or below `paths`, generated ones left out."""
    for name in paths:
        path = ROOT / name
        found = [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.md")])
        yield from (file.relative_to(ROOT) for file in found if not file.name.endswith("_pb2.py"))


def faults(paths: Iterable[str] = (*_CODE, *_PAGES)) -> list[Fault]:
    """Return the faults of all files at or below `paths`, which are relative to the root of the project."""
    return [fault._replace(path=file) for file in files(paths) for fault in faults_of_file(ROOT / file)]


def main() -> int:
    """Print the faults of the paths that are given as arguments, or of the whole project."""
    found = faults(sys.argv[1:] or (*_CODE, *_PAGES))
    for fault in found:
        sys.stdout.write(f"{fault}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
