"""Check that a checkout may be published as the release of a tag: version and changelog agree, no file was changed.
The tag must have a signature. Whose it is, is checked by .github/workflows/release.yml.

Prints a line for each reason against the release, and ends with status 1. Without a reason, prints one line.

Use: python tools/check_release.py v0.1.0        (`make release-check TAG=v0.1.0` builds and tries the packages, too)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

_TAG = re.compile(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")
_RELEASE = re.compile(r"\[(.+)\] - \d{4}-\d{2}-\d{2}")
_SIGNATURE = re.compile("^-----BEGIN (PGP|SSH) SIGNATURE-----$", re.MULTILINE)


def refusals(root: Path, tag: str) -> Iterator[str]:
    """Yield each reason why the checkout at `root` cannot be published as the release `tag`."""
    named = _TAG.fullmatch(tag)
    if named is None:
        yield f"tag {tag!r} is not of the form v1.2.3 or v1.2.3rc1"
        return
    yield from _version_refusals(root, named[1])
    yield from _changelog_refusals((root / "CHANGELOG.md").read_text(encoding="utf-8"), named[1])
    yield from _tree_refusals(root, tag)


def _version_refusals(root: Path, version: str) -> Iterator[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    module = (root / "ledger" / "version.py").read_text(encoding="utf-8")
    imported = re.search(r'^__version__ = "(.*)"$', module, re.MULTILINE)
    for file, stated in (("pyproject.toml", project), ("ledger/version.py", imported and imported[1])):
        if stated != version:
            yield f"{file} has version {stated}, the tag {version}; change the version, or the tag"


def _changelog_refusals(changelog: str, version: str) -> Iterator[str]:
    _, *sections = re.split(r"^## ", changelog, flags=re.MULTILINE)
    titles = [section.partition("\n")[0] for section in sections]
    if not sections or titles[0] != "[Unreleased]":
        yield f"CHANGELOG.md begins with {titles[0] if titles else 'nothing'!r}; begin with '## [Unreleased]'"
        return
    if sections[0].partition("\n")[2].strip():
        yield f"CHANGELOG.md has changes under [Unreleased]; move them below '## [{version}] - YYYY-MM-DD'"
    newest = titles[1] if len(titles) > 1 else "nothing"
    dated = _RELEASE.fullmatch(newest)
    if dated is None or dated[1] != version:
        yield f"CHANGELOG.md has {newest!r} below [Unreleased]; '[{version}] - YYYY-MM-DD' belongs there"


def _tree_refusals(root: Path, tag: str) -> Iterator[str]:
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed:
        yield f"files differ from the commit: {', '.join(line[3:] for line in changed[:3])}; commit or remove them"
    head, tagged = _git(root, "rev-parse", "HEAD"), _git(root, "rev-list", "-n", "1", f"refs/tags/{tag}", "--")
    if not tagged:
        yield f"there is no tag {tag}; make it: git tag --sign {tag}"
        return
    if tagged != head:
        yield f"tag {tag} names commit {tagged[:12]}, the checkout is at {head[:12]}; git checkout {tag}"
    if not _SIGNATURE.search(_git(root, "cat-file", "-p", f"refs/tags/{tag}")):
        yield f"tag {tag} has no signature; make it again: git tag --sign --force {tag}"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False).stdout.rstrip()


def main() -> int:
    """Print the reasons. Return the exit status, 1 if there is a reason."""
    tag = sys.argv[1] if len(sys.argv) > 1 else ""
    found = list(refusals(Path(__file__).resolve().parents[1], tag))
    for refusal in found:
        print(f"release: {refusal}", file=sys.stderr)
    if not found:
        print(f"release: tag, version and changelog say {tag}, the tag is signed, and the tree is clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
