"""Probe of another interpreter: `ledger doctor` runs it in the Python that Spark would start, in Spark's way.

Rules
- Only the standard library is imported, because the interpreter may have nothing else, and may be old.
- The result is one JSON document on standard output. A failure is a text in it.
- The interpreter runs the source of this file by `python -c`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from importlib.util import find_spec
from typing import Any

NEEDED = ("pyspark", "pyarrow", "numpy", "msgspec", "google_crc32c", "google.protobuf", "sortedcontainers")
OWN = ("pyspark_ledger", "pyspark_ledger.connector", "pyspark_ledger.ledger", "pyspark_ledger.offload")


def probe() -> dict[str, Any]:
    """Return its version, the packages of a task, this project's packages and their origin, and what discovery
    finds.
    """
    return {
        "executable": sys.executable,
        "python": list(sys.version_info[:3]),
        "modules": {name: _imported(name) for name in NEEDED},
        "origins": {name: _origin(name) for name in OWN},
        "ours": _imported("pyspark_ledger"),
        "discovery": {
            found.name: _imported(found.name).get("error", "")
            for found in pkgutil.iter_modules()
            if found.name.startswith("pyspark_")
        },
    }


def _imported(name: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001  # also SystemExit: it ends the lookup of a session, too
        return {"error": f"{type(error).__name__}: {error}"}
    return {"version": str(getattr(module, "__version__", "")), "origin": str(getattr(module, "__file__", ""))}


def _origin(name: str) -> str:
    try:
        spec = find_spec(name)
    except BaseException as error:  # noqa: BLE001  # a broken parent
        return f"{type(error).__name__}: {error}"
    return "" if spec is None else str(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))


if __name__ == "__main__":
    print(json.dumps(probe()))  # noqa: T201  # its purpose
