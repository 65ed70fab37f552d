"""Versions of Spark and Delta that this release is tested with.

Rules
- The extras of pyproject.toml, the locks, `ledger doctor` and the docs must match this table. Tests compare them.
- A version is listed after the tests with Spark have passed on it (`make test`, `make test-sparks`,
  `make smoke-lowest`).
"""

from __future__ import annotations

import re

# Tested versions of Spark by release line, oldest first.
SPARK: dict[tuple[int, int], tuple[str, ...]] = {
    (4, 0): ("4.0.0", "4.0.5"),
    (4, 1): ("4.1.4",),
    (4, 2): ("4.2.0", "4.2.1"),
    (4, 3): ("4.3.0",),
}
# Versions of Delta, oldest first, each with the newest Spark that it supports. Delta's Python package requires the jar
# of its own version, so only versions whose jar is in the repository Maven Central work.
DELTA: dict[str, str] = {"4.0.0": "4.0.5", "4.4.0": "4.2.0"}

OLDEST, NEWEST = min(SPARK), max(SPARK)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison; `4.3.0.dev1` begins with (4, 3, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def release_line(version: str) -> tuple[int, int]:
    """Return the release line of a version, such as (4, 2)."""
    major, minor, *_ = (*numbers(version), 0, 0)
    return major, minor


def is_tested(version: str) -> bool:
    """Return whether a version is tested, or lies between two tested patches of its release line, such as 4.0."""
    patches = [numbers(patch) for patch in SPARK.get(release_line(version), ())]
    return bool(patches) and patches[0] <= numbers(version) <= patches[-1]


def spark_versions() -> list[str]:
    """Return every tested version of Spark, oldest first."""
    return [version for line in SPARK.values() for version in line]
