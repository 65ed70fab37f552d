"""Programs of Debian that these tests drive: those of the machine, or those that `tools/web/fetch.sh` unpacks."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build" / "web" / "root"


@functools.cache
def program(name: str) -> str:
    """Return the path of a program. Fetches the programs if the machine has none."""
    subprocess.run([ROOT / "tools" / "web" / "fetch.sh"], check=True, timeout=600)
    found = shutil.which(name)
    if found is not None:
        return found
    below = ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio", "lib/x86_64-linux-gnu")
    libraries = [UNPACKED / path for path in below]
    os.environ["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    inner = UNPACKED / "usr" / "lib" / name / name  # beside its wrapper, which asks for an installed system
    return str(inner if inner.exists() else UNPACKED / "usr" / "bin" / name)
