"""Jars from Maven Central for a benchmark's base. A file has their versions, and they are downloaded once.

benchmarks/<what>/<part>.xml  →  build/<what>/<part>/*.jar
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

BUILD = Path(__file__).parent.parent / "build"


def jars(pom: Path) -> list[Path]:
    """Return the jars of a pom with their runtime dependencies."""
    folder = BUILD.absolute() / pom.parent.name / pom.stem
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
                   f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            message = f"Maven did not fetch what {pom} names: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            raise RuntimeError(message)
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))
