"""Versions of Spark and Delta that this release is tested with.

Rules
- The extras of pyproject.toml, the locks, `ledger doctor` and the docs must match this table. Tests compare them.
- `ledger doctor` never proposes another Spark: a platform may allow no other.
- A version is listed after the tests with Spark have passed on it (`make test`, `make test-sparks`,
  `make smoke-lowest`).
"""

from __future__ import annotations

import re

# Tested versions of Spark, oldest first, each with the Delta that its tests use. The Python package of Delta requires
# the jar of its own version, so only versions whose jar is in the repository Maven Central work.
PAIRS: dict[str, str | None] = {
    "4.0.0": None,
    "4.0.2": "4.0.0",  # EMR 8.0
    "4.1.1": "4.2.0",  # EMR 8.1 LTS
    "4.1.3": "4.2.0",  # EMR 8.2 LTS
    "4.2.0": "4.4.0",
    "4.2.1": None,
    "4.3.0": None,
}


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison; `4.3.0.dev1` begins with (4, 3, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def release_line(version: str) -> tuple[int, int]:
    """Return the release line of a version, such as (4, 2)."""
    major, minor, *_ = (*numbers(version), 0, 0)
    return major, minor


OLDEST, NEWEST = release_line(min(PAIRS, key=numbers)), release_line(max(PAIRS, key=numbers))


def is_tested(version: str) -> bool:
    """Return whether a version is tested, or lies between two tested patches of its release line, such as 4.0."""
    patches = [numbers(patch) for patch in PAIRS if release_line(patch) == release_line(version)]
    return bool(patches) and patches[0] <= numbers(version) <= patches[-1]


def delta_versions() -> list[str]:
    """Return every tested version of Delta, oldest first."""
    return sorted({delta for delta in PAIRS.values() if delta is not None}, key=numbers)


def delta_of(spark: str) -> str | None:
    """Return the Delta that is tested with the release line of a Spark; None if no version is."""
    of_line = [delta for tested, delta in PAIRS.items() if release_line(tested) == release_line(spark) and delta]
    return of_line[-1] if of_line else None
